"""A decoder layer's small operations: norms, positions, the KV write, the activation."""

from __future__ import annotations

import importlib.util
from typing import Protocol

import torch

from sglang_lite.runtime.kv_cache import KVCache
from sglang_lite.runtime.models.layers import gated, turn_and_store
from sglang_lite.runtime.models.norm import Residual

Tables = tuple[torch.Tensor, torch.Tensor]


class LayerOps(Protocol):
    """What a decoder does between its matrices."""

    def stream(self, x: torch.Tensor) -> Residual:
        """The residual stream that begins with ``x [T, size]``, which becomes its own."""
        ...

    def turn_and_store(
        self,
        qkv: torch.Tensor,
        norm: torch.Tensor | None,
        tables: Tables | None,
        cache: KVCache,
        layer: int,
        slots: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of new tokens; the latter two are stored at ``slots[T]``.

        ``qkv [T, heads + 2 * kv_heads, head_dim]`` may be overwritten.  Queries and keys are
        normalised with ``norm [heads + kv_heads, head_dim]`` and rotated with ``tables``, cosines
        and signed sines ``[T, 1, head_dim]``.
        """
        ...

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """``silu(gate) * up`` of ``gate_up [T, 2 * size]``."""
        ...


class TorchOps:
    """:class:`LayerOps` of torch's operators, for any device."""

    def __init__(self, heads: int, kv_heads: int, eps: float) -> None:
        self.heads, self.kv_heads, self.eps = heads, kv_heads, eps

    def stream(self, x: torch.Tensor) -> Residual:
        """See :class:`LayerOps`."""
        return Residual(x)

    def turn_and_store(
        self,
        qkv: torch.Tensor,
        norm: torch.Tensor | None,
        tables: Tables | None,
        cache: KVCache,
        layer: int,
        slots: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See :class:`LayerOps`."""
        cos, sin = (None, None) if tables is None else tables
        turn_and_store(qkv, norm, cos, sin, cache.layers[layer], slots, self.eps)
        query, key, value = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        return query, key, value

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See :class:`LayerOps`."""
        return gated(gate_up)


def layer_ops(device: torch.device, heads: int, kv_heads: int, eps: float) -> LayerOps:
    """Fused kernels on a GPU where Triton is installed, torch's operators elsewhere."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from sglang_lite.runtime.cuda.layers import FusedOps

        return FusedOps(heads, kv_heads, eps)
    return TorchOps(heads, kv_heads, eps)
