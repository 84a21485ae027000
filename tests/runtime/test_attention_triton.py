"""The Triton kernels, in Triton's interpreter, against the obvious attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sglang_lite.errors import UnsupportedModel
from sglang_lite.runtime.attention.items import cut
from sglang_lite.runtime.attention.reference import ReferenceAttention
from sglang_lite.runtime.attention.triton import TritonAttention
from sglang_lite.runtime.batch import Row
from sglang_lite.runtime.models.loader import load_model
from tests.runtime.kernels import DEVICE
from tests.runtime.test_attention_cpu import DIM, GROUP, KV_HEADS, ragged_rows, tensors
from tests.runtime.test_model_decoder import Sequence, prompt, step
from tests.runtime.tiny import make_tiny_model

pytest.importorskip("triton")
# The interpreter cannot multiply bfloat16.
HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16


def compare(rows, dtype=torch.float32, window=None, tolerance=2e-5, **options):
    args = [x.to(DEVICE) for x in tensors(rows, dtype)]
    backend = TritonAttention(DEVICE, KV_HEADS * GROUP, KV_HEADS)
    out = backend.attend(*args, backend.plan(rows, window), scale=DIM**-0.5, **options)
    slow = ReferenceAttention()
    wanted = slow.attend(*args, slow.plan(rows, window), scale=DIM**-0.5, **options)
    assert out.dtype == dtype
    torch.testing.assert_close(out, wanted, atol=tolerance, rtol=tolerance)


@settings(max_examples=6, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(ragged_rows(), st.sampled_from([None, 1, 33, 200]))
def test_equals_reference(rows, window):
    compare(rows, window=window)


@settings(max_examples=4, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(ragged_rows())
def test_equals_reference_in_16_bits(rows):
    compare(rows, HALF, tolerance=2e-2)


def decode_and_chunk():
    return [Row(np.arange(300), 299), Row(np.r_[0:128, 400:440], 128), Row(np.r_[0:129], 128)]


@pytest.mark.parametrize("window", [None, 40])
def test_softcap_and_sinks(window):
    sinks = torch.linspace(-2, 2, KV_HEADS * GROUP).to(DEVICE)
    compare(decode_and_chunk(), window=window, softcap=1.5, sinks=sinks)


def items_of(rows, window=None):
    return cut(rows, window, GROUP, KV_HEADS)


def test_a_decode_is_split_along_its_keys():
    rows = [Row(np.arange(1000), 999)]
    items = items_of(rows)
    assert items.few[:, 3].tolist() == [128] * 7 + [104]
    assert items.few[:, 4].tolist() == list(range(0, 1000, 128))
    assert not len(items.many)
    assert items.merges.tolist() == [[0, 0, 8]]
    compare(rows)


def test_a_long_row_is_cut_finer_than_its_short_neighbours():
    rows = [Row(np.arange(i * 130, (i + 1) * 130), 129) for i in range(40)]
    rows.append(Row(np.arange(6_000, 60_000), 53_999))
    keys = items_of(rows).few[:, 3]
    # 59,200 keys of two heads for 264 programs are 449 each, rounded up to a multiple of 64.
    assert keys.max() == 512
    assert keys.tolist() == sorted(keys, reverse=True)
    assert keys.sum() == 40 * 130 + 54_000


def test_a_shared_prefix_is_one_set_of_keys():
    rows = [Row(np.append(np.arange(120), [200 + i]), 120) for i in range(20)]
    items = items_of(rows)
    # 20 tokens of 3 heads fill one block of 64 rows; the own keys are 20 small items.
    assert (len(items.few), len(items.many)) == (20, 1)
    assert len(items.slots) == 120 + 20
    compare(rows)


def test_prefixes_may_nest_as_deep_as_there_are_rows():
    """Rows that left one long sequence at different tokens."""
    rows = [Row(np.append(np.arange(i + 1), [5_000 + i]), i + 1) for i in range(1_200)]
    items = items_of(rows)
    seen = np.zeros(1_200, dtype=np.int64)
    for line in (*items.few, *items.many):
        np.add.at(seen, items.tokens[line[0] : line[0] + line[1]], line[3])
    assert seen.tolist() == [row.end for row in rows]


def test_a_chunk_reads_no_key_after_its_block():
    items = items_of([Row(np.arange(50), 0)])
    assert not len(items.few)
    # In order of falling work.
    assert items.many[:, 1].tolist() == [8, 21, 21]
    assert items.many[:, 3].tolist() == [50, 42, 21]
    # Each token is in one item: nothing to merge, and the slots are there once.
    assert items.places.tolist() == [-1] * 50
    assert (len(items.merges), items.parts, len(items.slots)) == (0, 0, 50)


def test_a_few_tokens_after_a_long_prefix_are_split_along_the_keys():
    rows = [Row(np.arange(1000), 995)]
    items = items_of(rows)
    assert items.few[:, 3].tolist() == [128] * 7 + [104]
    assert items.merges.tolist() == [[i, 8 * i, 8] for i in range(5)]
    compare(rows)


def test_a_decode_beside_a_chunk_has_no_more_partial_results_than_it_needs():
    rows = [Row(np.arange(1000), 999), Row(np.arange(1000, 1100), 0)]
    assert items_of(rows).parts == 8
    compare(rows)


@settings(max_examples=5, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.lists(st.integers(1, 90), min_size=1, max_size=9), st.booleans())
def test_a_static_plan_is_filled_anew_for_every_step(lengths, shared):
    """The same tensors, for rows of another length each time, as a CUDA graph reads them."""
    backend = TritonAttention(DEVICE, KV_HEADS * GROUP, KV_HEADS)
    static = backend.static_plan(len(lengths), None, 4_000)
    addresses = [tensor.data_ptr() for tensor in (static.buffer, static.plan.slots)]
    for longer in (0, 7, -1):
        rows, used = [], 300
        for length in (max(1, n + longer) for n in lengths):
            # Slots that others have too, or none that they have.
            slots = np.append(np.arange(length - 1), used) if shared else used + np.arange(length)
            rows.append(Row(slots, length - 1))
            used += 1 if shared else length
        assert backend.fill(static, rows)
        args = [x.to(DEVICE) for x in tensors(rows, torch.float32)]
        out = backend.attend(*args, static.plan, scale=0.3)
        slow = ReferenceAttention()
        wanted = slow.attend(*args, slow.plan(rows, None), scale=0.3)
        torch.testing.assert_close(out, wanted, atol=2e-5, rtol=2e-5)
    assert addresses == [tensor.data_ptr() for tensor in (static.buffer, static.plan.slots)]


def test_what_does_not_fit_a_static_plan_is_not_put_there():
    backend = TritonAttention(DEVICE, KV_HEADS * GROUP, KV_HEADS)
    static = backend.static_plan(2, None, 500)
    short, chunk = Row(np.arange(9), 8), Row(np.arange(9), 7)
    assert backend.fill(static, [short, Row(np.arange(20, 29), 8)])
    before = static.buffer.clone()
    assert not backend.fill(static, [short])
    assert not backend.fill(static, [short, chunk])
    assert not backend.fill(static, [short, Row(np.arange(500, 1000), 499)])
    assert torch.equal(static.buffer, before)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 4, 24), (9, 1, 16), (32, 1, 40)])
def test_odd_shapes(heads, kv_heads, dim):
    rows = [Row(np.arange(90), 89), Row(np.r_[0:70, 100:120], 70)]
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(21, heads, dim, generator=generator).to(DEVICE)
    cache = torch.randn(2, kv_heads, 128, dim, generator=generator).to(DEVICE)
    key = value = query[:, :kv_heads]
    backend, slow = TritonAttention(DEVICE, heads, kv_heads), ReferenceAttention()
    args = (query, key, value, cache[0], cache[1])
    out = backend.attend(*args, backend.plan(rows, None), scale=0.2)
    wanted = slow.attend(*args, slow.plan(rows, None), scale=0.2)
    torch.testing.assert_close(out, wanted, atol=2e-5, rtol=2e-5)


def test_a_model_on_these_kernels(tmp_path):
    model = load_model(make_tiny_model(tmp_path), kv_slots=64, dtype="float32", device=DEVICE.type)
    results = []
    for backend in (ReferenceAttention(), TritonAttention(DEVICE, 4, 2)):
        model.attention = backend
        sequences = [Sequence(prompt(9), range(20)), Sequence(prompt(5, seed=1), range(30, 50))]
        results.append(step(model, sequences, [9, 5]))
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)


def test_layers_of_another_shape_are_refused():
    backend = TritonAttention(DEVICE, 4, 4)
    args = [x.to(DEVICE) for x in tensors(decode_and_chunk(), torch.float32)]
    with pytest.raises(UnsupportedModel, match="6 heads over 2"):
        backend.attend(*args, backend.plan(decode_and_chunk(), None), scale=1.0)
