"""From logits to token ids, for a whole batch.

Every random choice is the inverse of one cumulative distribution at one number: the tokens in
order of falling probability (ties: rising id), the number a hash of (seed, position, sample).  So
a sample depends on its own logits and seed alone, not on its company, and truncations
(top-k, top-p, min-p) are cuts of one sorted list, of which only the needed top is ever sorted.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from sglang_lite.runtime.device import send
from sglang_lite.runtime.logits_ops import argmax, top, totals

FIRST_TOP = 64
"""So many candidates are sorted at first."""

BINS, BINS_PER_NAT = 512, 16
"""Where these don't suffice, the logits are binned; what is further down shares the last bin."""

NARROW_WORDS = 64
"""A mask whose allowed ids lie in at most so many 32-bit words is turned into a list of ids."""

WORK_BYTES = 3 << 19
"""On a CPU so many bytes of logits are worked on at once."""

_U64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass
class SamplingRow:
    """What one row of logits is turned into a token with.

    * ``uniform``: the random number in (0, 1), see :func:`uniform_noise`.
    * ``add``: ids and numbers added to their logits; ``repetition``: ids and a divisor of
      positive, factor of negative logits.  ``banned``: ids that are impossible.
    * ``allowed``: the only possible ids (sorted), or ``mask``: the same as packed bits
      (int32[ceil(V / 32)], bit i % 32 of word i // 32).
    """

    temperature: float = 0.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    uniform: float = 0.5
    add: tuple[np.ndarray, np.ndarray] | None = None
    repetition: tuple[np.ndarray, float] | None = None
    banned: np.ndarray | None = None
    allowed: np.ndarray | None = None
    mask: np.ndarray | None = None

    @property
    def greedy(self) -> bool:
        """Whether the most probable possible token is taken."""
        return self.temperature <= 0.0

    @property
    def plain(self) -> bool:
        """Whether it is the argmax of the logits as the model gave them."""
        return self.greedy and self.untouched and self.allowed is None and self.mask is None

    @property
    def untouched(self) -> bool:
        """Whether the logits are used as the model gave them."""
        return self.add is None and self.repetition is None and self.banned is None


def uniform_noise(seed: int, position: int, sample: int) -> float:
    """A number in (0, 1) that depends on nothing but its arguments.

    Three rounds of the finalizer of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom
    Number Generators", OOPSLA 2014).
    """
    bits = _mix((seed & _U64) + _GOLDEN)
    bits = _mix(bits + _GOLDEN * (sample + 1))
    bits = _mix(bits + _GOLDEN * (position + 1))
    return ((bits >> 11) + 0.5) * 2.0**-53


def derived_seed(seed: int, number: int) -> int:
    """A seed for the ``number``-th request without one."""
    return _mix(_mix((seed & _U64) + _GOLDEN) + _GOLDEN * (number + 1))


def _mix(bits: int) -> int:
    bits &= _U64
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _U64
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _U64
    return bits ^ (bits >> 31)


