"""Prefixes that leave the device live on in host memory, and come back as they were."""

from __future__ import annotations

import os
import random
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime.config import free_memory
from sglang_lite.runtime.engine import Engine
from sglang_lite.runtime.host_tier import HostTier, SwapCost
from sglang_lite.runtime.kv_cache import KVCache
from sglang_lite.runtime.request import Request
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


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_keys_and_values_come_back_to_other_slots_bit_by_bit(device: str) -> None:
    """Layers of different shapes, scattered slots on both sides."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    cache = KVCache([(2, 8), (1, 4)], 50, torch.bfloat16, device)
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
        ({"hicache_size": 2.0}, "hicache_size"),
        ({"hicache_ratio": 3.0}, "hicache_ratio"),
        ({"enable_hierarchical_cache": True, "hicache_size": 1e9}, "hicache_size"),
        ({"enable_hierarchical_cache": True, "hicache_ratio": 1e-9}, "hicache_ratio"),
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


class SwapMachine(RuleBasedStateMachine):
    """Prefixes of few documents come and go on both tiers, under requests that fork and preempt."""

    @initialize(
        slots=st.integers(30, 70), ratio=st.sampled_from([0.4, 1.0, 4.0]), chunk=st.integers(3, 40)
    )
    def start(self, slots: int, ratio: float, chunk: int) -> None:
        self.bench = Bench(slots, hicache_ratio=ratio, chunked_prefill_size=chunk, **ON)
        self.slots = slots
        self.requests: list[Request] = []

    @rule(
        document=st.integers(0, 3),
        length=st.sampled_from([5, 12, 13, 25, 29]),
        count=st.integers(1, 12),
        salt=st.sampled_from(["", "", "", "x"]),
        then=st.sampled_from([0, 1, 3, 50, 50]),
    )
    def submit(self, document: int, length: int, count: int, salt: str, then: int) -> None:
        tokens = prompt(document // 2, 12) + prompt(document, 17)
        self.requests.append(self.bench.submit(tokens[:length], count, cache_salt=salt))
        self.step(then)

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 99))
    def fork(self, pick: int) -> None:
        parent = self.requests[pick % len(self.requests)]
        self.requests.append(self.bench.submit(list(parent.tokens)[: self.slots - 1], 5))

    @rule(times=st.integers(1, 20))
    def step(self, times: int) -> None:
        for _ in range(times):
            if self.bench.core.busy:
                self.bench.step()

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 99))
    def abort(self, pick: int) -> None:
        self.requests[pick % len(self.requests)].aborted = True

    @precondition(lambda self: self.bench.scheduler.running)
    @rule(pick=st.integers(0, 99))
    def preempt(self, pick: int) -> None:
        running = self.bench.scheduler.running
        request = running[pick % len(running)]
        if not request.in_flight:
            self.bench.scheduler.preempt(request)

    @rule(count=st.integers(1, 70))
    def swap_out(self, count: int) -> None:
        scheduler = self.bench.scheduler
        scheduler.pool.release(scheduler.host.evict(scheduler.tree, count))

    @invariant()
    def balanced(self) -> None:
        if hasattr(self, "bench"):
            self.bench.core.check()

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.drain()
            for request in self.requests:
                expect_alone(request, self.slots)
            assert self.bench.core.flush_cache()


SwapMachine.TestCase.settings = settings(
    max_examples=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestSwapMachine = SwapMachine.TestCase


@pytest.mark.parametrize("ratio", [0.4, 1.0, 4.0])
def test_long_random_lives(both_schedules: None, ratio: float) -> None:
    """The same machine at random for hundreds of operations, so that much comes back."""
    draw = random.Random(0)
    machine = SwapMachine()
    machine.start(slots=60, ratio=ratio, chunk=16)
    for _ in range(300):
        pick, chance = draw.randrange(100), draw.random()
        if chance < 0.55:
            length, count = draw.choice([5, 12, 13, 25, 29]), draw.randrange(1, 13)
            machine.submit(draw.randrange(4), length, count, "", draw.choice([0, 1, 3, 50]))
        elif chance < 0.7:
            machine.swap_out(draw.randrange(1, 70))
        elif machine.requests and chance < 0.8:
            machine.fork(pick)
        elif machine.requests and chance < 0.85:
            machine.abort(pick)
        elif machine.bench.scheduler.running:
            machine.preempt(pick)
        machine.balanced()
    machine.teardown()
    assert machine.bench.scheduler.host.swapped_in > 100


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


def test_copies_of_files_are_free_memory():
    """They leave when memory is wanted; without them a busy machine seems to have none."""
    unused = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    everything = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    lines = Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else []
    available = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    assert 0.5 * (available or [unused])[0] < free_memory() < everything
