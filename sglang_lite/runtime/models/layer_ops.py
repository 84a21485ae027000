"""A decoder layer's small operations: norms, positions, the KV write, the activation."""

from __future__ import annotations

import importlib.util
from typing import Protocol

import torch
import torch.nn.functional as F

from sglang_lite.runtime.kv_cache import KVCache
from sglang_lite.runtime.models.norm import Residual, residual_stream

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
        return residual_stream(x)

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
        heads, kv_heads, dim = self.heads, self.kv_heads, qkv.shape[-1]
        # Queries and keys are turned in place: a key stays beside its value, one write for both.
        turned = qkv.narrow(1, 0, heads + kv_heads)
        if norm is not None:
            torch.mul(F.rms_norm(turned, (dim,), eps=self.eps), norm, out=turned)
        if tables is not None:
            cos, sin = tables
            swapped = turned.roll(dim // 2, dims=-1)
            torch.addcmul(turned * cos, swapped, sin, out=turned)
        cache.write(layer, slots, qkv.narrow(1, heads, 2 * kv_heads))
        query, key, value = qkv.split([heads, kv_heads, kv_heads], dim=1)
        return query, key, value

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See :class:`LayerOps`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


def layer_ops(device: torch.device, heads: int, kv_heads: int, eps: float) -> LayerOps:
    """Fused kernels on a GPU where Triton is installed, torch's operators elsewhere."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from sglang_lite.runtime.cuda.layers import FusedOps

        return FusedOps(heads, kv_heads, eps)
    return TorchOps(heads, kv_heads, eps)
