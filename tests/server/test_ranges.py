"""Every numeric and enumerated field of the requests at both ends of its range."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.live import Live, error_of, hello

HUGE = 2**63

CHAT: dict[str, tuple[list[Any], list[Any]]] = {
    "temperature": ([0, 0.5, 2], [-0.01, 2.01, "1", True, [1]]),
    "top_p": ([0.01, 1], [0, 1.01, -1, "1"]),
    "top_k": ([-1, 0, 1, 50_000], [-2, 1.5, "1"]),
    "min_p": ([0, 1], [-0.1, 1.1]),
    "frequency_penalty": ([-2, 2], [-2.1, 2.1]),
    "presence_penalty": ([-2, 2], [-2.1, 2.1]),
    "repetition_penalty": ([0.01, 2], [0, -1, 2.1]),
    "n": ([1, 64], [0, -1, 65, 1.5, "2", HUGE]),
    "seed": ([0, -HUGE, HUGE - 1], [HUGE, -HUGE - 1, 0.5, "1"]),
    "max_tokens": ([1, 10**9], [0, -1, 1.5, "9", True]),
    "max_completion_tokens": ([1, 10**9], [0, -1]),
    "min_tokens": ([0, 3], [-1, 1.5]),
    "stop": (["a", [str(i) for i in range(32)], "x" * 1024],
             ["", [""], [str(i) for i in range(33)], [1], "x" * 1025, {"a": 1}]),
    "stop_token_ids": ([[0], [257], []], [[-1], [258], [HUGE], [None], ["1"], 3]),
    "logit_bias": ([{"0": -100}, {"257": 100}, {}], [{"-1": 1}, {"a": 1}, {"1": 101}, [1]]),
    "stream": ([True, False], [1, "true"]),
    "ignore_eos": ([True, False], [1, "true"]),
    "skip_special_tokens": ([True, False], [0]),
    "priority": ([0, -(2**31), 2**31 - 1], [2**31, -(2**31) - 1, 1.5]),
    "cache_salt": (["", "x" * 128], ["x" * 129, 1]),
    "rid": (["a-1.b:c_D", "x" * 128], ["", "a b", "x" * 129, "é"]),
    "request_id": (["a-1"], ["a\n"]),
    "timeout": ([0.5, 1000], [0, -1, "1"]),
    "return_token_ids": ([True], ["yes"]),
    "logprobs": ([True, False], [5, "true"]),
    "parallel_tool_calls": ([True, False], ["no"]),
    "tool_choice": (["none", "auto"], ["required", "any", {"type": "function"}, 1]),
    "response_format": (
        [{"type": "text"}, {"type": "json_object"}],
        ["json", {"type": "xml"}, {"type": "json_schema"}, {}, {"type": "text", "schema": {}}],
    ),
    "chat_template_kwargs": (
        [{}, {"enable_thinking": False}],
        [{"tools": 1}, {"chat_template": "x"}, {"a b": 1}, {"a": "x" * 5000}, [1]],
    ),
    "stream_options": ([None], [{}, {"include_usage": True}, 1]),
    "tools": ([None], [[], {}, [{}], [{"type": "function"}], [{"type": "retrieval"}]]),
}  # fmt: skip
COMPLETION: dict[str, tuple[list[Any], list[Any]]] = {
    "max_tokens": ([1, 10**9], [0, -1]),
    "logprobs": ([0, 20], [-1, 21, True, 1.5]),
    "best_of": ([1], [0, 2]),
    "suffix": ([""], ["x", 1]),
    "echo": ([True, False], [1]),
    "prompt": (["a", ["a"] * 256, [1], [[1], [2]]], ["", [], [""], [[]], None, [258], [-1], 3]),
    "add_special_tokens": ([True, False], [1]),
}  # fmt: skip
NATIVE: dict[str, tuple[list[Any], list[Any]]] = {
    "max_new_tokens": ([0, 1, 10**9], [-1, 1.5]),
    "temperature": ([0, 100], [-1, "1"]),
    "top_k": ([-1, 0, 5], [-2]),
    "n": ([1, 64], [0, 65]),
    "sampling_seed": ([0, HUGE - 1], [HUGE]),
    "stop": (["a", ["b"]], [[""], 1]),
    "stop_token_ids": ([[0]], [[258], [-1]]),
    "min_new_tokens": ([0], [-1]),
    "ignore_eos": ([True], [1]),
    "stop_outside": ([True, False], [1, "yes"]),
}
GENERATE: dict[str, tuple[list[Any], list[Any]]] = {
    "logprob_start_len": ([-1, 0, 1], ["0", 1.5]),
    "top_logprobs_num": ([0, 20], ["1", 1.5]),
    "token_ids_logprob": ([[0], [257]], [[258], [-1], ["a"]]),
    "return_logprob": ([True, False], [1]),
    "priority": ([0, 5], [2**31]),
    "timeout": ([1], [0]),
}


def cases(table: dict[str, tuple[list[Any], list[Any]]]) -> list[Any]:
    return [pytest.param(name, *ranges, id=name) for name, ranges in table.items()]


def check(live: Live, path: str, bodies: list[tuple[Any, dict[str, Any]]], ok: bool) -> None:
    for value, body in bodies:
        response = live.post(path, **body)
        assert (response.status_code == 200) == ok, (value, response.text)
        if not ok:
            error_of(response)


@pytest.mark.parametrize(("name", "good", "bad"), cases(CHAT))
def test_chat(live: Live, name: str, good: list[Any], bad: list[Any]) -> None:
    for ok, values in ((True, good), (False, bad)):
        bodies = [(value, {"messages": hello(), name: value}) for value in values]
        check(live, "/v1/chat/completions", bodies, ok)


@pytest.mark.parametrize(("name", "good", "bad"), cases(COMPLETION))
def test_completions(live: Live, name: str, good: list[Any], bad: list[Any]) -> None:
    for ok, values in ((True, good), (False, bad)):
        bodies = [(value, {"prompt": "a", name: value}) for value in values]
        check(live, "/v1/completions", bodies, ok)


@pytest.mark.parametrize(("name", "good", "bad"), cases(NATIVE))
def test_generate(live: Live, name: str, good: list[Any], bad: list[Any]) -> None:
    for ok, values in ((True, good), (False, bad)):
        bodies = [(value, {"text": "ab", "sampling_params": {name: value}}) for value in values]
        check(live, "/generate", bodies, ok)


@pytest.mark.parametrize(("name", "good", "bad"), cases(GENERATE))
def test_generate_options(live: Live, name: str, good: list[Any], bad: list[Any]) -> None:
    for ok, values in ((True, good), (False, bad)):
        bodies = [(value, {"text": "ab", name: value}) for value in values]
        check(live, "/generate", bodies, ok)
