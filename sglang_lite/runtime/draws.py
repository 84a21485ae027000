"""Random choices from rows of logits on a CPU.

Every choice is the inverse of one cumulative distribution at one number: the tokens in order of
falling probability (ties: rising id), the number a hash of (seed, position, sample).  So
a sample depends on its own logits and seed alone, not on its company, and truncations
(top-k, top-p, min-p) are cuts of one sorted list, of which only the needed top is ever sorted.
Logits are sorted without their ids; the id of the one that is chosen is looked up.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from sglang_lite.runtime.sampler import SamplingRow

FIRST_TOP, SECOND_TOP = 64, 4096
"""So many candidates are sorted at first, so many where these don't suffice, and then all."""

BLOCK = 64
"""The largest logits lie in blocks of so many; to find the best blocks is faster than a top-k."""


def draw(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> np.ndarray:
    """A token for each row of logits (float32[R, V], contiguous): int64[R], -1 for none."""
    tokens = np.full(len(rows), -1, dtype=np.int64)
    wholes = totals(logits, [row.temperature for row in rows])
    able = np.flatnonzero(np.isfinite(wholes)).tolist()
    if not able:
        return tokens
    every = logits.numpy()
    values = top(logits[able] if len(able) < len(rows) else logits, FIRST_TOP)
    weights, sums = _weigh(values, np.array([[rows[i].temperature] for i in able]))
    for at, i in enumerate(able):
        rank = choose(weights[at], sums[at], rows[i], wholes[i])
        if rank is None:
            tokens[i] = _draw_deep(every[i], rows[i], wholes[i])
        else:
            tokens[i] = _id_of(every[i], values[at], rank)
    return tokens


def top(logits: torch.Tensor, count: int) -> np.ndarray:
    """The ``count`` largest logits of each row (all, if there are fewer), falling: on a CPU."""
    rows, size = logits.shape
    if 4 * count * BLOCK > size:
        pool = logits.numpy()
    else:
        # Whatever exceeds the count-th largest logit lies in one of the count largest blocks.
        whole = size - size % BLOCK
        blocks = logits[:, :whole].view(rows, -1, BLOCK)
        best = np.argpartition(blocks.amax(dim=-1).numpy(), -count, axis=-1)[:, -count:]
        pool = blocks.numpy()[np.arange(rows)[:, None], best].reshape(rows, -1)
        if whole < size:
            pool = np.concatenate([pool, logits[:, whole:].numpy()], axis=-1)
    if count < pool.shape[1]:
        pool = np.partition(pool, -count, axis=-1)[:, -count:]
    return np.sort(pool, axis=-1)[:, ::-1]


def totals(logits: torch.Tensor, temperatures: Sequence[float]) -> np.ndarray:
    """For each row the sum of exp((logit - largest) / temperature): float64[R], on a CPU."""
    if any(temperature != 1.0 for temperature in temperatures):
        logits = logits / torch.tensor(temperatures)[:, None]
    return 1.0 / torch.softmax(logits, dim=-1).amax(dim=-1).double().numpy()


def draw_among(logits: np.ndarray, ids: np.ndarray, row: SamplingRow) -> int:
    """The same among a few ids (rising), whose logits are given."""
    order = np.argsort(-logits, kind="stable")
    weights, sums = _weigh(logits[order], row.temperature)
    rank = choose(weights, sums, row, total=None)
    assert rank is not None, "all candidates are there"
    return int(ids[order[rank]])


def _draw_deep(logits: np.ndarray, row: SamplingRow, total: float) -> int:
    """A choice that the most probable tokens did not decide."""
    if len(logits) > SECOND_TOP:
        values = np.sort(np.partition(logits, -SECOND_TOP)[-SECOND_TOP:])[::-1]
        rank = choose(*_weigh(values, row.temperature), row, total)
        if rank is not None:
            return _id_of(logits, values, rank)
    values = np.sort(logits)[::-1]
    rank = choose(*_weigh(values, row.temperature), row, total=None)
    assert rank is not None, "all tokens are candidates"
    return _id_of(logits, values, rank)


def _weigh(values: np.ndarray, temperature: float | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weights of falling logits, relative to the first, and their running sums: float64."""
    below = values.astype(np.float64)
    weights = np.exp((below - below[..., :1]) / temperature)
    return weights, np.cumsum(weights, axis=-1)


def _id_of(logits: np.ndarray, falling: np.ndarray, rank: int) -> int:
    """Which token is at this place of the ``falling`` logits; equal ones are in order of id."""
    value = falling[rank]
    before = rank - bisect_left(falling, -value, 0, rank, key=operator.neg)
    equal = logits == value
    return int(np.flatnonzero(equal)[before]) if before else int(equal.argmax())


def choose(
    weights: np.ndarray, sums: np.ndarray, row: SamplingRow, total: float | None
) -> int | None:
    """The index of the candidate at ``row.uniform`` of the truncated distribution.

    ``weights`` are those of the most probable tokens, falling, with their running ``sums``;
    ``total`` is the weight of the whole vocabulary, or None where these are all there are.  None
    if more candidates are needed to decide.
    """
    # ``kept`` tokens of total weight ``mass`` are left after each cut; ``whole`` unless tokens
    # beyond the given ones are among them.
    kept, mass, whole = len(weights), sums[-1] if total is None else total, total is None
    if 0 < row.top_k < kept:
        kept, mass, whole = row.top_k, sums[row.top_k - 1], True
    elif row.top_k > 0 and not whole:
        return None
    if row.top_p < 1.0:
        nucleus = bisect_left(sums, row.top_p * mass, 0, kept) + 1
        if nucleus > kept and not whole:
            return None
        kept = min(nucleus, kept)
        mass, whole = sums[kept - 1], True
    if row.min_p > 0.0:
        strong = bisect_right(weights, -row.min_p, 0, kept, key=operator.neg)
        if strong == kept and not whole:
            return None
        kept, mass, whole = strong, sums[strong - 1], True
    at = bisect_right(sums, row.uniform * mass, 0, kept)
    if at < kept:
        return at
    return kept - 1 if whole else None
