"""The Triton kernels, in Triton's interpreter, against the obvious attention."""

from __future__ import annotations

import os

# Kernels are compiled or interpreted by what this says when their module is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sglang_lite.errors import UnsupportedModel
from sglang_lite.runtime.attention.reference import ReferenceAttention
from sglang_lite.runtime.attention.triton import TritonAttention
from sglang_lite.runtime.batch import Row
from sglang_lite.runtime.models.loader import load_model
from tests.runtime.test_attention_cpu import DIM, GROUP, KV_HEADS, ragged_rows, tensors
from tests.runtime.test_model_decoder import Sequence, prompt, step
from tests.runtime.tiny import make_tiny_model

pytest.importorskip("triton")
# The interpreter cannot multiply bfloat16.
HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


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


def test_a_decode_is_split_along_its_keys():
    backend = TritonAttention(DEVICE, KV_HEADS * GROUP, KV_HEADS)
    plan = backend.plan([Row(np.arange(1000), 999)], None)
    assert plan.parts == 8
    assert [(block, len(items)) for block, items in plan.launches] == [(16, 8)]
    compare([Row(np.arange(1000), 999)])


def test_a_shared_prefix_is_one_set_of_keys():
    rows = [Row(np.append(np.arange(120), [200 + i]), 120) for i in range(20)]
    plan = TritonAttention(DEVICE, KV_HEADS * GROUP, KV_HEADS).plan(rows, None)
    # 20 tokens of 3 heads fill one block of 64 rows; the own keys are 20 small items.
    assert [(block, len(items)) for block, items in plan.launches] == [(16, 20), (64, 1)]
    compare(rows)


def test_a_chunk_reads_no_key_after_its_block():
    plan = TritonAttention(DEVICE, KV_HEADS * GROUP, KV_HEADS).plan([Row(np.arange(50), 0)], None)
    ((block, items),) = plan.launches
    assert block == 64
    assert items[:, 1].tolist() == [21, 21, 8]
    assert items[:, 3].tolist() == [21, 42, 50]


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
