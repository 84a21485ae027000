"""Bugs that were reported for other engines, each as the smallest case, on the toy model.

The names in the comments are theirs: project#number.  Reports that a more general test covers
(random machines over scheduler, tree and pool, aborts in every state) have none of their own.
"""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest
import torch

from sglang_lite.constrained import CompiledGrammar
from sglang_lite.constraint import Constraint
from sglang_lite.runtime.engine import Engine
from sglang_lite.runtime.logprobs import SCORE_ROWS
from sglang_lite.runtime.sampler import SamplingRow, sample
from tests.runtime.bench import Bench, outputs, without_eos
from tests.runtime.toy import (
    EOS,
    VOCAB,
    expected_greedy,
    greedy,
    ids_of,
    request,
    toy_engine,
    wait_until_idle,
)
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("both_schedules")


# vllm#23399, vllm#13949
def test_prompt_logprobs_read_no_cache_but_fill_it(engine: Engine) -> None:
    scored = engine.generate("a prompt", greedy(2), return_logprob=True, logprob_start_len=0)
    assert scored["meta_info"]["cached_tokens"] == 0
    assert engine.generate("a prompt", greedy(2))["meta_info"]["cached_tokens"] == 7
    again = engine.generate("a prompt", greedy(2), return_logprob=True, logprob_start_len=0)
    assert again["meta_info"]["cached_tokens"] == 0
    assert again["meta_info"]["input_token_logprobs"] == scored["meta_info"]["input_token_logprobs"]


# transformers#46434
def test_prompt_logprobs_never_hold_the_logits_of_a_long_prompt() -> None:
    with toy_engine(chunked_prefill_size=1024) as engine:
        sizes, original = [], engine.toy.logits

        def logits(hidden: torch.Tensor) -> torch.Tensor:
            sizes.append(len(hidden))
            return original(hidden)

        engine.toy.logits = logits
        ids = [i % 90 for i in range(1000)]
        options = {"return_logprob": True, "logprob_start_len": 0}
        result = engine.generate(input_ids=ids, sampling_params=greedy(1), **options)
        assert len(result["meta_info"]["input_token_logprobs"]) == 1000
        assert max(sizes) <= SCORE_ROWS


# vllm#1623, vllm#22180
@pytest.mark.parametrize("temperature", [1e-30, 1e-7, 1e-4])
def test_a_temperature_near_zero_is_greedy_and_finite(engine: Engine, temperature: float) -> None:
    expected = engine.generate("Hello", greedy(20))["output_ids"]
    params = {"temperature": temperature, "max_new_tokens": 20}
    assert engine.generate("Hello", params)["output_ids"] == expected


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1e300},
        {"temperature": 1e39, "regex": "[a-z]{9}", "top_p": 0.5},
        {"temperature": 1e39, "min_p": 0.1, "top_k": 3},
        {"top_p": 1e-50},
        {"min_p": 1.0},
        {"repetition_penalty": 1e-45},
        {"max_new_tokens": 10**30, "stop": ["a", "b", "c"]},
    ],
)
def test_the_ends_of_every_range_give_text(engine: Engine, fields: dict) -> None:
    """What is accepted works, also where single precision has no such number."""
    params = {"temperature": 1.0, "seed": 1, "max_new_tokens": 9, **fields}
    assert len(engine.generate("Hello", params)["output_ids"]) == 9 or "stop" in fields


# nano-vllm PR 39
@pytest.mark.parametrize("uniform", [2.0**-54, 0.5, 1 - 2.0**-53])
def test_the_ends_of_the_noise_give_possible_tokens(uniform: float) -> None:
    logits = torch.full((1, VOCAB), -100.0)
    logits[0, [3, 7]] = torch.tensor([2.0, 1.0])
    (token,) = sample(logits, [SamplingRow(temperature=1.0, uniform=uniform)]).tolist()
    assert token == (3 if uniform <= 0.5 else 7)


