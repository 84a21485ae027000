"""``/v1/completions``."""

from __future__ import annotations

import json

import openai
import pytest

from sglang_lite.constraint import JsonSchema
from tests.server.live import Live, error_of
from tests.server.scripted import Script

PATH = "/v1/completions"


def complete(live: Live, **body: object) -> dict:
    response = live.post(PATH, **{"prompt": "ab", **body})
    assert response.status_code == 200, response.text
    return response.json()


def test_answer(live: Live) -> None:
    body = complete(live)
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    [choice] = body["choices"]
    assert (choice["text"], choice["finish_reason"], choice["logprobs"]) == ("Hello", "stop", None)
    assert body["usage"]["prompt_tokens"] == 2
    assert live.engine.requests[0].sampling_params.max_new_tokens == 16


@pytest.mark.parametrize("prompt", ["ab", [97, 98], ["ab"], [[97, 98]]])
def test_prompt_forms(live: Live, prompt: object) -> None:
    assert len(complete(live, prompt=prompt)["choices"]) == 1
    assert live.engine.requests[0].input_ids == (97, 98)


def test_choices_of_many_prompts(live: Live) -> None:
    live.engine.script = lambda request, prompt: Script((prompt.upper(),))
    body = complete(live, prompt=["a", "b"], n=2)
    assert [(c["index"], c["text"]) for c in body["choices"]] == [
        (0, "A"),
        (1, "A"),
        (2, "B"),
        (3, "B"),
    ]
    assert body["usage"]["prompt_tokens"] == 2
    assert body["usage"]["completion_tokens"] == 4


def test_echo_with_logprobs_as_lm_eval_wants_them(live: Live) -> None:
    live.engine.script = Script(("c",))
    body = complete(live, prompt=[[97, 98]], echo=True, logprobs=1, max_tokens=1, temperature=0)
    choice = body["choices"][0]
    assert choice["text"] == "abc"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["a", "b", "c"]
    assert logprobs["token_logprobs"] == [None, -0.5, -0.5]
    assert logprobs["top_logprobs"] == [None, {"b": -0.5}, {"c": -0.5}]
    assert logprobs["text_offset"] == [0, 1, 2]


def test_echo_without_generation(live: Live) -> None:
    choice = complete(live, prompt="ab", echo=True, logprobs=1, max_tokens=0)["choices"][0]
    assert choice["text"] == "ab"
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5]
    assert choice["finish_reason"] == "length"


def test_logprobs_hold_the_sampled_token_and_count_characters(live: Live) -> None:
    live.engine.script = Script(("é!",))
    logprobs = complete(live, logprobs=0)["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [
        {"bytes:\\xc3": -0.5},
        {"bytes:\\xa9": -0.5},
        {"!": -0.5},
    ]
    assert logprobs["text_offset"] == [2, 3, 3]


def test_stream(live: Live) -> None:
    *events, done = live.events(
        PATH, prompt="ab", echo=True, stream_options={"include_usage": True}
    )
    chunks = [json.loads(event) for event in events]
    assert done == "[DONE]"
    assert [c["choices"][0]["text"] for c in chunks[:-1]] == ["abHel", "lo", ""]
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None, None, "stop"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 5
    assert {c["object"] for c in chunks} == {"text_completion"}


def test_stream_of_logprobs_has_running_offsets(live: Live) -> None:
    *events, _ = live.events(PATH, prompt="ab", logprobs=1)
    offsets = [
        offset
        for event in events
        for offset in json.loads(event)["choices"][0]["logprobs"]["text_offset"]
    ]
    assert offsets == [2, 3, 4, 5, 6]


def test_constraint(live: Live) -> None:
    complete(live, json_schema='{"type": "integer"}')
    assert live.engine.requests[0].sampling_params.constraint == JsonSchema(
        '{"type": "integer"}', max_digits=40, separators=(", ", ": ")
    )


def test_best_of_that_changes_nothing(live: Live) -> None:
    assert complete(live, best_of=1)["choices"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a"] * 257}, "prompt"),
        ({"prompt": [9999]}, None),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"messages": []}, "messages"),
    ],
)
def test_what_is_refused(live: Live, body: dict, param: str | None) -> None:
    error = error_of(live.post(PATH, **{"prompt": "ab", **body}))
    if param is not None:
        assert error["param"] == param


def test_openai_client(live: Live) -> None:
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none")
    made = client.completions.create(model="toy", prompt="ab", logprobs=1)
    assert made.choices[0].text == "Hello"
    assert made.choices[0].logprobs.tokens == list("Hello")
    stream = client.completions.create(model="toy", prompt="ab", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "Hello"
