"""Operations over rows of logits (float32[R, V]) that read the vocabulary once and sort little.

A pass that takes the maximum of each block of 64 logits is many times faster than an argmax or a
top-k over all of them; the rest of the work then looks at few blocks only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

BLOCK = 64


def argmax(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest logit of each row and its id, the lowest among equals: float32[R], int64[R]."""
    if logits.is_cuda:
        return logits.max(dim=-1)
    block = _block_maxima(logits).argmax(dim=-1, keepdim=True)
    values, at = _blocks(logits, block).max(dim=-1, keepdim=True)
    return values[:, 0], (block * BLOCK + at)[:, 0]


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


def _block_maxima(logits: torch.Tensor) -> torch.Tensor:
    rows, size = logits.shape
    whole = size - size % BLOCK
    maxima = logits[:, :whole].view(rows, -1, BLOCK).amax(dim=-1)
    if whole < size:
        maxima = torch.cat([maxima, logits[:, whole:].amax(dim=-1, keepdim=True)], dim=-1)
    return maxima


def _blocks(logits: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """The logits in ``blocks`` (int64[R, B]) of each row: float32[R, B * 64]."""
    ids = (blocks[:, :, None] * BLOCK + torch.arange(BLOCK, device=logits.device)).flatten(1)
    values = logits.gather(1, ids.clamp(max=logits.shape[1] - 1))
    if logits.shape[1] % BLOCK:
        values = values.masked_fill_(ids >= logits.shape[1], -torch.inf)
    return values