# sglang-omni#1360, vllm#16832, vllm#38624, Rapid-MLX#470
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0, "frequency_penalty": 0.7, "repetition_penalty": 1.3},
        {"temperature": 1.3, "presence_penalty": 0.5},
        {"temperature": 1.0, "top_p": 0.9, "regex": "([a-z]{3} ){10}"},
    ],
)
def test_a_preemption_loses_no_penalty_no_seed_and_no_grammar(fields: dict) -> None:
    prompts = [[i, 5, 7, i] for i in range(8)]
    params = {"max_new_tokens": 40, "seed": 3, "ignore_eos": "regex" not in fields, **fields}
    with toy_engine() as ample:
        expected = ample.generate(input_ids=prompts, sampling_params=params)
    with toy_engine(slots=70, context_length=60) as tight:
        scheduler = tight._loop.core.scheduler
        # As if no request were expected to need more than it has.
        scheduler._expected_growth = lambda request: 0
        got = tight.generate(input_ids=prompts, sampling_params=params)
        assert tight.stats()["num_retracted_reqs"] > 0
        tight.check()
    assert [r["output_ids"] for r in got] == [r["output_ids"] for r in expected]
    assert [r["text"] for r in got] == [r["text"] for r in expected]


# vllm#21987, vllm#15967, vllm#5849, vllm#46243, sglang#4011
def test_the_least_number_of_tokens_is_exact_for_every_kind_of_end() -> None:
    with toy_engine(eos_bias=0.2) as engine:
        alone = expected_greedy(ids_of(engine, "Hello"), 100, eos_bias=0.2)
        assert alone[-1] == EOS
        count = len(alone)
        assert count > 4
        at_least = engine.generate("Hello", greedy(100, min_new_tokens=count - 1))
        assert at_least["output_ids"] == alone, "after enough tokens the end may come at once"
        longer = engine.generate("Hello", greedy(100, min_new_tokens=count))["output_ids"]
        assert len(longer) > count
        assert longer[: count - 1] == alone[:-1]
        third = alone[2]
        early = engine.generate("Hello", greedy(100, stop_token_ids=[9, third]))
        assert early["output_ids"] == alone[: alone.index(third) + 1]
        params = greedy(100, stop_token_ids=[9, third], min_new_tokens=8)
        assert third not in engine.generate("Hello", params)["output_ids"][:8]


def test_the_least_number_of_tokens_holds_for_stop_texts(engine: Engine) -> None:
    text = engine.generate("Hello", greedy(200))["text"]
    stop = next(c for c in text[:12] if c in text[12:])
    result = engine.generate("Hello", greedy(200, stop=stop, min_new_tokens=12))
    assert result["text"] == text[: text.index(stop, 12)]


# sendnn#542
@pytest.mark.parametrize("top_k", [VOCAB - 1, VOCAB, 10**6])
def test_top_k_beyond_the_vocabulary_is_all_of_it(engine: Engine, top_k: int) -> None:
    params = {"temperature": 1.0, "seed": 1, "max_new_tokens": 10}
    expected = engine.generate("Hello", params)["output_ids"]
    assert engine.generate("Hello", {**params, "top_k": top_k})["output_ids"] == expected


# nano-vllm PR 213, PR 217, #114, #144
@pytest.mark.parametrize("length", [1, 2, 255, 256, 257, 511, 512, 513])
def test_prompts_around_a_chunk_alone_and_fully_cached(length: int) -> None:
    bench = Bench(2048, chunked_prefill_size=256)
    tokens = [(i * i + 3) % 90 for i in range(length)]
    for cached in (0, length - 1):
        made = bench.submit(tokens, 5)
        bench.drain()
        assert made.usage.cached_tokens == cached
        assert outputs(made) == without_eos(tokens, 5)


# sglang#2812, vllm#21951, vllm#17448
def test_bytes_that_are_no_text_are_no_failure(engine: Engine) -> None:
    (broken,) = engine.tokenizer.encode("é")[:1]
    params = greedy(6, logit_bias={broken: 100})
    result = engine.generate("Hello", params)
    assert result["output_ids"] == [broken] * 6
    assert result["text"] == "\ufffd" * 6
    texts = [each["text"] for each in engine.generate("Hello", params, stream=True)]
    assert texts[-1] == result["text"]


