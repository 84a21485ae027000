"""From logits to token ids, for a whole batch: what may be chosen, then the choice.

The random ones are :mod:`sglang_lite.runtime.draws`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sglang_lite.runtime.device import send
from sglang_lite.runtime.draws import draw, draw_among
from sglang_lite.runtime.logits_ops import argmax

NARROW_WORDS = 64
"""A mask whose allowed ids lie in at most so many 32-bit words is turned into a list of ids."""

WORK_BYTES = 3 << 19
"""So many bytes of logits are worked on at once."""


@dataclass
class SamplingRow:
    """What one row of logits is turned into a token with.

    * ``uniform``: the random number in (0, 1), see :mod:`~sglang_lite.runtime.noise`.
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


def sample(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """One token id per row of ``logits`` (float32[S, V], left as it is): int64[S] on its device.

    A row whose logits are not numbers, or without a possible token, gives -1.
    """
    tokens, device = np.full(len(rows), -1, dtype=np.int64), logits.device
    plain = [i for i, row in enumerate(rows) if row.plain]
    narrow = [i for i, row in enumerate(rows) if row.allowed is not None]
    wide = [i for i, row in enumerate(rows) if row.allowed is None and not row.plain]
    if plain:
        tokens[plain] = _finite_argmax(_rows(logits, plain))
    if narrow or wide:
        logits = logits.cpu()
    for i in narrow:
        tokens[i] = _sample_allowed(logits[i], rows[i])
    # Temporaries of a few megabytes are fetched from the system and given back at every call.
    size = max(WORK_BYTES // (4 * logits.shape[1]), 1)
    for start in range(0, len(wide), size):
        block = wide[start : start + size]
        tokens[block] = _sample_wide(_rows(logits, block), [rows[i] for i in block])
    return torch.from_numpy(tokens).to(device)


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
    values = _adjusted(logits[None], [row])[0].numpy()[ids]
    best = int(values.argmax())
    if not np.isfinite(values[best]):
        return -1
    return int(ids[best]) if row.greedy else draw_among(values, ids, row)


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
        tokens[rest] = draw(_rows(logits, rest), [rows[i] for i in rest])
    return tokens


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
