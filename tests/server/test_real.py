"""The server over the real engine, on a tiny random model: what a double could hide."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_lite.runtime.engine import Engine
from tests.runtime.tiny import make_tiny_model
from tests.server.live import Live, error_of, hello, serving
from tests.waiting import wait_for

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"enum": [1, 22, 333]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=2048)
    engine = Engine(folder, device="cpu", dtype="float32", max_total_tokens=4096)
    with serving(engine) as live:
        yield live


@pytest.fixture(autouse=True)
def sound(real: Live) -> Iterator[None]:
    """After each test nothing runs, no slot is lost and the invariants hold."""
    yield
    assert idle(real)
    real.engine.check()


def idle(real: Live) -> bool:
    """Waits until nothing runs; whether all slots are free then."""
    wait_for(
        lambda: not sum(real.engine.stats()[k] for k in ("num_running_reqs", "num_queue_reqs"))
    )
    return real.engine.stats()["kv_used_tokens"] == 0


def test_the_text_is_the_engines(real: Live) -> None:
    params = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
    expected = real.engine.generate("abc", params)
    answer = real.post("/generate", text="abc", sampling_params=params).json()
    assert answer["output_ids"] == expected["output_ids"]
    assert answer["text"] == expected["text"]
    *events, _ = real.events("/generate", text="abc", sampling_params=params)
    assert json.loads(events[-1])["output_ids"] == expected["output_ids"]
    body = {"prompt": "abc", "temperature": 0, "max_tokens": 12, "ignore_eos": True}
    assert real.post("/v1/completions", **body).json()["choices"][0]["text"] == expected["text"]
    *events, _ = real.events("/v1/completions", **body)
    assert "".join(json.loads(e)["choices"][0]["text"] for e in events) == expected["text"]


def test_log_probabilities_are_the_engines(real: Live) -> None:
    native = real.post(
        "/generate",
        text="abc",
        sampling_params={"temperature": 0, "max_new_tokens": 1, "ignore_eos": True},
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=1,
    ).json()["meta_info"]
    body = real.post(
        "/v1/completions",
        prompt=[real.engine.tokenizer.encode("abc")],
        echo=True,
        logprobs=1,
        max_tokens=1,
        temperature=0,
        ignore_eos=True,
    ).json()
    values = body["choices"][0]["logprobs"]["token_logprobs"]
    entries = [*native["input_token_logprobs"], *native["output_token_logprobs"]]
    assert values[0] is None
    assert values[1:] == pytest.approx([entry[0] for entry in entries[1:]], abs=1e-4)
    # Greedy: the token that was generated is the most probable one.
    assert values[-1] == max(body["choices"][0]["logprobs"]["top_logprobs"][-1].values())


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_is_obeyed(real: Live, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    body = {"response_format": form, "n": 4, "seed": 1, "temperature": 1.5, "max_tokens": 200}
    texts = [""] * 4
    if stream:
        *events, _ = real.chat_events(**body)
        for event in events:
            for choice in json.loads(event)["choices"]:
                texts[choice["index"]] += choice["delta"].get("content") or ""
    else:
        choices = real.chat(**body).json()["choices"]
        assert [choice["finish_reason"] for choice in choices] == ["stop"] * 4
        texts = [choice["message"]["content"] for choice in choices]
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({"regex": "(yes|no)!"}, {"yes!", "no!"}),
        ({"guided_choice": ["red", "blue"]}, {"red", "blue"}),
        ({"structured_outputs": {"grammar": 'start: "a" | "bc"'}}, {"a", "bc"}),
        ({"ebnf": 'root ::= "x" | "y"'}, {"x", "y"}),
        ({"json_schema": '{"const": 7}'}, {"7"}),
    ],
)
def test_every_dialect_is_obeyed(real: Live, fields: dict, allowed: set[str]) -> None:
    body = real.chat(**fields, n=3, temperature=2.0).json()
    assert {choice["message"]["content"] for choice in body["choices"]} <= allowed


def test_a_required_call_is_well_formed(real: Live) -> None:
    function = {"name": "save", "parameters": SCHEMA}
    made = real.chat(
        tools=[{"type": "function", "function": function}],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=1.5,
        seed=3,
    ).json()["choices"][0]
    assert made["finish_reason"] == "tool_calls"
    [call] = made["message"]["tool_calls"]
    jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)


# vllm#51226, vllm#21310
def test_a_seed_gives_the_same_text_in_any_company(real: Live) -> None:
    body = {"prompt": "abc", "seed": 42, "max_tokens": 16, "ignore_eos": True}

    def text(fields: dict) -> str:
        return real.post("/v1/completions", **fields).json()["choices"][0]["text"]

    alone = text(body)
    others = [{**body, "prompt": f"other {i}", "seed": None} for i in range(5)]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(text, [*others[:3], body, *others[3:]]))
    assert together[3] == alone


def test_a_prompt_is_computed_once(real: Live) -> None:
    assert real.http.post("/flush_cache").status_code == 200
    prompt = "a prefix that nobody else has used before, long enough to matter"
    first = real.post("/v1/completions", prompt=prompt, max_tokens=1).json()["usage"]
    again = real.post("/v1/completions", prompt=prompt, max_tokens=1).json()["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["prompt_tokens_details"]["cached_tokens"] == len(prompt) - 1


def test_leaving_clients_leave_no_slot_behind(real: Live) -> None:
    """At any moment: queued, while the prompt is computed, while tokens come, with n > 1."""
    url = httpx.URL(real.url)
    chance = random.Random(1)
    for number in range(30):
        stream = bool(number % 2)
        body = {"messages": hello("x" * 200), "n": 1 + number % 3, "stream": stream}
        body.update({"max_tokens": 100, "ignore_eos": True})
        if number % 5 == 0:
            body = {**body, "ignore_eos": False, "regex": f"[a-z]{{{number + 5}}}"}
        data = json.dumps(body).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        with socket.create_connection((url.host, url.port), timeout=10) as sock:
            sock.sendall(head.encode() + data)
            time.sleep(chance.random() * 0.03)
    wait_for(lambda: not real.process.server.running)
    assert idle(real)


def test_the_page_shows_the_tree(real: Live) -> None:
    real.post("/v1/completions", prompt="shown in the tree", max_tokens=1)
    with real.http.stream("GET", "/debug/events") as response:
        lines = response.iter_lines()
        look = json.loads(next(lines).removeprefix("data: "))
    assert any("shown in the tree" in node["text"] for node in look["tree"])
    assert look["slots"]["total"] == 4096
    assert sum(look["slots"][kind] for kind in ("free", "evictable", "locked", "owned")) == 4096


def test_metrics_of_the_engine(real: Live) -> None:
    real.chat(max_tokens=2, ignore_eos=True)
    text = real.http.get("/metrics").text
    for name in (
        *("max_total_num_tokens", "kv_evictable_tokens", "cache_hit_rate", "token_usage"),
        *("num_used_tokens", "request_time_per_output_token_seconds_count"),
    ):
        assert f'sglang:{name}{{model_name="toy"}}' in text
    assert "sglang:generation_tokens_total" in text


def test_flushing(real: Live) -> None:
    real.post("/v1/completions", prompt="something", max_tokens=1)
    assert idle(real)
    assert real.http.post("/flush_cache").status_code == 200
    assert real.engine.stats()["kv_evictable_tokens"] == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"stop_token_ids": [9_999_999], "min_tokens": 1},
        {"stop_token_ids": [-1]},
        {"logit_bias": {"9999999": 1}},
        {"messages": hello("x" * 3000)},
        {"regex": "["},
        {"regex": "(?=a)b(?<!c)" * 2000},
        {"json_schema": {"$ref": "#"}},
        {"json_schema": {"type": "strnig"}},
        {"json_schema": {"allOf": [{"type": "string"}, {"type": "integer"}]}},
        {"ebnf": "root ::= root"},
        {"ebnf": "no grammar"},
        {"guided_grammar": "start: missing"},
        {"structural_tag": "{}"},
        {"stop_regex": "["},
        {"stop_regex": "a*"},
        {"seed": 2**70},
        {"priority": 2**70},
    ],
)
def test_what_the_engine_refuses_is_a_400(real: Live, fields: dict) -> None:
    for stream in (False, True):
        error_of(real.chat(**fields, stream=stream, max_tokens=4))
    assert real.chat(max_tokens=2).status_code == 200


def test_many_clients_at_once(real: Live) -> None:
    def ask(number: int) -> str:
        body = {"prompt": f"{number % 4} shared", "max_tokens": 8, "temperature": 0}
        if number % 3 == 0:
            body["regex"] = "[a-z]{8}"
        return real.post("/v1/completions", **body).json()["choices"][0]["text"]

    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(ask, range(48)))
    for number in range(12):
        assert texts[number] == texts[number + 12] == texts[number + 24]


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 70)
    | st.just(2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "a", "json_object", "user", "required", "é\u0000", "[", "{}"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "schema", "json", "name", "function"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
FIELDS = {
    "/v1/chat/completions": (
        *("messages", "n", "stop", "temperature", "top_p", "seed", "stream", "stream_options"),
        *("response_format", "structured_outputs", "guided_json", "regex", "tools", "tool_choice"),
        *("logprobs", "top_logprobs", "logit_bias", "stop_token_ids", "continue_final_message"),
        *("chat_template_kwargs", "max_completion_tokens", "min_tokens", "cache_salt", "priority"),
    ),
    "/v1/completions": (
        *("prompt", "echo", "logprobs", "n", "best_of", "suffix", "stream", "stop", "regex"),
        *("json_schema", "min_p", "top_k", "ignore_eos", "frequency_penalty", "rid"),
    ),
    "/generate": (
        *("text", "input_ids", "sampling_params", "stream", "return_logprob", "rid"),
        *("logprob_start_len", "top_logprobs_num", "token_ids_logprob", "return_text_in_logprobs"),
    ),
    "/v1/responses": ("input", "instructions", "text", "tools", "tool_choice", "stream"),
    "/v1/messages": (
        *("messages", "system", "tools", "tool_choice", "output_config", "stream", "thinking"),
        *("stop_sequences", "top_k", "temperature", "max_tokens"),
    ),
    "/v1/messages/count_tokens": ("messages", "system", "tools", "tool_choice", "output_config"),
    "/v1/decisions": ("input", "questions"),
    "/tokenize": ("prompt", "messages", "add_special_tokens", "parse_special"),
    "/detokenize": ("tokens", "skip_special_tokens"),
    "/abort_request": ("rid", "abort_all"),
}
BASE = {
    "/v1/chat/completions": {"messages": hello(), "max_tokens": 2},
    "/v1/completions": {"prompt": "a", "max_tokens": 2},
    "/generate": {"text": "a", "sampling_params": {"max_new_tokens": 2}},
    "/v1/responses": {"input": "a", "max_output_tokens": 2},
    "/v1/messages": {"messages": hello(), "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": hello()},
}


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, dict]:
    path = draw(st.sampled_from(sorted(FIELDS)))
    names = draw(st.lists(st.sampled_from(FIELDS[path]), max_size=4, unique=True))
    body = {**BASE.get(path, {}), **{name: draw(junk) for name in names}}
    if path == "/generate" and isinstance(body.get("sampling_params"), dict):
        name = draw(st.sampled_from(["n", "stop", "regex", "json_schema", "temperature", "top_k"]))
        body["sampling_params"] = {**body["sampling_params"], name: draw(junk)}
    return path, body


@settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(mutated())
def test_no_request_makes_a_5xx(real: Live, request: tuple[str, dict]) -> None:
    path, body = request
    response = real.post(path, **body)
    if response.status_code != 200:
        assert response.status_code in (400, 404)
        if path.startswith("/v1/messages"):
            assert response.json()["type"] == "error"
        else:
            error_of(response, response.status_code)
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert '"code":"internal_error"' not in response.text


def test_the_engine_is_sound_after_aborts_under_load(real: Live) -> None:
    done = threading.Event()

    def load(number: int) -> None:
        while not done.is_set():
            real.post("/generate", text=f"{number}", sampling_params={"max_new_tokens": 20})

    with ThreadPoolExecutor(4) as pool:
        for number in range(4):
            pool.submit(load, number)
        for _ in range(20):
            real.post("/abort_request", abort_all=True)
            time.sleep(0.01)
        done.set()


def test_a_request_given_up_while_its_grammar_compiles_is_not_left_running(
    real: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling, plain = threading.Event(), real.engine.compile

    def slow(constraint: object) -> object:
        compiling.wait(10)
        return plain(constraint)

    monkeypatch.setattr(real.engine, "compile", slow)
    url = httpx.URL(real.url)
    body = {"messages": hello(), "regex": "[a-z]{500}", "max_tokens": 500}
    data = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    aborted = real.engine.stats()["num_aborted_requests_total"]
    with socket.create_connection((url.host, url.port), timeout=10) as sock:
        sock.sendall(head.encode() + data)
        time.sleep(0.2)
    time.sleep(0.1)
    compiling.set()
    wait_for(lambda: real.engine.stats()["num_aborted_requests_total"] > aborted)
