"""Overlap is invisible: whatever is asked for, under whatever pressure, results are the same."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_lite.constrained import GrammarCompiler, GrammarMatcher
from sglang_lite.outputs import RequestOutput
from sglang_lite.runtime import runner
from sglang_lite.runtime.messages import GenerateRequest
from sglang_lite.runtime.request import Request
from sglang_lite.sampling_params import SamplingParams
from tests.runtime.bench import Bench
from tests.runtime.toy import toy_tokenizer

COMPILER = GrammarCompiler(toy_tokenizer().vocabulary)
SLOTS = 36
CONTEXT = 80

PARAMS = st.sampled_from(
    [
        {"temperature": 0.0},
        {"temperature": 0.0, "ignore_eos": True},
        {"temperature": 1.3, "top_p": 0.9, "n": 2},
        {"temperature": 1.0, "seed": 7, "top_k": 5, "min_new_tokens": 6},
        {"temperature": 0.8, "frequency_penalty": 1.0, "repetition_penalty": 1.2},
        {"temperature": 1.0, "stop": ["a", "#!"], "min_p": 0.01},
        {"temperature": 1.0, "stop_regex": "[0-9]{2}", "logit_bias": {17: 4.0, 18: 4.0}},
        {"temperature": 1.0, "regex": "[a-c]{2,4}, and so on, [0-9]+;"},
        {"temperature": 0.0, "regex": "(yes|no|maybe not)"},
        {"temperature": 1.0, "regex": "[a-z]+( or [!-~]*)?", "stop_outside": True, "n": 2},
        {"temperature": 0.0, "regex": "([!-~])+", "stop_outside": True, "min_new_tokens": 3},
        {"temperature": 1.0, "regex": "([a-d]|#)*", "stop": ["#"], "n": 2},
        {"temperature": 1.0, "json_schema": {"enum": [{"name": "x"}, {"name": "yz"}, [1, 2]]}},
    ]
)


@st.composite
def sources(draw: st.DrawFn) -> GenerateRequest:
    # Few tokens, so that prefixes are shared in every way.
    prompt = draw(st.lists(st.sampled_from([1, 2]), min_size=1, max_size=9))
    prompt = (prompt * draw(st.integers(1, 4)))[: SLOTS - 1]
    params = draw(PARAMS)
    count = draw(st.integers(params.get("min_new_tokens", 0), 25))
    fields: dict[str, Any] = {**params, "max_new_tokens": count}
    logprobs = draw(st.booleans())
    return GenerateRequest(
        tuple(prompt),
        SamplingParams.from_dict(fields),
        return_logprob=logprobs,
        logprob_start_len=len(prompt) // 2 if logprobs else -1,
        top_logprobs_num=draw(st.sampled_from([0, 2])) if logprobs else 0,
        token_ids_logprob=draw(st.sampled_from([(), (3, 5, 9)])) if logprobs else (),
        priority=draw(st.integers(0, 1)),
    )


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    asked=st.lists(sources(), min_size=1, max_size=7),
    aborts=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 13)), max_size=3),
    slots=st.sampled_from([SLOTS, 60, 2000]),
    chunk=st.integers(1, 40),
    running=st.integers(1, 6),
    deterministic=st.booleans(),
)
def test_overlap_changes_nothing(
    asked: list[GenerateRequest],
    aborts: list[tuple[int, int]],
    slots: int,
    chunk: int,
    running: int,
    deterministic: bool,
) -> None:
    options = {
        "slots": slots,
        "context_length": CONTEXT,
        "chunked_prefill_size": chunk,
        "max_running_requests": running,
        "deterministic": deterministic,
    }
    expected = run(Bench(**options, disable_overlap_schedule=True), asked, [])
    results = run(Bench(**options, disable_overlap_schedule=False), asked, aborts)
    for right, got in zip(expected, results, strict=True):
        assert got["reasons"] == [got["reason"]], "one end, and nothing after it"
        if got["reason"].type == "abort":
            assert got["tokens"] == right["tokens"][: len(got["tokens"])]
            assert right["text"].startswith(got["text"])
        else:
            assert got == right


class SlowEvent:
    """A device that always takes longer than the host."""

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        pass


@pytest.mark.parametrize("broken", [False, True])
def test_likely_masks_are_made_while_the_device_computes(
    monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    fields = [
        {"regex": "[b-d]{2,4} or else [0-9]+;", "seed": 3, "max_new_tokens": 40},
        {"max_new_tokens": 5, "seed": 3},
    ]
    asked = [GenerateRequest((1, 2), SamplingParams.from_dict(each)) for each in fields]
    expected = run(Bench(), asked, [])

    made = []
    prefetch = GrammarMatcher.prefetch

    def counted(self: GrammarMatcher, seconds: float) -> int:
        if broken:
            raise MemoryError
        made.append(prefetch(self, seconds))
        return made[-1]

    monkeypatch.setattr(GrammarMatcher, "prefetch", counted)
    flight = functools.partial(runner.Flight, ready=SlowEvent())
    monkeypatch.setattr(runner, "Flight", lambda *fields: flight(*fields[:-1]))
    assert run(Bench(), asked, []) == expected
    assert broken or sum(made) > 0


def run(
    bench: Bench, asked: Sequence[GenerateRequest], aborts: Sequence[tuple[int, int]]
) -> list[dict[str, Any]]:
    """What each sample produced; ``aborts`` are (step, sample)."""
    samples: list[Request] = []
    steps = 0
    # They arrive one by one, while others are under way.
    for source in asked:
        samples += bench.submit_source(source, COMPILER)
        bench.step()
        steps += 1
    while bench.core.busy:
        for at, index in aborts:
            if at == steps:
                samples[index % len(samples)].aborted = True
        bench.step()
        steps += 1
        assert steps < 5000
    assert bench.core.flush_cache()
    assert bench.scheduler.pool.free == bench.scheduler.pool.size
    outputs: dict[Request, list[RequestOutput]] = {sample: [] for sample in samples}
    for sample in samples:
        if sample.index == 0:
            for output in sample.stream:
                outputs[sample.siblings[output.index]].append(output)
    return [describe(sample, outputs[sample]) for sample in samples]


def describe(sample: Request, outputs: list[RequestOutput]) -> dict[str, Any]:
    tokens = [token for output in outputs for token in output.token_ids]
    assert tokens == list(sample.tokens[sample.prompt_len :])
    log = sample.logprobs
    return {
        "tokens": tokens,
        "text": "".join(output.text for output in outputs),
        "reasons": [output.finish_reason for output in outputs if output.finish_reason],
        "reason": outputs[-1].finish_reason,
        "forced": outputs[-1].usage.forced_tokens,
        "logprobs": log and (log.tokens, log.top, log.chosen),
    }
