"""SGLang's ``/generate`` and the routes that its ``RuntimeEndpoint`` calls."""

from __future__ import annotations

import json
import threading

import pytest

from sglang_lite.constraint import Grammar, JsonSchema, Prefixed, Regex, StructuralTag
from tests.server.live import Live, error_of
from tests.server.scripted import EOS, Script


def generate(live: Live, **body: object) -> object:
    response = live.post("/generate", **body)
    assert response.status_code == 200, response.text
    return response.json()


def test_one_prompt(live: Live) -> None:
    result = generate(live, text="abc", sampling_params={"temperature": 0})
    assert result["text"] == "Hello"
    assert result["output_ids"] == list(b"Hello")
    meta = result["meta_info"]
    assert meta["finish_reason"] == {"type": "stop", "matched": EOS}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (3, 5, 0)
    assert live.engine.requests[0].sampling_params.max_new_tokens == 128


def test_put_is_post(live: Live) -> None:
    assert live.http.put("/generate", json={"text": "abc"}).json()["text"] == "Hello"


def test_length_says_how_long(live: Live) -> None:
    meta = generate(live, text="a", sampling_params={"max_new_tokens": 2})["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 2}


@pytest.mark.parametrize("prompts", [{"text": ["a", "bc"]}, {"input_ids": [[97], [98, 99]]}])
def test_lists_give_lists(live: Live, prompts: dict) -> None:
    params = [{"temperature": 0}, {"max_new_tokens": 1}]
    results = generate(live, **prompts, sampling_params=params, rid=["x", "y"])
    assert [result["text"] for result in results] == ["Hello", "H"]
    assert [result["meta_info"]["id"] for result in results] == ["x", "y"]
    assert [request.input_ids for request in live.engine.requests] == [(97,), (98, 99)]


def test_a_list_of_one_is_a_list(live: Live) -> None:
    assert len(generate(live, text=["a"])) == 1


def test_n_gives_a_list(live: Live) -> None:
    results = generate(live, text="a", rid="r", sampling_params={"n": 2})
    assert [result["meta_info"]["id"] for result in results] == ["r-0", "r-1"]


def test_stream_is_cumulative(live: Live) -> None:
    *events, done = live.events("/generate", text="a")
    assert done == "[DONE]"
    results = [json.loads(event) for event in events]
    assert [result["text"] for result in results] == ["Hel", "Hello", "Hello"]
    assert [result["meta_info"]["finish_reason"] is None for result in results] == [
        *(True, True, False)
    ]
    assert "index" not in results[0]


def test_stream_of_a_list_has_indices(live: Live) -> None:
    *events, _ = live.events("/generate", text=["a", "b"], sampling_params={"n": 2})
    last = {result["index"]: result for result in map(json.loads, events)}
    assert {index: result["text"] for index, result in last.items()} == dict.fromkeys(
        range(4), "Hello"
    )


def test_logprobs(live: Live) -> None:
    meta = generate(
        live,
        text="ab",
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=1,
        token_ids_logprob=[5],
        return_text_in_logprobs=True,
    )["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 97, "a"], [-0.5, 98, "b"]]
    assert meta["output_token_logprobs"][0] == [-0.5, ord("H"), "H"]
    assert meta["input_top_logprobs"] == [None, [[-0.5, 98, "b"]]]
    assert meta["output_top_logprobs"][0] == [[-0.5, ord("H"), "H"]]
    assert meta["output_token_ids_logprobs"][0] == [[-3.0, 5, "\x05"]]


def test_no_text_in_logprobs_unless_asked(live: Live) -> None:
    meta = generate(live, text="ab", return_logprob=True)["meta_info"]
    assert meta["input_token_logprobs"] == []
    assert meta["output_token_logprobs"][0] == [-0.5, ord("H"), None]


def test_prefill_only(live: Live) -> None:
    result = generate(live, text="abc", sampling_params={"max_new_tokens": 0})
    assert result["text"] == ""
    assert result["meta_info"]["completion_tokens"] == 0


def test_select_as_the_runtime_endpoint_does_it(live: Live) -> None:
    choices = generate(
        live,
        text=["q yes", "q no"],
        sampling_params={"max_new_tokens": 0, "temperature": 0},
        return_logprob=True,
        return_text_in_logprobs=True,
        logprob_start_len=1,
    )
    lengths = [len(choice["meta_info"]["input_token_logprobs"]) for choice in choices]
    assert lengths == [4, 3]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"regex": "a+"}, Regex("a+")),
        ({"ebnf": 'root ::= "a"'}, Grammar('root ::= "a"', "ebnf")),
        ({"json_schema": '{"type": "integer"}'}, JsonSchema('{"type": "integer"}', max_digits=40)),
        ({"json_schema": "$$ANY$$"}, JsonSchema.of({"type": "object"}, max_digits=40)),
        ({"structural_tag": '{"type": "any_text"}'}, StructuralTag('{"type": "any_text"}')),
        ({"regex": "", "json_schema": ""}, None),
        (
            {"json_schema": "true", "json_options": {"max_digits": 3, "max_whitespace": 2}},
            JsonSchema("true", max_digits=3, max_whitespace=2),
        ),
        (
            {"json_schema": "true", "json_options": {"separators": [", ", ": "]}},
            JsonSchema("true", max_digits=40, separators=(", ", ": ")),
        ),
        ({"regex": "a+", "prefix": " "}, Prefixed(" ", Regex("a+"))),
    ],
)
def test_constraints(live: Live, fields: dict, expected: object) -> None:
    generate(live, text="a", sampling_params=fields)
    assert live.engine.requests[0].sampling_params.constraint == expected


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"text": ""}, "text"),
        ({"text": []}, "text"),
        ({"text": ["a", ""]}, "text.1"),
        ({"input_ids": [[]]}, "input_ids.0"),
        ({"input_ids": [9999]}, None),
        ({"input_ids": [1.5]}, None),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"text": "a", "sampling_params": {"tempera": 1}}, "sampling_params.tempera"),
        ({"text": "a", "sampling_params": {"regex": "["}}, "sampling_params.regex"),
        ({"text": "a", "sampling_params": {"json_schema": "{"}}, "sampling_params.json_schema"),
        ({"text": "a", "sampling_params": {"regex": "a", "ebnf": "b"}}, "sampling_params.ebnf"),
        ({"text": "a", "sampling_params": [{}, {}]}, "sampling_params"),
        ({"text": ["a", "b"], "rid": ["x"]}, "rid"),
        ({"text": "a", "sampling_params": {"json_options": {"max_digits": 3}, "regex": "a"}}, None),
        (
            {
                "text": "a",
                "sampling_params": {"json_schema": "true", "json_options": {"digits": 1}},
            },
            "sampling_params.json_options",
        ),
        ({"text": "a", "sampling_params": {"prefix": "x"}}, "sampling_params.prefix"),
        ({"text": "a", "token_ids_logprob": [-1], "return_logprob": True}, None),
        ({"text": "a", "lora_path": "x"}, "lora_path"),
        ({"text": "x" * 5000}, None),
    ],
)
def test_what_is_refused(live: Live, body: dict, param: str | None) -> None:
    for stream in (False, True):
        error = error_of(live.post("/generate", **body, stream=stream))
        if param is not None:
            assert error["param"] == param
    assert generate(live, text="a")["text"] == "Hello"


