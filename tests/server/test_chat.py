"""``/v1/chat/completions``: fields, order of chunks, and the openai client."""

from __future__ import annotations

import json

import openai
import pytest
from pydantic import BaseModel

from sglang_lite.runtime.messages import FinishReason
from tests.server.live import Live, error_of, hello
from tests.server.scripted import EOS, Script


def client(live: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)


def test_answer(live: Live) -> None:
    body = live.chat(model="toy").json()
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert body["model"] == "toy"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "matched_stop": EOS,
        }
    ]
    assert body["usage"]["prompt_tokens"] == len("<user>hi\n<assistant>")
    assert body["usage"]["completion_tokens"] == 5
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 5


def test_stream_order(live: Live) -> None:
    *events, done = live.chat_events(n=2, stream_options={"include_usage": True})
    assert done == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    *rest, last = chunks
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 10
    assert all(chunk["usage"] is None for chunk in rest)
    for index in (0, 1):
        choices = [c["choices"][0] for c in rest if c["choices"][0]["index"] == index]
        assert [choice["delta"] for choice in choices] == [
            {"role": "assistant", "content": ""},
            {"content": "Hel"},
            {"content": "lo"},
            {},
        ]
        assert [choice["finish_reason"] for choice in choices] == [None, None, None, "stop"]


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_no_usage_chunk_unless_asked(live: Live, options: dict | None) -> None:
    *events, _ = live.chat_events(stream_options=options)
    assert all(json.loads(event)["choices"] for event in events)
    assert all("usage" not in json.loads(event) for event in events)


def test_continuous_usage(live: Live) -> None:
    *events, _ = live.chat_events(stream_options={"continuous_usage_stats": True})
    counts = [json.loads(e)["usage"] for e in events]
    assert [c and c["completion_tokens"] for c in counts] == [None, 3, 5, 5]


def test_stream_headers(live: Live) -> None:
    with live.http.stream(
        "POST", "/v1/chat/completions", json={"messages": hello(), "stream": True}
    ) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        response.read()


def test_nulls_are_defaults(live: Live) -> None:
    nulls = dict.fromkeys(
        ("n", "stop", "seed", "temperature", "top_p", "max_tokens", "tools", "response_format")
    )
    assert live.chat(**nulls, lora_path=None, return_routed_experts=False).status_code == 200
    params = live.engine.requests[0].sampling_params
    assert (params.n, params.stop, params.seed, params.temperature) == (1, (), None, 1.0)
    assert params.max_new_tokens is None


def test_parameters_arrive(live: Live) -> None:
    live.chat(
        max_completion_tokens=7,
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        min_p=0.1,
        n=2,
        seed=42,
        stop=["a", "b"],
        stop_token_ids=[3],
        frequency_penalty=1,
        presence_penalty=-1,
        repetition_penalty=1.5,
        logit_bias={"5": -3},
        ignore_eos=True,
        min_tokens=2,
        include_stop_str_in_output=True,
        logprobs=True,
        top_logprobs=2,
    )
    request = live.engine.requests[0]
    params = request.sampling_params
    assert params.max_new_tokens == 7
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 3, 0.1)
    assert (params.n, params.seed, params.stop) == (2, 42, ("a", "b"))
    assert params.stop_token_ids == (3,)
    assert (params.frequency_penalty, params.presence_penalty) == (1, -1)
    assert params.repetition_penalty == 1.5
    assert params.logit_bias == ((5, -3.0),)
    assert params.ignore_eos
    assert params.no_stop_trim
    assert params.min_new_tokens == 2
    assert request.return_logprob
    assert request.top_logprobs_num == 2


def test_max_tokens_is_clamped_to_the_context(live: Live) -> None:
    assert live.chat(max_tokens=999_999).status_code == 200
    request = live.engine.requests[0]
    assert request.sampling_params.max_new_tokens == 4096 - len(request.input_ids)


def test_logprobs_have_true_bytes(live: Live) -> None:
    live.engine.script = Script(("é",))
    content = live.chat(logprobs=True, top_logprobs=1).json()["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in content] == [[0xC3], [0xA9]]
    assert bytes(b for entry in content for b in entry["bytes"]).decode() == "é"
    assert content[0]["token"] == "bytes:\\xc3"
    assert [len(entry["top_logprobs"]) for entry in content] == [1, 1]


def test_logprobs_stream(live: Live) -> None:
    *events, _ = live.chat_events(logprobs=True)
    entries = [
        entry["token"]
        for event in events
        for entry in ((json.loads(event)["choices"][0]["logprobs"] or {}).get("content") or [])
    ]
    assert "".join(entries) == "Hello"


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": None}, "missing_required_parameter", "messages"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages.0.content"),
        ({"messages": [{"role": "x", "content": "a"}]}, "invalid_value", "messages.0.role"),
        ({"messages": "hi"}, "invalid_type", "messages"),
        ({"temperature": -1}, "invalid_value", "temperature"),
        ({"temperature": 2.1}, "invalid_value", "temperature"),
        ({"temperature": "hot"}, "invalid_type", "temperature"),
        ({"top_p": 0}, "invalid_value", "top_p"),
        ({"n": 1_000_000}, "invalid_value", "n"),
        ({"n": 0}, "invalid_value", "n"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_tokens": True}, "invalid_type", "max_tokens"),
        ({"min_tokens": 9, "max_tokens": 3}, "invalid_value", "min_tokens"),
        ({"seed": 2**63}, "invalid_value", "seed"),
        ({"stop": ["x"] * 20 + [str(i) for i in range(33)]}, "invalid_value", "stop"),
        ({"stop_token_ids": [None]}, "invalid_type", "stop_token_ids.0"),
        ({"stop_token_ids": [9_999_999]}, "invalid_value", "stop_token_ids"),
        ({"logit_bias": {"a": 1}}, "invalid_value", "logit_bias"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
        ({"chat_template": "x"}, "unsupported_value", "chat_template"),
        ({"chat_template_kwargs": {"tokenize": True}}, "invalid_value", None),
        ({"temprature": 1}, "unknown_parameter", "temprature"),
        ({"continue_final_message": True}, "invalid_value", "continue_final_message"),
        ({"model": "nope"}, "model_not_found", "model"),
    ],
)
def test_bad_fields(live: Live, fields: dict, code: str, param: str | None) -> None:
    error = error_of(live.chat(**fields), 404 if code == "model_not_found" else 400)
    assert error["code"] == code
    if param is not None:
        assert error["param"] == param
    if code == "unknown_parameter":
        assert "temperature" in error["message"]
    if code == "model_not_found":
        assert "'toy'" in error["message"]


