"""The planned CPU attention against the obvious one, over random ragged batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_lite.runtime.attention import plan as planning
from sglang_lite.runtime.attention.calls import flash_attention, plain_attention
from sglang_lite.runtime.attention.cpu import TorchAttention
from sglang_lite.runtime.attention.plan import plan_segments
from sglang_lite.runtime.attention.reference import ReferenceAttention
from sglang_lite.runtime.batch import Row

KV_HEADS, GROUP, DIM, SLOTS = 2, 3, 16, 1200


@st.composite
def ragged_rows(draw):
    """Rows over a pool: private slots (runs or scattered), shared prefixes, chunks and decodes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scattered = draw(st.booleans())
    free = list(rng.permutation(SLOTS) if scattered else np.arange(SLOTS))
    take = lambda n: [free.pop() if scattered else free.pop(0) for _ in range(n)]  # noqa: E731
    trunk = take(draw(st.sampled_from([0, 1, 63, 64, 65, 130])))
    branches = [trunk + take(draw(st.sampled_from([0, 5, 70]))) for _ in range(2)]
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        prefix = draw(st.sampled_from([[], trunk, *branches]))
        own = take(draw(st.sampled_from([0, 1, 7, 66])))
        new = take(draw(st.sampled_from([1, 1, 1, 2, 5, 40])))
        rows.append(Row(np.array(prefix + own + new, dtype=np.int64), len(prefix) + len(own)))
    return rows


def tensors(rows, dtype, seed=0):
    """Random queries and caches, with the new keys and values already in their slots."""
    generator = torch.Generator().manual_seed(seed)
    tokens = sum(row.new_tokens for row in rows)
    query = torch.randn(tokens, KV_HEADS * GROUP, DIM, generator=generator).to(dtype)
    cache = torch.randn(2, KV_HEADS, SLOTS, DIM, generator=generator).to(dtype)
    written = torch.from_numpy(np.concatenate([row.slots[row.start :] for row in rows]))
    key, value = cache[:, :, written].transpose(1, 2)
    return query, key, value, cache[0], cache[1]


def compare(rows, dtype=torch.float32, window=None, tolerance=2e-5, **options):
    args = tensors(rows, dtype)
    results = []
    for backend in (TorchAttention(), ReferenceAttention()):
        plan = backend.plan(rows, window)
        results.append(backend.attend(*args, plan, scale=DIM**-0.5, **options))
    assert results[0].dtype == dtype
    assert results[0].is_contiguous()
    torch.testing.assert_close(*results, atol=tolerance, rtol=tolerance)


@settings(max_examples=120, deadline=None)
@given(ragged_rows(), st.sampled_from([None, 1, 2, 33, 64, 200]))
def test_equals_reference(rows, window):
    compare(rows, window=window)


@settings(max_examples=25, deadline=None)
@given(ragged_rows(), st.sampled_from([None, 33]))
def test_equals_reference_in_bfloat16(rows, window):
    compare(rows, torch.bfloat16, window, tolerance=2e-2)


@settings(max_examples=25, deadline=None)
@given(ragged_rows(), st.sampled_from([None, 33]), st.booleans(), st.booleans())
def test_softcap_and_sinks(rows, window, capped, sunk):
    sinks = torch.linspace(-2, 2, KV_HEADS * GROUP) if sunk else None
    compare(rows, window=window, softcap=1.5 if capped else None, sinks=sinks)


def decode_rows(count, length, distance, first=0):
    return [
        Row(np.arange(first + i * distance, first + i * distance + length), length - 1)
        for i in range(count)
    ]


def test_equally_spaced_decodes_are_one_call():
    rows = decode_rows(4, 70, 100)
    plan = TorchAttention().plan(rows, None)
    assert [(call.batch, call.stride) for call in plan.calls] == [(4, 100)]
    compare(rows)


def test_unequal_distance_ends_a_batch():
    rows = decode_rows(3, 70, 100) + decode_rows(2, 70, 90, first=300)
    assert [call.batch for call in TorchAttention().plan(rows, None).calls] == [4, 1]
    compare(rows)


def test_shared_prefix_is_read_once():
    prefix = np.arange(100)
    rows = [Row(np.append(prefix, [200 + i]), 100) for i in range(5)]
    segments = plan_segments(rows)
    shared = [s for s in segments if len(s.tokens) == 5]
    assert [s.keys for s in shared] == [slice(0, 100)]
    assert sorted(len(s.tokens) for s in segments) == [1, 1, 1, 1, 1, 5]
    compare(rows)


def test_nested_shared_prefixes_follow_the_tree():
    trunk, left, right = np.arange(100), np.arange(200, 300), np.arange(400, 500)
    ends = [600, 601, 602, 603]
    rows = [
        Row(np.concatenate([trunk, branch, [end]]), 200)
        for branch, end in zip([left, left, right, right], ends, strict=True)
    ]
    shared = sorted((len(s.tokens), s.keys.start) for s in plan_segments(rows) if len(s.tokens) > 1)
    assert shared == [(2, 200), (2, 400), (4, 0)]
    compare(rows)


def test_short_shared_prefix_is_not_split_off():
    short = planning.MIN_SHARED_KEYS - 1
    rows = [Row(np.append(np.arange(short), [200 + i]), short) for i in range(3)]
    assert all(len(s.tokens) == 1 for s in plan_segments(rows))
    compare(rows)


def test_scattered_slots_are_gathered_in_one_segment():
    slots = np.array([5, 9, 2, 40, 41, 42, 7])
    (segment,) = plan_segments([Row(slots, 6)])
    assert segment.keys.tolist() == slots.tolist()


def test_segments_cover_every_key_once():
    rows = [Row(np.r_[0:80, 200:290, 300:310], 170), Row(np.r_[0:80, 400:401], 80)]
    seen = [[], []]
    for segment in plan_segments(rows):
        for i, tokens in enumerate([range(10), range(10, 11)]):
            if tokens[0] in segment.tokens and segment.keys is not None:
                keys = segment.keys
                seen[i] += list(range(keys.start, keys.stop) if isinstance(keys, slice) else keys)
    assert sorted(seen[0]) == sorted(rows[0].slots[:170])
    assert sorted(seen[1]) == sorted(rows[1].slots)


@pytest.mark.parametrize("causal", [False, True])
def test_plain_operators_equal_the_flash_primitive(causal):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 6, 9, 16), torch.randn(2, 2, 9, 16), torch.randn(2, 2, 9, 16)
    bias = None if causal else torch.randn(9, 9)
    fast = flash_attention(q, k, v, causal, bias, 0.3, None)
    plain = plain_attention(q, k, v, causal, bias, 0.3, None)
    torch.testing.assert_close(fast[0], plain[0])
    torch.testing.assert_close(fast[1], plain[1])