def test_what_the_runtime_endpoint_asks(live: Live) -> None:
    for path in ("/get_model_info", "/model_info"):
        info = live.http.get(path).json()
        assert info["model_path"] == "models/toy"
        assert info["is_generation"] is True
        assert info["chat_template"] == "<role>text"
        assert info["control_tokens"] == ["<|end|>", "<|start|>"]
    for method in ("GET", "POST"):
        assert live.http.request(method, "/flush_cache").status_code == 200
    info = live.http.get("/server_info").json()
    assert info["internal_states"][0]["num_running_reqs"] == 0
    assert info["server_args"]["api_key"] == ""


def test_flush_while_busy(live: Live) -> None:
    gate = threading.Event()
    live.engine.script = Script(gate=gate)
    with live.http.stream("POST", "/generate", json={"text": "a", "stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        assert error_of(live.http.post("/flush_cache"))["code"] == "cache_busy"
        gate.set()
        assert list(lines)[-2] == "data: [DONE]"


def test_abort_by_rid(live: Live) -> None:
    live.engine.script = Script(gate=threading.Event())
    body = {"text": "a", "stream": True, "rid": "mine"}
    with live.http.stream("POST", "/generate", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        assert live.post("/abort_request", rid="mine").status_code == 200
        events = [line[6:] for line in lines if line.startswith("data: ")]
    assert json.loads(events[-2])["meta_info"]["finish_reason"]["type"] == "abort"
    assert events[-1] == "[DONE]"
    assert live.post("/abort_request", rid="unknown").status_code == 200
    assert error_of(live.post("/abort_request"))["param"] == "rid"
