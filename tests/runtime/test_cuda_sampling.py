"""Sampling and masks on a device, in Triton's interpreter, against the sampler for CPUs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sglang_lite.runtime.cuda.masks import MaskTable
from sglang_lite.runtime.cuda.sampling import DeviceSampler, sampler_for
from sglang_lite.runtime.sampler import SamplingRow, sample
from tests.runtime.kernels import DEVICE

pytest.importorskip("triton")
VOCAB = 5_000


def logits_of(rows, spread=3.0, seed=0, vocab=VOCAB):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocab, generator=generator) * spread


def packed(ids, vocab=VOCAB):
    bits = np.zeros(-(-vocab // 32) * 32, dtype=np.uint8)
    bits[np.asarray(ids, dtype=np.int64)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def compare(logits, rows):
    before = logits.clone()
    ours = DeviceSampler(DEVICE)(logits.to(DEVICE), rows)
    assert ours.dtype == torch.int64
    assert ours.tolist() == sample(logits, rows).tolist()
    assert torch.equal(logits, before), "the logits are left as they are"


OPTIONS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 1.7]),
        "top_k": st.sampled_from([-1, -1, 1, 5, 70, 700, VOCAB]),
        "top_p": st.sampled_from([1.0, 1.0, 0.05, 0.6, 0.95]),
        "min_p": st.sampled_from([0.0, 0.0, 0.02, 0.5, 1e-6]),
        # Numbers that are the edge between two tokens only by a rare chance.
        "uniform": st.floats(0.001, 0.999).map(lambda u: u + 1.2345e-5),
    }
)


@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.lists(OPTIONS, min_size=1, max_size=4), st.integers(0, 999), st.sampled_from([0.1, 3.0]))
def test_gives_the_tokens_of_the_sampler_for_cpus(options, seed, spread):
    compare(logits_of(len(options), spread, seed), [SamplingRow(**each) for each in options])


@pytest.mark.parametrize(
    "options",
    [{}, {"top_k": 3}, {"top_k": 9, "top_p": 0.5}, {"top_p": 0.4}, {"min_p": 0.9}, {"top_k": 30}],
)
def test_equal_logits_are_taken_in_the_order_of_their_ids(options):
    logits = torch.zeros(6, VOCAB)
    logits[:, [7, 11, 4_000, 4_097]] = 9.0
    logits[:, [3, 4_998]] = 8.0
    logits[:, 5] = -0.0
    uniforms = [0.01, 0.2, 0.4, 0.6, 0.8, 0.99]
    compare(logits, [SamplingRow(1.0, uniform=u, **options) for u in uniforms])


@pytest.mark.parametrize("uniform", [1e-12, 1 - 1e-12])
def test_the_ends_of_the_random_numbers_stay_within_the_cuts(uniform):
    """Rounded to float32 they are the end of the distribution itself."""
    cuts = [{"top_k": 5}, {"top_p": 0.6}, {"min_p": 0.3}, {"top_k": 9, "top_p": 0.8}]
    compare(logits_of(4), [SamplingRow(1.0, uniform=uniform, **cut) for cut in cuts])


def test_a_flat_distribution_is_drawn_from_as_a_whole():
    compare(torch.zeros(3, VOCAB), [SamplingRow(1.0, uniform=u) for u in (0.10003, 0.5, 0.90007)])


def test_penalties_biases_bans_and_masks():
    rng = np.random.default_rng(0)
    some = np.sort(rng.choice(VOCAB, 2_000, replace=False))
    ids = np.array([1, 5, 9, 4_999])
    bias = (ids, np.array([3.0, -2.0, 50.0, -100.0]))
    rows = [
        SamplingRow(add=bias),
        SamplingRow(1.0, uniform=0.3, repetition=(some, 1.7)),
        SamplingRow(1.0, uniform=0.7, mask=packed(some), banned=ids),
        SamplingRow(mask=packed(some)),
        SamplingRow(allowed=ids),
        SamplingRow(0.8, uniform=0.5, allowed=ids, add=bias),
        SamplingRow(1.0, top_k=3, uniform=0.999, mask=packed([17, 4_000])),
    ]
    compare(logits_of(len(rows)), rows)


def test_what_cannot_be_sampled_gives_minus_one():
    logits = logits_of(6)
    logits[0, 17] = torch.nan
    logits[1, 17] = torch.inf
    logits[2] = -torch.inf
    logits[3, 17] = torch.nan
    rows = [SamplingRow(), SamplingRow(1.0), SamplingRow(1.0), SamplingRow(1.0, top_k=2)]
    rows += [SamplingRow(mask=packed([])), SamplingRow(1.0, mask=packed([]))]
    tokens = DeviceSampler(DEVICE)(logits.to(DEVICE), rows)
    assert tokens.tolist() == [-1] * 6


def test_tokens_beyond_the_mask_are_forbidden():
    """A model may have more logits than its tokenizer has tokens."""
    logits = torch.zeros(2, 100)
    logits[:, 70:] = 9.0
    mask = packed([3, 63], vocab=64)
    rows = [SamplingRow(mask=mask), SamplingRow(1.0, uniform=0.99, mask=mask)]
    assert DeviceSampler(DEVICE)(logits.to(DEVICE), rows).tolist() == [3, 63]


def test_a_mask_is_sent_once():
    table = MaskTable(DEVICE, 4, lines=3)
    masks = [packed([i, 64 + i], vocab=128) for i in range(4)]
    rows = [SamplingRow(mask=mask) for mask in masks]
    assert table.lines([SamplingRow(), rows[0], rows[1]]).tolist() == [-1, 0, 1]
    assert table.lines([rows[0], rows[1], rows[0]]).tolist() == [0, 1, 0]
    assert table.sent == 2
    # The third line is free; then the mask that was used longest ago makes room.
    assert table.lines([rows[2], rows[0]]).tolist() == [2, 0]
    assert table.lines([rows[3], rows[2]]).tolist() == [1, 2]
    assert table.sent == 4
    assert [table.table[line].tolist() for line in (0, 1, 2)] == [
        masks[i].tolist() for i in (0, 3, 2)
    ]


def test_a_step_with_more_masks_than_lines_gets_a_larger_table():
    table = MaskTable(DEVICE, 4, lines=2)
    masks = [packed([i], vocab=128) for i in range(5)]
    lines = table.lines([SamplingRow(mask=mask) for mask in masks])
    assert [table.table[line].tolist() for line in lines] == [mask.tolist() for mask in masks]


def test_another_mask_at_the_same_address_is_another_mask():
    table = MaskTable(DEVICE, 4, lines=8)
    seen = []
    for i in range(20):
        line = table.lines([SamplingRow(mask=packed([i], vocab=128))])[0]
        seen.append(table.table[line].tolist())
    assert seen == [packed([i], vocab=128).tolist() for i in range(20)]


@pytest.mark.skipif(DEVICE.type != "cpu", reason="is about CPUs")
def test_on_a_cpu_the_plain_sampler_is_used():
    assert sampler_for(torch.device("cpu")) is sample