# vllm#26012, vllm#25067
def test_an_abort_after_the_end_and_a_second_one_do_nothing(engine: Engine) -> None:
    stream = engine.submit(request(engine, "x", rid="mine", max_new_tokens=3))
    got = list(stream)
    for _ in range(2):
        stream.abort()
        engine.abort("mine")
    assert got[-1].finish_reason.type == "length"
    wait_until_idle(engine)
    assert engine.stats()["num_aborted_requests_total"] == 0
    assert engine.generate("x", greedy(3))["output_ids"]


def test_aborts_from_many_threads_at_the_moment_of_the_end(engine: Engine) -> None:
    for count in range(1, 30):
        stream = engine.submit(request(engine, "x", max_new_tokens=count, ignore_eos=True))
        threads = [threading.Thread(target=stream.abort) for _ in range(3)]
        next(stream)
        for thread in threads:
            thread.start()
        reasons = [output.finish_reason.type for output in stream if output.finish_reason]
        for thread in threads:
            thread.join()
        assert count == 1 or reasons in (["abort"], ["length"])
    wait_until_idle(engine)
    assert engine.flush_cache()
    assert engine.stats()["kv_available_tokens"] == engine.stats()["max_total_num_tokens"]


# sglang#34112, sglang#12693: an abort while the grammar is being compiled
@pytest.mark.parametrize("generate", [False, True])
def test_a_submission_that_is_cancelled_while_it_compiles_leaves_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, generate: bool
) -> None:
    started, go, original = threading.Event(), threading.Event(), engine.compile

    def slow(constraint: Constraint) -> CompiledGrammar:
        started.set()
        assert go.wait(20)
        return original(constraint)

    monkeypatch.setattr(engine, "compile", slow)
    fields = {"regex": "[ab]*", "max_new_tokens": 1500}

    async def main() -> None:
        work = engine.asubmit(request(engine, "x", rid="mine", **fields))
        if generate:
            work.close()
            work = engine.async_generate("x", fields, rid="mine")
        task = asyncio.create_task(work)
        assert await asyncio.to_thread(started.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()

    asyncio.run(main())
    wait_for(lambda: engine.stats()["num_aborted_requests_total"] == 1)
    wait_until_idle(engine)
    assert engine.flush_cache()
    assert engine.stats()["kv_available_tokens"] == engine.stats()["max_total_num_tokens"]
    assert list(engine.submit(request(engine, "x", rid="mine", max_new_tokens=1)))


# mini-sglang 94fe255
def test_a_request_that_goes_leaves_the_tree_its_own_slots() -> None:
    """The tree must not look into the row of a request, which the next one writes to."""
    bench = Bench(200)
    first = bench.submit([1, 2, 3, 4, 5], 3)
    bench.drain()
    first.slots[:] = -1
    again = bench.submit([1, 2, 3, 4, 5], 3)
    bench.drain()
    assert again.usage.cached_tokens == 4
    assert outputs(again) == without_eos([1, 2, 3, 4, 5], 3)
    bench.core.check()


# sglang#12224, sglang-jax#1008: the same prompt twice in one step
@pytest.mark.parametrize("count", [1, 6])
def test_twins_that_end_together_free_their_slots_once(count: int) -> None:
    bench = Bench(100)
    twins = [bench.submit([4, 5, 6], count) for _ in range(4)]
    bench.drain()
    for twin in twins:
        assert outputs(twin) == without_eos([4, 5, 6], count)
    held = bench.scheduler.tree.evictable
    assert held == 3 + count - 1
    assert bench.scheduler.pool.free == 100 - held


# vllm#3251, vllm#8268, vllm#42019
@pytest.mark.parametrize("cached", [0, 5, 11])
def test_prompt_logprobs_are_the_same_whatever_is_cached(engine: Engine, cached: int) -> None:
    ids = ids_of(engine, "some prompt")
    options = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
    fresh = engine.generate(input_ids=ids, sampling_params=greedy(3), **options)["meta_info"]
    engine.flush_cache()
    if cached:
        engine.generate(input_ids=ids[:cached], sampling_params=greedy(1))
    got = engine.generate(input_ids=ids, sampling_params=greedy(3), **options)["meta_info"]
    for name in ("input_token_logprobs", "input_top_logprobs", "output_token_logprobs"):
        assert got[name] == fresh[name]
    values = np.array([entry[0] for entry in got["input_token_logprobs"][1:]])
    assert (values < 0).all()
