"""Sampling on the device: the tokens of :func:`sglang_lite.runtime.sampler.sample`, no waiting.

A row is inverted as on a CPU, at the same number of the same distribution in the same order, so
it gives the same token up to rounding.  Nothing is sorted: each cut (top-k, top-p, the draw) is a
threshold on the logits, found by narrowing a range of them by the weight of what lies above.  This
is the idea of the sorting-free kernels of FlashInfer (Ye et al., "FlashInfer", MLSys 2025), here
without rejection, because a draw has to be repeatable.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence

import numpy as np
import torch

from sglang_lite.runtime.cuda.masks import MaskTable
from sglang_lite.runtime.device import send
from sglang_lite.runtime.sampler import SamplingRow, adjust, sample

Sampler = Callable[[torch.Tensor, Sequence[SamplingRow]], torch.Tensor]

_MASK_BLOCK, _BLOCK, _SMALL_BLOCK = 1024, 4096, 1024


def sampler_for(device: torch.device) -> Sampler:
    """How rows of logits on ``device`` become token ids (int64[rows] there)."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        return DeviceSampler(device)
    return sample


class DeviceSampler:
    """Samples without a copy to the host and without waiting for the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._masks: MaskTable | None = None

    def __call__(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
        """One token id per row of ``logits`` (float32[S, V], left as it is): int64[S].

        A row whose logits are not numbers, or without a possible token, gives -1.
        """
        from sglang_lite.runtime.cuda.kernels import sample_rows

        count, vocab = logits.shape
        logits = self._prepared(logits, rows)
        host = np.empty((count, 5), dtype=np.float32)
        for i, row in enumerate(rows):
            top_k = row.top_k if 0 < row.top_k < vocab else 0
            host[i] = (row.temperature, top_k, row.top_p, row.min_p, row.uniform)
        tokens = torch.empty(count, dtype=torch.int64, device=self.device)
        # Greedy rows never touch it.
        size = (count, vocab) if any(not row.greedy for row in rows) else (0, 0)
        sample_rows[(count,)](
            logits,
            send(host, self.device),
            tokens,
            torch.empty(size, dtype=torch.float32, device=self.device),
            torch.empty(size, dtype=torch.int32, device=self.device),
            logits.stride(0),
            vocab,
            BLOCK=_BLOCK,
            SMALL=_SMALL_BLOCK,
            num_warps=16,
        )
        return tokens

    def _prepared(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
        """The logits after penalties, biases, bans and masks; a copy where there are any."""
        if any(row.mask is not None or row.allowed is not None for row in rows):
            logits = self._masked(logits, rows)
        elif not all(row.untouched for row in rows):
            logits = logits.clone(memory_format=torch.contiguous_format)
        adjust(logits, rows)
        return logits

    def _masked(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
        from sglang_lite.runtime.cuda.kernels import mask_logits

        count, vocab = logits.shape
        words = -(-vocab // 32)
        if self._masks is None or self._masks.words != words:
            self._masks = MaskTable(self.device, words)
        lines = send(self._masks.lines(rows), self.device)
        out = torch.empty((count, vocab), dtype=logits.dtype, device=self.device)
        mask_logits[(count, -(-vocab // _MASK_BLOCK))](
            logits,
            out,
            self._masks.table,
            lines,
            logits.stride(0),
            vocab,
            words,
            BLOCK=_MASK_BLOCK,
        )
        return out