def sample(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """One token id per row of ``logits`` (float32[S, V], left as it is): int64[S] on its device.

    A row whose logits are not numbers, or without a possible token, gives -1.
    """
    tokens = np.full(len(rows), -1, dtype=np.int64)
    plain = [i for i, row in enumerate(rows) if row.plain]
    narrow = [i for i, row in enumerate(rows) if row.allowed is not None]
    wide = [i for i, row in enumerate(rows) if row.allowed is None and not row.plain]
    if plain:
        tokens[plain] = _finite_argmax(_rows(logits, plain))
    for i in narrow:
        tokens[i] = _sample_allowed(logits[i], rows[i])
    # Temporaries of a few megabytes are fetched from the system and given back at every call.
    size = len(rows) if logits.is_cuda else max(WORK_BYTES // (4 * logits.shape[1]), 1)
    for start in range(0, len(wide), size):
        block = wide[start : start + size]
        tokens[block] = _sample_wide(_rows(logits, block), [rows[i] for i in block])
    return torch.from_numpy(tokens).to(logits.device)


def allowed_ids(mask: np.ndarray) -> np.ndarray | None:
    """The ids whose bits are set in a packed mask if they lie in few words, else None."""
    words = np.flatnonzero(mask)
    if len(words) > NARROW_WORDS:
        return None
    bits = np.unpackbits(mask[words].astype("<i4").view(np.uint8), bitorder="little")
    at = np.flatnonzero(bits)
    return words[at // 32] * 32 + at % 32


def _rows(logits: torch.Tensor, at: list[int]) -> torch.Tensor:
    """Some rows; a view if they follow each other, else a copy."""
    if at[-1] - at[0] == len(at) - 1:
        return logits[at[0] : at[-1] + 1]
    return logits[at]


def _finite_argmax(logits: torch.Tensor) -> np.ndarray:
    """The id of each row's largest logit, -1 where that is not a finite number."""
    values, ids = argmax(logits)
    return torch.where(torch.isfinite(values), ids, -1).cpu().numpy()


def _adjusted(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """The logits after penalties, biases and bans; a copy where there are any."""
    if all(row.untouched for row in rows):
        return logits
    logits = logits.clone()
    adjust(logits, rows)
    return logits


def adjust(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> None:
    """Apply the rows' penalties, biases and bans to contiguous logits, in place."""
    width, device = logits.shape[1], logits.device
    flat = logits.view(-1)
    changes = [(i * width, row) for i, row in enumerate(rows)]
    repeated = [
        (at + row.repetition[0], row.repetition[1]) for at, row in changes if row.repetition
    ]
    if repeated:
        ids = send(np.concatenate([ids for ids, _ in repeated]), device)
        # Smaller ones would be zero or make logits infinite in single precision.
        bounded = [max(factor, 1e-30) for _, factor in repeated]
        factors = np.repeat(bounded, [len(ids) for ids, _ in repeated])
        values, by = flat[ids], send(factors.astype(np.float32), device)
        flat[ids] = torch.where(values > 0, values / by, values * by)
    added = [(at + row.add[0], row.add[1]) for at, row in changes if row.add]
    if added:
        ids = send(np.concatenate([ids for ids, _ in added]), device)
        amounts = np.concatenate([amounts for _, amounts in added]).astype(np.float32)
        flat.index_add_(0, ids, send(amounts, device))
    banned = [at + row.banned for at, row in changes if row.banned is not None]
    if banned:
        flat.index_fill_(0, send(np.concatenate(banned), device), -torch.inf)


def _sample_allowed(logits: torch.Tensor, row: SamplingRow) -> int:
    """Choose among a few ids: gather their logits and forget the rest of the vocabulary."""
    assert row.allowed is not None
    ids = row.allowed
    if not len(ids):
        return -1
    logits = _adjusted(logits[None], [row])[0]
    values = logits[torch.from_numpy(ids).to(logits.device)].cpu().numpy().astype(np.float64)
    if not np.isfinite(values.max()):
        return -1
    order = np.lexsort((ids, -values))
    if row.greedy:
        return int(ids[order[0]])
    weights = np.exp((values[order] - values[order[0]]) / row.temperature)
    at = _choose(weights.tolist(), np.cumsum(weights).tolist(), row, total=None)
    assert at is not None, "all candidates are there"
    return int(ids[order[at]])


def _sample_wide(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> np.ndarray:
    """Choose from the whole vocabulary or from what packed masks leave of it."""
    logits = _adjusted(logits, rows)
    tokens = np.full(len(rows), -1, dtype=np.int64)
    greedy = [i for i, row in enumerate(rows) if row.greedy]
    if greedy:
        tokens[greedy] = _finite_argmax(_rows(logits, greedy))
    # A greedy choice that its mask allows is right without applying the mask.
    masked = [
        i
        for i, row in enumerate(rows)
        if row.mask is not None and not (row.greedy and _allows(row.mask, tokens[i]))
    ]
    if masked:
        logits = _masked(logits, masked, rows)
        greedy = [i for i in masked if rows[i].greedy]
        if greedy:
            tokens[greedy] = _finite_argmax(_rows(logits, greedy))
    rest = [i for i, row in enumerate(rows) if not row.greedy]
    if rest:
        tokens[rest] = _draw(_rows(logits, rest), [rows[i] for i in rest])
    return tokens


def _draw(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> np.ndarray:
    """Random choices, each from as many of the most probable tokens as it needs."""
    tokens = np.full(len(rows), -1, dtype=np.int64)
    rows = [replace(row, top_k=-1) if row.top_k >= logits.shape[1] else row for row in rows]
    whole_sums = totals(logits, [row.temperature for row in rows])
    decidable = [i for i, total in enumerate(whole_sums) if np.isfinite(total)]
    if not decidable:
        return tokens
    values, ids = top(_rows(logits, decidable), min(FIRST_TOP, logits.shape[1]))
    for at, i in enumerate(decidable):
        # Equal logits at the lower end may have equals outside: their order is not settled yet.
        settled = int((values[at] > values[at, -1]).sum())
        choice = _pick(values[at, :settled], rows[i], whole_sums[i])
        tokens[i] = (
            ids[at, choice] if choice is not None else _draw_deep(logits[i], rows[i], values[at])
        )
    return tokens


def _pick(values: np.ndarray, row: SamplingRow, total: float | None) -> int | None:
    """:func:`_choose` among falling logits, relative to the first."""
    if not len(values):
        return None
    weights = np.exp((values - values[0]) / row.temperature)
    return _choose(weights.tolist(), np.cumsum(weights).tolist(), row, total)


def _draw_deep(logits: torch.Tensor, row: SamplingRow, known: np.ndarray) -> int:
    """A choice that the most probable tokens, whose logits are ``known``, did not decide.

    The vocabulary is put into bins by logit.  The bins' masses and sizes tell how far down the
    decision lies, so that only the tokens above need sorting.
    """
    every = logits.numpy(force=True)
    total = float(totals(logits[None], [row.temperature])[0])
    below = (np.float32(known[0]) - every) / np.float32(row.temperature)
    bins = np.minimum(below * BINS_PER_NAT, BINS - 1).astype(np.int64)
    masses = np.cumsum(np.bincount(bins, np.exp(-below), BINS))
    share = row.top_p if row.top_p < 1.0 else row.uniform
    last = int(np.searchsorted(masses, share * masses[-1] * 1.0001)) + 1
    if row.top_k > 0:
        counts = np.cumsum(np.bincount(bins, minlength=BINS))
        last = max(last, int(np.searchsorted(counts, row.top_k + 1)))
    if row.min_p > 0.0:
        last = max(last, int(-math.log(row.min_p) * BINS_PER_NAT) + 1)
    for bound in (last, BINS):
        at = np.flatnonzero(bins <= bound)
        order = np.lexsort((at, -every[at]))
        choice = _pick(
            every[at[order]].astype(np.float64), row, total if bound < BINS - 1 else None
        )
        if choice is not None:
            return int(at[order[choice]])
    raise AssertionError("all tokens are candidates, and none was chosen")


def _allows(mask: np.ndarray, token: int) -> bool:
    return token >= 0 and bool(mask[token // 32] >> (token % 32) & 1)


def _masked(logits: torch.Tensor, at: list[int], rows: Sequence[SamplingRow]) -> torch.Tensor:
    """A copy in which the rows ``at`` are minus infinity where their masks forbid."""
    masks = np.stack([mask for i in at if (mask := rows[i].mask) is not None])
    bits = np.unpackbits(masks.astype("<i4").view(np.uint8), axis=1, bitorder="little")
    forbidden = torch.from_numpy(bits[:, : logits.shape[1]] == 0).to(logits.device)
    if len(at) == len(logits):
        return logits.masked_fill(forbidden, -torch.inf)
    logits = logits.clone()
    logits[at] = logits[at].masked_fill_(forbidden, -torch.inf)
    return logits


def _choose(
    weights: list[float], sums: list[float], row: SamplingRow, total: float | None
) -> int | None:
    """The index of the candidate at ``row.uniform`` of the truncated distribution.

    ``weights`` are those of the most probable tokens, falling, with their running ``sums``;
    ``total`` is the weight of the whole vocabulary, or None where these are all there are.  None
    if more candidates are needed to decide.
    """
    if not weights:
        return None
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
