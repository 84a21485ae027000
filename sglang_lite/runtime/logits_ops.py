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


def top(logits: torch.Tensor, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The ``count`` largest logits of each row, falling, and their ids; ties by rising id.

    float64[R, count] and int64[R, count] on the host.  Which of the logits that equal the last one
    are among them is not defined.
    """
    if logits.is_cuda or 4 * count * BLOCK > logits.shape[1]:
        values, ids = torch.topk(logits, count, dim=-1, sorted=False)
    else:
        # Whatever exceeds the count-th largest logit lies in one of the count largest blocks.
        blocks = torch.topk(_block_maxima(logits), count, dim=-1, sorted=False).indices
        values, at = torch.topk(_blocks(logits, blocks), count, dim=-1, sorted=False)
        ids = blocks.gather(1, at // BLOCK) * BLOCK + at % BLOCK
    falling, ids_ = values.cpu().numpy().astype(np.float64), ids.cpu().numpy()
    order = np.lexsort((ids_, -falling), axis=-1)
    return np.take_along_axis(falling, order, -1), np.take_along_axis(ids_, order, -1)


def totals(logits: torch.Tensor, temperatures: Sequence[float]) -> np.ndarray:
    """For each row the sum of exp((logit - largest) / temperature): float64[R] on the host."""
    if logits.is_cuda:
        divisors = torch.tensor(temperatures, device=logits.device)[:, None]
        largest = torch.softmax(logits / divisors, dim=-1).amax(dim=-1)
    else:
        # Row by row: temporaries that stay in the cache, instead of fresh pages for all rows.
        pairs = zip(logits, temperatures, strict=True)
        largest = torch.stack([torch.softmax(row / t, dim=-1).amax() for row, t in pairs])
    return 1.0 / largest.double().cpu().numpy()


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
