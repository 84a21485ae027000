"""From logits to token ids, for a whole batch.

Every random choice is the inverse of one cumulative distribution at one number: the tokens in
order of falling probability (ties: rising id), the number a hash of (seed, position, sample).  So
a sample depends on its own logits and seed alone, not on its company, and truncations
(top-k, top-p, min-p) are cuts of one sorted list, of which only the needed top is ever sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

FIRST_TOP = 64
"""So many candidates are sorted at first; eight times more wherever they don't suffice."""

NARROW_WORDS = 64
"""A mask whose allowed ids lie in at most so many 32-bit words is turned into a list of ids."""

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


def sample(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    """One token id per row of ``logits`` (float32[S, V], left as it is).

    A row whose logits are not numbers, or without a possible token, gives -1.
    """
    plain = [i for i, row in enumerate(rows) if row.greedy and row.untouched and _open(row)]
    tokens = np.full(len(rows), -1, dtype=np.int64)
    if plain:
        picked = logits if len(plain) == len(rows) else logits[plain]
        values, ids = picked.max(dim=-1)
        tokens[plain] = _where_finite(ids, values)
    rest = [i for i in range(len(rows)) if i not in set(plain)]
    if rest:
        changed = [i for i in rest if not rows[i].untouched]
        if changed:
            logits = logits.clone()
            for i in changed:
                _adjust(logits[i], rows[i])
        narrow = [i for i in rest if rows[i].allowed is not None]
        for i in narrow:
            tokens[i] = _sample_allowed(logits[i], rows[i])
        wide = [i for i in rest if rows[i].allowed is None]
        if wide:
            tokens[wide] = _sample_wide(logits[wide], [rows[i] for i in wide])
    return tokens.tolist()


def allowed_ids(mask: np.ndarray) -> np.ndarray | None:
    """The ids whose bits are set in a packed mask if they lie in few words, else None."""
    words = np.flatnonzero(mask)
    if len(words) > NARROW_WORDS:
        return None
    bits = np.unpackbits(mask[words].astype("<i4").view(np.uint8), bitorder="little")
    at = np.flatnonzero(bits)
    return words[at // 32] * 32 + at % 32


def _open(row: SamplingRow) -> bool:
    return row.allowed is None and row.mask is None


def _adjust(logits: torch.Tensor, row: SamplingRow) -> None:
    """Penalties, biases and bans, in place on one row."""
    if row.repetition is not None:
        ids, factor = row.repetition
        at = torch.from_numpy(ids).to(logits.device)
        values = logits[at]
        logits[at] = torch.where(values > 0, values / factor, values * factor)
    if row.add is not None:
        ids, values_added = row.add
        at = torch.from_numpy(ids).to(logits.device)
        logits.index_add_(0, at, torch.from_numpy(values_added).to(logits))
    if row.banned is not None:
        logits[torch.from_numpy(row.banned).to(logits.device)] = -torch.inf


def _sample_allowed(logits: torch.Tensor, row: SamplingRow) -> int:
    """Choose among a few ids: gather their logits and forget the rest of the vocabulary."""
    assert row.allowed is not None
    ids = row.allowed
    if not len(ids):
        return -1
    values = logits[torch.from_numpy(ids).to(logits.device)].cpu().numpy().astype(np.float64)
    if not np.isfinite(values.max()):
        return -1
    order = np.lexsort((ids, -values))
    token = _choose(values[order], ids[order], row, total=None)
    assert token is not None, "all candidates are there"
    return token


def _sample_wide(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> np.ndarray:
    """Choose from the whole vocabulary; ``logits`` is a copy."""
    masked = [i for i, row in enumerate(rows) if row.mask is not None]
    if masked:
        masks = np.stack([row.mask for row in rows if row.mask is not None])
        bits = np.unpackbits(masks.astype("<i4").view(np.uint8), axis=1, bitorder="little")
        forbidden = torch.from_numpy(bits[:, : logits.shape[1]] == 0).to(logits.device)
        logits[masked] = logits[masked].masked_fill_(forbidden, -torch.inf)
    tokens = np.full(len(rows), -1, dtype=np.int64)
    best, ids = logits.max(dim=-1)
    finite = _where_finite(ids, best)
    greedy = [i for i, row in enumerate(rows) if row.greedy]
    tokens[greedy] = finite[greedy]
    rest = [i for i, row in enumerate(rows) if not row.greedy and finite[i] >= 0]
    if rest:
        temperatures = torch.tensor([[rows[i].temperature] for i in rest], device=logits.device)
        scaled = (logits[rest] - best[rest, None]) / temperatures
        totals = scaled.exp().sum(dim=-1, dtype=torch.float64).cpu().numpy()
    top = FIRST_TOP
    while rest:
        top = min(top, logits.shape[1])
        values, candidates = _top(logits[rest], top)
        undecided = []
        for at, i in enumerate(rest):
            token = _choose(values[at], candidates[at], rows[i], totals[at], logits.shape[1])
            if token is None:
                undecided.append(at)
            else:
                tokens[i] = token
        rest = [rest[at] for at in undecided]
        totals = totals[undecided]
        top *= 8
    return tokens


def _top(logits: torch.Tensor, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The ``count`` largest logits per row as float64, falling, and their ids; ties by id."""
    values, ids = torch.topk(logits, count, dim=-1, sorted=False)
    values_, ids_ = values.cpu().numpy().astype(np.float64), ids.cpu().numpy()
    order = np.lexsort((ids_, -values_), axis=-1)
    return np.take_along_axis(values_, order, -1), np.take_along_axis(ids_, order, -1)


def _choose(
    values: np.ndarray,
    ids: np.ndarray,
    row: SamplingRow,
    total: float | None,
    vocabulary: int | None = None,
) -> int | None:
    """The token at ``row.uniform`` of the truncated distribution.

    ``values`` are the largest logits, falling; ``total`` is the sum of exp((logit - largest) /
    temperature) over all, or None where ``values`` are all there are.  None if more candidates are
    needed to decide.
    """
    if row.greedy:
        return int(ids[0])
    complete = total is None or len(values) == vocabulary
    # Equal logits at the lower end may have equals outside: their order is not settled yet.
    settled = len(values) if complete else int((values > values[-1]).sum())
    if settled == 0:
        return None
    weights = np.exp((values[:settled] - values[0]) / row.temperature)
    sums = np.cumsum(weights)
    # ``kept`` tokens of total weight ``mass`` are left after each cut; ``whole`` while nothing is
    # cut off, so that tokens beyond the settled ones may be meant.
    kept, mass, whole = settled, float(sums[-1]), complete
    if total is not None and not complete:
        mass = total
    if 0 < row.top_k < settled:
        kept, mass, whole = row.top_k, float(sums[row.top_k - 1]), True
    elif row.top_k > 0 and not complete:
        return None
    if row.top_p < 1.0:
        nucleus = int(np.searchsorted(sums[:kept], row.top_p * mass)) + 1
        if nucleus > kept and not whole:
            return None
        kept = min(nucleus, kept)
        mass, whole = float(sums[kept - 1]), True
    if row.min_p > 0.0:
        strong = int((weights[:kept] >= row.min_p).sum())
        if strong == kept and not whole:
            return None
        kept = strong
        mass, whole = float(sums[kept - 1]), True
    at = int(np.searchsorted(sums[:kept], row.uniform * mass, side="right"))
    if at < kept:
        return int(ids[at])
    return int(ids[kept - 1]) if whole else None


def _where_finite(ids: torch.Tensor, best: torch.Tensor) -> np.ndarray:
    """``ids`` on the host, -1 where the largest logit is not a finite number."""
    return torch.where(torch.isfinite(best), ids, -1).cpu().numpy()
