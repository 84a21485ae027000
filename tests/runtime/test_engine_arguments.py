"""What a call may not say: refused in the caller's thread, with the field, the value, and what is
accepted; nothing of it reaches a step that other requests share."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime.engine import Engine
from sglang_lite.runtime.messages import GenerateRequest
from tests.runtime.toy import expected_greedy, greedy, ids_of, toy_engine

LOGPROBS: dict[str, Any] = {"prompt": "a", "return_logprob": True}
WRONG: list[tuple[str, Any, dict[str, Any]]] = [
    ("input_ids", [], {}),
    ("input_ids", 5, {}),
    ("input_ids", "ab", {}),
    ("input_ids", [1.5], {}),
    ("input_ids", [[]], {}),
    ("input_ids", [1, 2.0], {}),
    ("input_ids", [1, True], {}),
    ("input_ids", [-1], {}),
    ("input_ids", [10**6], {}),
    ("prompt", 5, {}),
    ("prompt", [], {}),
    ("prompt", ["a", 5], {}),
    ("return_logprob", 1, {"prompt": "a"}),
    ("return_logprob", "yes", {"prompt": "a"}),
    ("logprob_start_len", "x", LOGPROBS),
    ("logprob_start_len", -2, LOGPROBS),
    ("logprob_start_len", 2, LOGPROBS),
    ("top_logprobs_num", 1.5, LOGPROBS),
    ("top_logprobs_num", True, LOGPROBS),
    ("top_logprobs_num", 65, LOGPROBS),
    ("token_ids_logprob", 5, LOGPROBS),
    ("token_ids_logprob", [True], LOGPROBS),
    ("token_ids_logprob", ["a"], LOGPROBS),
    ("rid", 5, {"prompt": "a"}),
    ("rid", 0, {"prompt": "a"}),
    ("priority", 1.5, {"prompt": "a"}),
    ("priority", "high", {"prompt": "a"}),
    ("cache_salt", 5, {"prompt": "a"}),
    ("stream", 1, {"prompt": "a"}),
    ("return_text_in_logprobs", "no", LOGPROBS),
    ("sampling_params", 5, {"prompt": "a"}),
]


@pytest.mark.parametrize(("name", "value", "beside"), WRONG)
def test_a_wrong_argument_is_named(
    engine: Engine, name: str, value: Any, beside: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        engine.generate(**{"sampling_params": greedy(4), **beside, name: value})
    assert name in str(caught.value)
    assert engine.stats()["num_running_reqs"] == engine.stats()["num_queue_reqs"] == 0


def test_a_request_made_by_hand_is_checked_too(engine: Engine) -> None:
    """Half a candidate failed the whole step, and with it the requests beside it."""
    prompt = ids_of(engine, "beside")
    beside = engine.generate(input_ids=prompt, sampling_params=greedy(300), stream=True)
    with pytest.raises(InvalidRequest, match="top_logprobs_num"):
        engine.submit(GenerateRequest((1, 2), return_logprob=True, top_logprobs_num=1.5))  # type: ignore[arg-type]
    outputs = [*beside][-1]["output_ids"]
    assert outputs == expected_greedy(prompt, 300)


def test_a_higher_priority_is_admitted_first() -> None:
    with toy_engine(eos_bias=-1000.0, max_running_requests=1) as engine:
        streams = [
            engine.generate(
                prompt=text,
                sampling_params=greedy(40),
                rid=text,
                priority=priority,
                stream=True,
            )
            for text, priority in (("first", 0), ("low", -1), ("middle", 0), ("high", 7))
        ]
        results = {}
        for stream in streams:
            last = [*stream][-1]
            results[last["meta_info"]["id"]] = last["meta_info"]["queue_time"]
        assert results["high"] < results["middle"] < results["low"]


def test_prefixes_of_other_salts_are_not_shared(engine: Engine) -> None:
    def cached(salt: str) -> int:
        call = engine.generate(input_ids=[5] * 20, sampling_params=greedy(2), cache_salt=salt)
        return call["meta_info"]["cached_tokens"]

    assert [cached("a"), cached("b"), cached("a"), cached("")] == [0, 0, 19, 0]
