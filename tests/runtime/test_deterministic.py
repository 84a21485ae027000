"""Deterministic mode: a request's results depend on nothing but the request."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from sglang_lite.runtime.attention.reference import ReferenceAttention
from sglang_lite.runtime.attention.sequence import SequenceAttention
from sglang_lite.runtime.batch import Row
from tests.runtime.bench import Bench, outputs

pytestmark = pytest.mark.usefixtures("both_schedules")


def alone(prompt: list[int], count: int) -> list[int]:
    bench = Bench(4096, deterministic=True)
    request = bench.submit(prompt, count)
    bench.drain()
    return outputs(request)


def test_the_toy_notices_company_without_the_mode() -> None:
    """The test's own power: results of the ordinary mode do differ on this model."""
    bench = Bench(4096, deterministic=True)
    bench.core.runner._one_by_one = False
    requests = [bench.submit([i] * 70, 10) for i in range(3)]
    bench.drain()
    assert outputs(requests[0]) != alone([0] * 70, 10)


@pytest.mark.parametrize("slots", [330, 4096])
@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_company_cache_and_preemption_change_nothing(slots: int, policy: str) -> None:
    draw = random.Random(slots)
    bench = Bench(slots, deterministic=True, schedule_policy=policy, chunked_prefill_size=48)
    bench.scheduler.new_token_ratio = 0.0
    prefixes = [[draw.randrange(90) for _ in range(draw.randrange(1, 130))] for _ in range(3)]
    requests = []
    for _ in range(40):
        prompt = [*draw.choice(prefixes), *(draw.randrange(90) for _ in range(draw.randrange(30)))]
        if requests and draw.random() < 0.3:
            prompt = list(draw.choice(requests).tokens)[:150]
        requests.append(bench.submit(prompt, draw.randrange(1, 60)))
        for _ in range(draw.randrange(4)):
            bench.step()
    bench.drain()
    reference = Bench(4096, deterministic=True, chunked_prefill_size=48)
    for request in requests:
        again = reference.submit(list(request.source.input_ids), request.params.max_new_tokens or 0)
        reference.drain()
        assert reference.core.flush_cache()
        assert outputs(request) == outputs(again)
    assert (bench.scheduler.preempted_total > 0) == (slots == 330)
    assert any(request.usage.cached_tokens for request in requests)
    assert all(request.usage.cached_tokens % 48 == 0 for request in requests)


@pytest.mark.parametrize("window", [None, 1, 5, 20])
def test_sequence_attention_equals_the_reference(window: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    caches = [torch.randn(2, 64, 16, generator=generator) for _ in range(2)]
    slots = np.random.default_rng(0).permutation(64)
    rows = [Row(slots[:12], 11), Row(slots[12:40], 20), Row(slots[40:47], 0)]
    new = np.concatenate([row.slots[row.start :] for row in rows])
    key, value = (cache[:, new].transpose(0, 1).contiguous() for cache in caches)
    query = torch.randn(len(new), 4, 16, generator=generator)
    for backend in (SequenceAttention(), ReferenceAttention()):
        plan = backend.plan(rows, window)
        result = backend.attend(query, key, value, *caches, plan, scale=0.25)
        if isinstance(backend, SequenceAttention):
            ours = result
    torch.testing.assert_close(ours, result, atol=1e-5, rtol=1e-5)
