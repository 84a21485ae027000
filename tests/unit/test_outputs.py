"""Outputs that are joined say the same as one after the other."""

from __future__ import annotations

from sglang_lite.outputs import FinishReason, Logprobs, RequestOutput, Usage, joined


def test_outputs_of_one_sample_become_one() -> None:
    first, end = Logprobs([(None, 1)]), FinishReason("stop", matched=7)
    outputs = [
        RequestOutput("r", 0, "a", (1,), Logprobs([(-1.0, 1)], [[(-1.0, 1)]]), first),
        RequestOutput("r", 1, "x", (9,)),
        RequestOutput("r", 0, "", (2,), Logprobs([(-2.0, 2)], [[(-2.0, 2)]])),
        RequestOutput("r", 0, "bc", (3,), None, None, end, Usage(1, 3)),
    ]
    whole, other = joined(outputs)
    assert (whole.text, whole.token_ids) == ("abc", (1, 2, 3))
    assert whole.logprobs is not None
    assert whole.logprobs.tokens == [(-1.0, 1), (-2.0, 2)]
    assert whole.logprobs.top == [[(-1.0, 1)], [(-2.0, 2)]]
    assert whole.prompt_logprobs is first
    assert (whole.finish_reason, whole.usage.completion_tokens) == (end, 3)
    assert other is outputs[1]


def test_single_outputs_are_left_alone() -> None:
    output = RequestOutput("r", 0, "a", (1,))
    assert joined([output]) == [output]
    assert joined([]) == []
