"""The seam between the engine and any model: a flat batch in, hidden states and logits out."""

from __future__ import annotations

from typing import Protocol

import torch

from sglang_lite.runtime.batch import Batch
from sglang_lite.runtime.kv_cache import KVCache
from sglang_lite.runtime.models.config import ModelConfig


class Model(Protocol):
    """A causal language model with its KV cache.

    Both methods run in inference mode, keep no state but the KV cache, and are called from one
    thread at a time.
    """

    config: ModelConfig
    kv_cache: KVCache
    device: torch.device
    dtype: torch.dtype

    def forward(self, batch: Batch) -> torch.Tensor:
        """Compute the batch's T new tokens, write their KV slots; hidden states ``[T, hidden]``.

        The final norm is already applied: any row of the result can go to :meth:`logits`.
        """
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Next-token logits ``float32[R, vocab_size]`` of hidden states ``[R, hidden]``."""
        ...
