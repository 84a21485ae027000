"""Prefixes that leave the device live on in host memory, and come back as they were."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime.engine import Engine
from sglang_lite.runtime.host_tier import HostTier, SwapCost
from sglang_lite.runtime.kv_cache import KVCache
from tests.runtime.bench import Always, Bench, expect_alone, outputs, without_eos
from tests.runtime.tiny import make_tiny_model
from tests.runtime.toy import greedy, toy_engine

ON = {"enable_hierarchical_cache": True}


def prompt(number: int, length: int = 40) -> list[int]:
    return [(number + i * i) % 90 for i in range(length)]


def run(bench: Bench, tokens: list[int], count: int = 4) -> int:
    """Generate, compare with the model alone, return how many prompt tokens were cached."""
    request = bench.submit(tokens, count)
    bench.drain()
    assert outputs(request) == without_eos(tokens, count)
    return request.usage.cached_tokens


def test_an_evicted_prefix_comes_back() -> None:
    bench = Bench(100, **ON)
    for number in range(4):
        assert run(bench, prompt(number)) == 0
    before = len(bench.model.computed)
    assert run(bench, prompt(0)) == 39
    assert bench.model.computed[before] == (39, 40), "one token was computed"
    numbers = bench.scheduler.host.numbers()
    assert numbers["host_cached_tokens_total"] == 39
    assert numbers["swapped_out_tokens_total"] >= 86


def test_without_the_tier_it_is_computed_again() -> None:
    bench = Bench(100)
    for number in range(4):
        run(bench, prompt(number))
    assert run(bench, prompt(0)) == 0


def test_what_both_tiers_hold_is_copied_once() -> None:
    bench = Bench(100, **ON)
    host = bench.scheduler.host
    for _ in range(3):
        for number in range(3):
            run(bench, prompt(number))
    # Each of the three sequences went out once, though each left the device several times.
    assert host.swapped_out == 3 * 43
    assert host.swapped_in > 3 * 43


def test_the_device_and_the_host_each_give_their_part() -> None:
    bench = Bench(130, **ON)
    shared = prompt(7, 30)
    run(bench, shared + prompt(1, 20))
    run(bench, shared + prompt(2, 20))
    for number in range(3):
        run(bench, prompt(number + 20, 30))
    request = bench.submit(shared + prompt(1, 20), 3)
    on_device = bench.scheduler.tree.peek(request.tokens, 49)[0]
    swapped_in = bench.scheduler.host.swapped_in
    bench.drain()
    assert 0 < on_device < 49
    assert request.usage.cached_tokens == 49
    assert bench.scheduler.host.swapped_in - swapped_in == 49 - on_device


def test_the_least_recently_used_leaves_the_host_first() -> None:
    bench = Bench(60, hicache_ratio=2.0, **ON)
    for number in (0, 1, 2, 3):
        run(bench, prompt(number))
    # The host's 120 slots hold the last two that left the device; the first was forgotten.
    host = bench.scheduler.host
    found = [host.find(array("i", prompt(n)), 40, "") for n in range(4)]
    assert found == [0, 40, 40, 0]


def test_a_preempted_request_is_swapped_in_again() -> None:
    bench = Bench(64, **ON)
    bench.scheduler.new_token_ratio = 0.0
    requests = [bench.submit([i % 3, 5, 7, i], 25) for i in range(8)]
    bench.drain()
    for request in requests:
        expect_alone(request, 64)
    assert bench.scheduler.preempted_total > 0
    assert bench.scheduler.host.swapped_in > 0
    # Each step's rows are new tokens, but for the one whose logits a resumed request needs.
    computed = sum(end - start for start, end in bench.model.computed)
    assert computed <= sum(len(r.tokens) for r in requests) + bench.scheduler.preempted_total


def test_namespaces_stay_apart_on_the_host() -> None:
    bench = Bench(60, hicache_ratio=9.0, **ON)
    mine = bench.submit(prompt(0), 2, cache_salt="mine")
    bench.drain()
    run(bench, prompt(1))
    run(bench, prompt(2))
    assert run(bench, prompt(0)) == 0
    again = bench.submit(prompt(0), 2, cache_salt="mine")
    bench.drain()
    assert again.usage.cached_tokens == 39
    assert outputs(again) == outputs(mine)


def test_flush_forgets_the_host_too() -> None:
    bench = Bench(60, **ON)
    run(bench, prompt(0))
    run(bench, prompt(1))
    assert bench.core.flush_cache()
    assert bench.scheduler.host.pool.free == bench.scheduler.host.slots
    assert run(bench, prompt(0)) == 0


def test_log_probabilities_are_computed_not_swapped_in() -> None:
    bench = Bench(60, **ON)
    run(bench, prompt(0))
    run(bench, prompt(1))
    request = bench.submit(prompt(0), 2, return_logprob=True, logprob_start_len=10)
    bench.drain()
    assert request.usage.cached_tokens == 9
    assert len(request.logprobs.tokens) == 32


def test_deterministic_mode_takes_whole_chunks_back() -> None:
    bench = Bench(300, deterministic=True, **ON)
    tokens = prompt(0, 200)
    first = bench.submit(tokens, 5)
    bench.drain()
    other = bench.submit(prompt(1, 200), 5)
    bench.drain()
    again = bench.submit(tokens, 5)
    bench.drain()
    assert again.usage.cached_tokens == 192
    assert bench.scheduler.host.swapped_in > 0
    assert outputs(again) == outputs(first)
    assert other.finish_reason is not None


def test_a_copy_is_made_where_it_is_faster() -> None:
    cost = SwapCost(call_seconds=1e-3, copy_seconds=1e-5)
    assert cost.pays(1, copies=2), "yes, while the speed of prefill is unknown"
    cost.learn(256, 256, 256 * 1e-4)
    assert cost.prefill_seconds == pytest.approx(1e-4)
    assert not cost.pays(10, copies=1)
    assert cost.pays(12, copies=1)
    assert not cost.pays(12, copies=2)
    assert cost.pays(1000, copies=2)
    cost.learn(256, 256, 256 * 2e-4)
    assert cost.prefill_seconds == pytest.approx(1.2e-4)
    # Steps of decodes say nothing about prefill.
    cost.learn(64, 0, 10.0)
    cost.learn(300, 100, 10.0)
    assert cost.prefill_seconds == pytest.approx(1.2e-4)


def test_where_computing_is_faster_nothing_is_kept() -> None:
    bench = Bench(100, **ON)
    host = bench.scheduler.host
    host.cost = SwapCost(1.0, 1.0)
    host.cost.prefill_seconds = 1e-9
    for number in range(4):
        run(bench, prompt(number))
    assert (host.swapped_out, host.pool.free) == (0, host.slots)


def test_keys_and_values_come_back_to_other_slots_bit_by_bit() -> None:
    """Layers of different shapes, scattered slots on both sides."""
    cache = KVCache([(2, 8), (1, 4)], 50, torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    for tensor in (*cache.keys, *cache.values):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    before = [tensor.clone() for tensor in (*cache.keys, *cache.values)]
    tier = HostTier(cache, 40)
    draw = np.random.default_rng(0)
    source, host, target = draw.permutation(50)[:30], draw.permutation(40)[:30], None
    tier.copy_out(source, host)
    target = np.setdiff1d(np.arange(50), source)[:20]
    tier.copy_in(host[:20], target)
    for now, then in zip((*cache.keys, *cache.values), before, strict=True):
        assert torch.equal(now[:, target], then[:, source[:20]])
        assert torch.equal(now[:, source], then[:, source])


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"hicache_ratio": 0}, "hicache_ratio"),
        ({"hicache_ratio": float("nan")}, "hicache_ratio"),
        ({"hicache_size": -1}, "hicache_size"),
        ({"hicache_size": "2"}, "hicache_size"),
        ({"enable_hierarchical_cache": True, "disable_radix_cache": True}, "enable_hierarchical"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict, name: str) -> None:
    with pytest.raises(InvalidRequest, match=name):
        toy_engine(**options)


def test_sizes() -> None:
    with toy_engine(slots=100, enable_hierarchical_cache=True) as engine:
        assert engine.stats()["hicache_host_total_tokens"] == 200
    with toy_engine(slots=100, enable_hierarchical_cache=True, hicache_size=16e-6) as engine:
        assert engine.stats()["hicache_host_total_tokens"] == 1000
    with toy_engine(slots=100) as engine:
        assert "hicache_host_total_tokens" not in engine.stats()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_real_model_goes_on_from_what_came_back(tmp_path: Path, dtype: str) -> None:
    """Its log probabilities are those that it has without any cache."""
    folder = make_tiny_model(tmp_path / "tiny")
    prompts = [prompt(number, 150) for number in range(4)]

    def run(engine: Engine) -> list[Any]:
        results = [
            engine.generate(input_ids=tokens, sampling_params=greedy(8), return_logprob=True)
            for tokens in (*prompts, *prompts)
        ]
        engine.check()
        return [r["meta_info"] for r in results]

    options = {"dtype": dtype, "max_total_tokens": 320, "deterministic": True}
    with Engine(folder, **options, disable_radix_cache=True) as engine:
        expected = run(engine)
    with Engine(folder, **options, enable_hierarchical_cache=True) as engine:
        engine._loop.core.scheduler.host.cost = Always()
        got = run(engine)
        assert engine.stats()["host_cached_tokens_total"] > 0
    assert [m["cached_tokens"] for m in got] == [0] * 4 + [128] * 4
    assert [m["output_token_logprobs"] for m in got] == [
        m["output_token_logprobs"] for m in expected
    ]
