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
    def untouched(self) -> bool:
        """Whether the logits are used as the model gave them."""
        return self.add is None and self.repetition is None and self.banned is None


def sample(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """One token id per row of ``logits`` (float32[S, V], left as it is): int64[S] on its device.

    A row whose logits are not numbers, or without a possible token, gives -1.
    """
    tokens, host = np.full(len(rows), -1, dtype=np.int64), logits.cpu()
    wide = []
    for i, (values, row) in enumerate(zip(host.numpy(), rows, strict=True)):
        if row.allowed is not None:
            tokens[i] = _sample_allowed(host[i], row.allowed, row)
            continue
        if row.greedy and row.untouched:
            tokens[i] = best = _finite_argmax(values)
            # A choice that its mask allows is right without applying the mask.
            if best < 0 or row.mask is None or row.mask[best // 32] >> (best % 32) & 1:
                continue
        wide.append(i)
    # Temporaries of a few megabytes are fetched from the system and given back at every call.
    size = max(WORK_BYTES // (4 * host.shape[1]), 1)
    for start in range(0, len(wide), size):
        block = wide[start : start + size]
        tokens[block] = _sample_wide(_rows(host, block), [rows[i] for i in block])
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


def _sample_allowed(logits: torch.Tensor, ids: np.ndarray, row: SamplingRow) -> int:
    """Choose among a few ids: gather their logits and forget the rest of the vocabulary."""
    if not len(ids):
        return -1
    values = _adjusted(logits[None], [row])[0].numpy()[ids]
    best = _finite_argmax(values)
    if best < 0:
        return -1
    return int(ids[best]) if row.greedy else draw_among(values, ids, row)


def _sample_wide(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> np.ndarray:
    """Choose from the whole vocabulary or from what packed masks leave of it."""
    logits = _masked(_adjusted(logits, rows), rows)
    tokens = np.full(len(rows), -1, dtype=np.int64)
    drawn = [i for i, row in enumerate(rows) if not row.greedy]
    if drawn:
        tokens[drawn] = draw(_rows(logits, drawn), [rows[i] for i in drawn])
    for i, row in enumerate(rows):
        if row.greedy:
            tokens[i] = _finite_argmax(logits[i].numpy())
    return tokens


def _finite_argmax(values: np.ndarray) -> int:
    """The first of the largest, or -1 if that is not a finite number."""
    best = int(values.argmax())
    return best if np.isfinite(values[best]) else -1


def _masked(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """The logits with minus infinity where packed masks forbid; a copy where there are any."""
    width = logits.shape[1]
    if all(row.mask is None for row in rows):
        return logits
    everything = np.full(-(-width // 32), -1, dtype=np.int32)
    masks = np.stack([everything if row.mask is None else row.mask for row in rows])
    packed = masks.astype("<i4").view(np.uint8)
    bits = np.unpackbits(packed, axis=1, count=width, bitorder="little").view(np.bool_)
    return torch.where(torch.from_numpy(bits), logits, -torch.inf)
