"""Bugs that were reported for other servers, each as the smallest request, on a real socket.

The names in the comments are theirs: project#number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from tests.server.live import Live, error_of, hello, serving
from tests.server.typist import typist_engine


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with serving(typist_engine(), served_model_name="toy") as live:
        yield live


@pytest.fixture
def typing(server: Live) -> Iterator[Live]:
    """A server whose model writes ``engine.typist.text``; whole and sound after each test."""
    server.engine.typist.text, server.engine.typist.habit = "Hello", " "
    yield server
    server.engine.check()


def content(live: Live, **fields: Any) -> str:
    response = live.chat(temperature=0, **fields)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]["content"]


def streamed(live: Live, **fields: Any) -> list[dict[str, Any]]:
    *events, done = live.chat_events(temperature=0, **fields)
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(c["delta"].get("content") or "" for c in choices if c["index"] == index)


# sglang#33504, openai-node#1734
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_nested_in_both_modes(typing: Live, stream: bool) -> None:
    assert error_of(typing.chat(temperature="hot", stream=stream))["param"] == "temperature"


# sglang#31404, sglang#7035, sglang#9294, sglang#10065, vllm#58024, vllm#58025
def test_a_wrong_model_name_is_a_404_that_names_the_right_one(typing: Live) -> None:
    error = error_of(typing.chat(model="gpt-4"), 404)
    assert error["code"] == "model_not_found"
    assert "'toy'" in error["message"]
    assert typing.chat(model="default").json()["model"] == "toy"


# sglang#6997
def test_no_part_of_a_stop_text_leaks(typing: Live) -> None:
    typing.engine.typist.text = "Thought: Obs. Observation: x"
    chunks = streamed(typing, stop=["Observation"])
    assert text_of(chunks) == "Thought: Obs. "
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"][0]["matched_stop"] == "Observation"


# sglang#85
def test_the_stop_text_is_left_out_unless_asked_for(typing: Live) -> None:
    typing.engine.typist.text = "One. Two."
    assert content(typing, stop=".") == "One"
    assert content(typing, stop=".", include_stop_str_in_output=True) == "One."


# vllm#6083, vllm#7299, vllm#7179, vllm-swift#19, vllm#36379
def test_usage_comes_once_and_only_if_asked_for(typing: Live) -> None:
    chunks = streamed(typing, stream_options={"include_usage": True})
    assert [bool(chunk["usage"]) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == len("Hello") + 1
    for options in ({}, None):
        assert all("usage" not in chunk for chunk in streamed(typing, stream_options=options))


# sglang#2912, litellm#3276, vllm#16863, vllm#52398
def test_samples_keep_their_indices(typing: Live) -> None:
    chunks = streamed(typing, n=3)
    assert [text_of(chunks, index) for index in range(3)] == ["Hello"] * 3
    choices = typing.chat(n=8).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(8))


# sglang#5525
def test_cached_tokens_are_counted_once(typing: Live) -> None:
    messages = hello("a question that is asked twice")
    typing.chat(messages=messages)
    usage = typing.chat(messages=messages, n=3).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]


# dynamo#3914
def test_samples_of_a_greedy_request_are_equal(typing: Live) -> None:
    choices = typing.chat(n=2, temperature=0).json()["choices"]
    assert choices[0]["message"] == choices[1]["message"]


# exo#1691, vllm-mlx#109, ferrox#124, dynamo#12630
def test_characters_are_never_cut(typing: Live) -> None:
    typing.engine.typist.text = "안녕 👋🏽 ok"
    chunks = streamed(typing)
    assert text_of(chunks) == "안녕 👋🏽 ok"
    assert not any("�" in json.dumps(chunk, ensure_ascii=False) for chunk in chunks)


def test_the_rest_of_a_cut_character_is_flushed_at_the_end(typing: Live) -> None:
    typing.engine.typist.text = "ab안"
    texts = [content(typing, max_tokens=4), text_of(streamed(typing, max_tokens=4))]
    assert texts[0] == texts[1]
    assert texts[0].startswith("ab")


# ollama#13497, vllm#19177, standardcompletions/rfcs#2
def test_log_probabilities_have_the_tokens_true_bytes(typing: Live) -> None:
    typing.engine.typist.text = "é👋"
    choice = typing.chat(temperature=0, logprobs=True, top_logprobs=2).json()["choices"][0]
    entries = choice["logprobs"]["content"]
    written = bytes(byte for entry in entries for byte in entry["bytes"])
    assert written.removesuffix(b"<|end|>").decode() == "é👋"
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


# vllm#34875, vllm#27300
def test_alternatives_are_decoded_one_by_one(typing: Live) -> None:
    typing.engine.typist.text = "“x”"
    choice = typing.chat(temperature=0, logprobs=True, top_logprobs=5).json()["choices"][0]
    for entry in choice["logprobs"]["content"]:
        names = [other["token"] for other in entry["top_logprobs"]]
        assert len(set(names)) == 5
        assert all(names)
        assert not any("�" in name for name in names)


# vllm#6521
def test_echo_without_generation(typing: Live) -> None:
    body = {"prompt": "ab", "echo": True, "max_tokens": 0, "logprobs": 1}
    choice = typing.post("/v1/completions", **body).json()["choices"][0]
    assert choice["text"] == "ab"
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert len(choice["logprobs"]["tokens"]) == 2


# CVE-2024-8768; letta#3381, mlx-omni#117
def test_empty_prompts_and_conversations(typing: Live) -> None:
    error_of(typing.post("/v1/completions", prompt=""))
    assert error_of(typing.chat(messages=[]))["param"] == "messages"


# koboldcpp#1503, simpleAI#1
def test_nulls_are_defaults(typing: Live) -> None:
    assert content(typing, seed=None, stop=None, max_tokens=None, n=None) == "Hello"


# sglang#3971, sglang#4226, model_server#3877, SillyTavern#4429
def test_a_final_message_is_continued(typing: Live) -> None:
    typing.engine.typist.text = "It is noon."
    messages = [*hello("time?"), {"role": "assistant", "content": "It is"}]
    text = content(
        typing, messages=messages, continue_final_message=True, add_generation_prompt=False
    )
    assert text == " noon."


# vllm#42474, vllm#33418
def test_too_many_tokens_are_clamped(typing: Live) -> None:
    assert content(typing, max_tokens=999_999) == "Hello"


# vllm#7390, vllm#17313, vllm#19270
def test_a_broken_regex_leaves_the_server_alive(typing: Live) -> None:
    assert error_of(typing.chat(regex="["))["code"] == "invalid_regex"
    assert content(typing) == "Hello"


# vllm#45346
@pytest.mark.parametrize("options", [{"json_object": False}, {"json": ""}])
def test_structured_outputs_that_ask_for_nothing(typing: Live, options: dict) -> None:
    error_of(typing.chat(structured_outputs=options))
    assert content(typing) == "Hello"


# vllm#53975, vllm#12692, outlines#1887
def test_old_names_of_constraints_are_obeyed(typing: Live) -> None:
    text = content(typing, guided_json={"enum": ["a", "b"]})
    assert json.loads(text) in ("a", "b")
    assert content(typing, guided_choice=["No", "Yes"]) in ("No", "Yes")


# llama.cpp#19051
def test_a_pattern_with_a_needless_escape_is_obeyed_or_refused(typing: Live) -> None:
    response = typing.chat(json_schema={"type": "string", "pattern": r"^a\!$"}, temperature=0)
    if response.status_code == 200:
        assert json.loads(response.json()["choices"][0]["message"]["content"]) == "a!"
    else:
        error_of(response)


# sglang#40083, vllm#12201, vllm#16880
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": 3},
        {"type": "integer", "multipleOf": 7, "minimum": 8, "maximum": 20},
        {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
        {
            "type": "array",
            "items": {"type": "string", "maxLength": 2},
            "uniqueItems": True,
            "minItems": 2,
            "maxItems": 3,
        },
        {"type": "array", "items": {"type": "object"}, "uniqueItems": True, "minItems": 2},
    ],
)
def test_keywords_are_obeyed_or_refused_by_name(typing: Live, schema: dict) -> None:
    typing.engine.typist.text, typing.engine.typist.habit = "[1,1,1]", "1"
    response = typing.chat(json_schema=schema, temperature=0, max_tokens=200)
    if response.status_code == 400:
        assert error_of(response)["code"] == "unsupported_schema_keyword"
        return
    choice = response.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(choice["message"]["content"]), schema)


# omlx#2990, vllm#38696, vllm#4093, vllm#13260
@pytest.mark.parametrize("gaps", [None, 16])
def test_whitespace_and_zeros_in_json_are_bounded(gaps: int | None) -> None:
    """The model would write blanks for ever, and 1.000… where it may not."""
    schema = {"properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
    engine = typist_engine()
    engine.typist.text = '{"a":' + " " * 500
    with serving(engine, constrained_json_max_whitespace_cnt=gaps) as live:
        fields = {"json_schema": {"type": "object", **schema}, "temperature": 0, "max_tokens": 300}
        choice = live.chat(**fields).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert json.loads(choice["message"]["content"]) == {"a": 1}


# vllm-ascend#5148
def test_response_format_text_is_no_constraint(typing: Live) -> None:
    assert content(typing, response_format={"type": "text"}) == "Hello"


# vllm#54195, vllm#54196, sglang#27398, sglang#22144, sglang#28088, CVE-2026-34756
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"stop_token_ids": [9_999_999], "min_tokens": 3}),
        ("/v1/chat/completions", {"stop_token_ids": [None]}),
        ("/v1/chat/completions", {"n": 1_000_000}),
        ("/v1/chat/completions", {"temperature": -1}),
        ("/generate", {"token_ids_logprob": [-1], "return_logprob": True}),
        ("/generate", {"sampling_params": {"stop_token_ids": [9_999_999]}}),
    ],
)
def test_numbers_out_of_range(typing: Live, path: str, fields: dict) -> None:
    base = {"text": "a"} if path == "/generate" else {"messages": hello()}
    error_of(typing.post(path, **base, **fields))
    assert content(typing) == "Hello"


# vllm#53269, vllm#47963
@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_call_that_is_cut_ends_with_length(typing: Live, stream: bool) -> None:
    fields = {
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "required",
        "max_tokens": 30,
    }
    if stream:
        reason = streamed(typing, **fields)[-1]["choices"][0]["finish_reason"]
    else:
        reason = typing.chat(**fields).json()["choices"][0]["finish_reason"]
    assert reason == "length"


# vllm#9209, litellm#35663, ollama#7963, vllm#27572, vllm#34887, model_server#3838,
# litellm-vscode-chat#281
def test_a_streamed_call_is_whole(typing: Live) -> None:
    chunks = streamed(
        typing, tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="required"
    )
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    deltas = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
    assert deltas[0]["function"]["name"] == "f"
    assert json.loads("".join(delta["function"]["arguments"] for delta in deltas)) == {}
    assert choices[-1]["finish_reason"] == "tool_calls"