def test_the_same_error_with_and_without_stream(live: Live) -> None:
    errors = [error_of(live.chat(n=65, stream=stream)) for stream in (False, True)]
    assert errors[0] == errors[1]


def test_prompt_longer_than_the_context(live: Live) -> None:
    error = error_of(live.chat(messages=hello("x" * 5000)))
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length is 4096 tokens" in error["message"]
    assert live.chat().status_code == 200


def test_images_are_refused(live: Live) -> None:
    part = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}
    error = error_of(live.chat(messages=[{"role": "user", "content": [part]}]))
    assert error["code"] == "unsupported_value"
    assert error["param"] == "messages.0.content.0"


def test_text_parts_and_roles(live: Live) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "s"}, {"role": "user", "content": parts}]
    assert live.chat(messages=messages).status_code == 200
    prompt = bytes(live.engine.requests[0].input_ids).decode()
    assert prompt == "<system>s\n<user>ab\n<assistant>"


def test_continue_final_message(live: Live) -> None:
    messages = [*hello(), {"role": "assistant", "content": "It is"}]
    live.chat(messages=messages, continue_final_message=True, add_generation_prompt=False)
    assert bytes(live.engine.requests[0].input_ids).decode() == "<user>hi\n<assistant>It is"
    error_of(live.chat(messages=messages, continue_final_message=True, add_generation_prompt=True))


def test_a_templates_refusal_is_a_400_with_its_words(live: Live) -> None:
    error = error_of(live.chat(messages=[*hello(), *hello()]))
    assert error["param"] == "messages"
    assert "Conversation roles must alternate" in error["message"]


def test_broken_arguments_in_the_history_are_shown_as_they_are(live: Live) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{broken"}}
    messages = [*hello(), {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert live.chat(messages=messages).status_code == 200
    assert b"{broken" in bytes(live.engine.requests[0].input_ids)


def test_known_but_ignored_fields_are_named(live: Live) -> None:
    response = live.chat(user="me", store=False, metadata={"a": "b"})
    assert response.headers["x-ignored-fields"] == "user,metadata"


def test_cached_tokens_are_not_multiplied_by_n(live: Live) -> None:
    live.engine.script = Script(cached=7)
    usage = live.chat(n=3).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 7
    assert usage["completion_tokens"] == 15


def test_length(live: Live) -> None:
    assert live.chat(max_tokens=2).json()["choices"][0]["finish_reason"] == "length"


def test_openai_client(live: Live) -> None:
    made = client(live).chat.completions.create(
        model="toy", messages=hello(), n=None, stop=None, temperature=None, seed=None
    )
    assert made.choices[0].message.content == "Hello"
    stream = client(live).chat.completions.create(model="toy", messages=hello(), stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in stream) == "Hello"


def test_openai_client_sees_errors(live: Live) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as caught:
        client(live).chat.completions.create(model="toy", messages=hello(), temperature=3)
    assert caught.value.param == "temperature"
    assert caught.value.request_id
    with pytest.raises(openai.NotFoundError, match="toy"):
        client(live).chat.completions.create(model="gpt", messages=hello())


class Person(BaseModel):
    name: str
    age: int


def test_openai_parse(live: Live) -> None:
    live.engine.script = Script(('{"name": "Ada"', ', "age": 36}'))
    made = client(live).chat.completions.parse(
        model="toy", messages=hello(), response_format=Person
    )
    assert made.choices[0].message.parsed == Person(name="Ada", age=36)
    constraint = live.engine.requests[0].sampling_params.constraint
    assert json.loads(constraint.schema)["required"] == ["name", "age"]
    live.engine.script = Script(('{"name": "A',), FinishReason("length"))
    with pytest.raises(openai.LengthFinishReasonError):
        client(live).chat.completions.parse(model="toy", messages=hello(), response_format=Person)


def test_openai_stream_helper(live: Live) -> None:
    with client(live).chat.completions.stream(model="toy", messages=hello()) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_completion().choices[0].message.content == "Hello"
    assert "content.delta" in kinds
