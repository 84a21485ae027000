"""The sampler against plain formulas, and the independence of a row from its company."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_lite.runtime import sampler
from sglang_lite.runtime.draws import top, totals
from sglang_lite.runtime.noise import uniform_noise
from sglang_lite.runtime.sampler import SamplingRow, allowed_ids

VOCAB = 1000


def sample(logits: torch.Tensor, rows: list[SamplingRow]) -> list[int]:
    return sampler.sample(logits, rows).tolist()


def some_logits(rows: int, seed: int = 0, vocab: int = VOCAB, ties: bool = False) -> torch.Tensor:
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3
    return logits.bfloat16().float() if ties else logits


def reference(logits: torch.Tensor, row: SamplingRow) -> int:
    """The definition, with a full sort in double precision."""
    values = logits.double().numpy().copy()
    if row.mask is not None:
        bits = np.unpackbits(row.mask.view(np.uint8), bitorder="little")[: len(values)]
        values[bits == 0] = -np.inf
    order = np.lexsort((np.arange(len(values)), -values))
    weights = np.exp((values[order] - values[order[0]]) / row.temperature)
    if row.top_k > 0:
        weights[row.top_k :] = 0
    sums = np.cumsum(weights)
    weights[np.concatenate([[0.0], sums[:-1]]) >= row.top_p * sums[-1] * (1 - 1e-12)] = 0
    weights[weights < row.min_p] = 0
    sums = np.cumsum(weights)
    return int(
        order[min(np.searchsorted(sums, row.uniform * sums[-1], side="right"), len(order) - 1)]
    )


@pytest.mark.parametrize("vocab", [64, 65, 1000, 2048, 4100])
@pytest.mark.parametrize("ties", [False, True])
def test_the_top_equals_a_sort(vocab: int, ties: bool) -> None:
    logits = some_logits(9, vocab=vocab, ties=ties)
    logits[3, : vocab // 2] = -torch.inf
    for count in (1, 5, 20, vocab, vocab + 1):
        expected = np.sort(logits.numpy(), axis=1)[:, ::-1][:, :count]
        assert top(logits, count).tolist() == expected.tolist()


def test_totals_are_normalisers() -> None:
    logits = some_logits(3)
    for temperature in (0.3, 1.0, 7.0):
        scaled = (logits.double() - logits.double().amax(-1, keepdim=True)) / temperature
        expected = scaled.exp().sum(-1).tolist()
        assert totals(logits, [temperature] * 3).tolist() == pytest.approx(expected, rel=1e-5)


def test_greedy_takes_the_first_of_equals() -> None:
    logits = torch.zeros(2, 10)
    logits[1, 7] = 1
    assert sample(logits, [SamplingRow(), SamplingRow()]) == [0, 7]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 5.0},
        {"top_k": 5},
        {"top_k": 300},
        {"top_k": VOCAB},
        {"top_k": 10**9, "top_p": 0.9},
        {"top_p": 0.3},
        {"top_p": 0.999, "temperature": 4.0},
        {"min_p": 0.2},
        {"min_p": 0.0001},
        {"top_k": 50, "top_p": 0.8, "min_p": 0.01},
    ],
)
def test_random_choice_equals_its_definition(fields: dict, ties: bool) -> None:
    logits = some_logits(40, ties=ties)
    rows = [
        SamplingRow(**{"temperature": 1.0, **fields}, uniform=(i + 0.5) / 40) for i in range(40)
    ]
    expected = [reference(logits[i], row) for i, row in enumerate(rows)]
    assert sample(logits, rows) == expected


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 3.0, 50.0])
def test_a_choice_far_down_equals_its_definition(temperature: float, ties: bool) -> None:
    """Among the first 64, the first 4,096, or further down."""
    logits = some_logits(60, vocab=9001, ties=ties)
    rows = [SamplingRow(temperature, uniform=(i + 0.5) / 60) for i in range(60)]
    expected = [reference(logits[i], row) for i, row in enumerate(rows)]
    assert sample(logits, rows) == expected
    ranks = [int((logits[i] > logits[i, token]).sum()) for i, token in enumerate(expected)]
    assert (min(ranks) < 64) and (max(ranks) > 4096 or temperature == 1.0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.5, 1.0, 6.0]),
            st.sampled_from([-1, 3, 200]),
            st.sampled_from([1.0, 0.5, 0.99]),
            st.floats(0.001, 0.999),
            st.booleans(),
        ),
        min_size=2,
        max_size=6,
    )
)
def test_a_row_does_not_depend_on_its_company(specs: list) -> None:
    logits = some_logits(len(specs), seed=3, ties=True)
    mask = np.full((VOCAB + 31) // 32, 0x0F0F0F0F, np.int32)
    rows = [
        SamplingRow(t, top_k=k, top_p=p, uniform=u, mask=mask if masked else None)
        for t, k, p, u, masked in specs
    ]
    together = sample(logits, rows)
    alone = [sample(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)]
    assert together == alone


def test_frequencies_follow_the_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    draws = 4000
    rows = [SamplingRow(1.0, uniform=uniform_noise(7, i, 0)) for i in range(draws)]
    tokens = sample(logits.expand(draws, 4).contiguous(), rows)
    expected = torch.softmax(logits[0], 0).numpy()
    observed = np.bincount(tokens, minlength=4) / draws
    assert np.abs(observed - expected).max() < 4 * np.sqrt(0.25 / draws)


def test_noise_is_uniform_and_separates_its_arguments() -> None:
    values = np.array([uniform_noise(1, position, 0) for position in range(20000)])
    assert 1e-10 < values.min() < 0.001
    assert 0.999 < values.max() < 1
    counts = np.histogram(values, bins=50, range=(0, 1))[0]
    assert ((counts - 400) ** 2 / 400).sum() < 100, "chi-square with 49 degrees of freedom"
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03
    distinct = {
        uniform_noise(s, p, i) for s in (-1, 0, 1, 2**62) for p in range(9) for i in range(9)
    }
    assert len(distinct) == 4 * 9 * 9


def test_noise_is_the_same_for_ever() -> None:
    """A stored seed must give the same text in the next release."""
    assert uniform_noise(0, 0, 0) == 0.13870941014555432
    assert uniform_noise(42, 17, 3) == 0.9411914265456889


def test_penalties_and_biases_by_hand() -> None:
    logits = torch.tensor([[2.0, 1.9, -1.0, -1.1]])
    one = np.array([0])
    add = SamplingRow(add=(one, np.array([-0.2])))
    assert sample(logits, [add]) == [1]
    repetition = SamplingRow(repetition=(one, 2.0))
    assert sample(logits, [repetition]) == [1]
    only_negative = SamplingRow(
        repetition=(np.array([2]), 2.0), banned=np.array([0, 1]), add=(one, np.array([50.0]))
    )
    assert sample(logits, [only_negative]) == [3]
    assert logits.tolist() == [[2.0, pytest.approx(1.9), -1.0, pytest.approx(-1.1)]]


def test_masks_narrow_and_wide_agree() -> None:
    logits = some_logits(30, ties=True)
    rng = np.random.default_rng(0)
    for row in range(30):
        ids = np.sort(rng.choice(VOCAB, size=20, replace=False))
        bits = np.zeros(1024, np.uint8)
        bits[ids] = 1
        mask = np.packbits(bits, bitorder="little").view(np.int32)
        assert allowed_ids(mask).tolist() == ids.tolist()
        fields = {"temperature": row % 3 / 2, "uniform": 0.37, "top_p": 0.9}
        wide, narrow = SamplingRow(mask=mask, **fields), SamplingRow(allowed=ids, **fields)
        one = logits[row : row + 1]
        assert sample(one, [wide]) == sample(one, [narrow])
        assert sample(one, [wide])[0] in ids


def test_a_full_mask_stays_packed() -> None:
    assert allowed_ids(np.full(100, -1, np.int32)) is None
    assert allowed_ids(np.array([-(2**31)], np.int32)).tolist() == [31]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "row",
    [
        SamplingRow(),
        SamplingRow(1.0),
        SamplingRow(1.0, allowed=np.array([2, 3])),
        SamplingRow(add=(np.array([1]), np.array([1.0]))),
    ],
)
def test_bad_logits_give_no_token_and_spare_the_others(bad: float, row: SamplingRow) -> None:
    logits = some_logits(3)
    logits[1] = bad
    first, broken, last = sample(logits, [row, row, row])
    assert broken == -1
    assert first >= 0
    assert last >= 0


def test_no_possible_token_is_minus_one() -> None:
    logits = some_logits(1)
    assert sample(logits, [SamplingRow(allowed=np.array([], np.int64))]) == [-1]
    nothing = np.zeros((VOCAB + 31) // 32, np.int32)
    assert sample(logits, [SamplingRow(mask=nothing)]) == [-1]
