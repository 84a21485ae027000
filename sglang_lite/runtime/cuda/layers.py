"""A decoder layer's small operations on a GPU, each one kernel."""

from __future__ import annotations

import torch

from sglang_lite.runtime.kv_cache import KVCache
from sglang_lite.runtime.models.layer_ops import Tables
from sglang_lite.runtime.models.norm import Residual, RMSNorm

_GATE_BLOCK = 1024


class FusedResidual(Residual):
    """A stream to which an output is added when it is next read, in the kernel of the norm."""

    def __init__(self, x: torch.Tensor) -> None:
        super().__init__(x)
        self._added: torch.Tensor | None = None

    def add(self, y: torch.Tensor) -> None:
        """Add a layer's output ``[T, size]``."""
        if self._added is not None:
            self.x = self.x + self._added
        self._added = y

    def normed(self, norm: RMSNorm) -> torch.Tensor:
        """The normalised stream ``[T, size]``."""
        from sglang_lite.runtime.cuda.layer_kernels import add_and_norm

        added, self._added = self._added, None
        tokens, size = self.x.shape
        out = torch.empty_like(self.x)
        block = _power_of_two(size)
        add_and_norm[(tokens,)](
            self.x,
            self.x if added is None else added,
            norm.weight,
            out,
            norm.eps,
            SIZE=size,
            BLOCK=block,
            ADD=added is not None,
            num_warps=min(max(block // 512, 1), 16),
        )
        return out


class FusedOps:
    """The :class:`~sglang_lite.runtime.models.layer_ops.LayerOps` for GPUs with Triton."""

    def __init__(self, heads: int, kv_heads: int, eps: float) -> None:
        self.heads, self.kv_heads, self.eps = heads, kv_heads, eps

    def stream(self, x: torch.Tensor) -> Residual:
        """See :class:`LayerOps`."""
        return FusedResidual(x)

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
        from sglang_lite.runtime.cuda.layer_kernels import turn_and_store

        tokens, heads, dim = qkv.shape
        turned = qkv.new_empty(tokens, self.heads + self.kv_heads, dim)
        cos, sin = (qkv, qkv) if tables is None else tables
        stored = cache.layers[layer]
        turn_and_store[(tokens, heads)](
            qkv,
            qkv if norm is None else norm,
            cos,
            sin,
            slots,
            turned,
            stored,
            stored.stride(0),
            self.eps,
            HEADS=self.heads,
            KV_HEADS=self.kv_heads,
            DIM=dim,
            BLOCK=_power_of_two(dim),
            NORM=norm is not None,
            ROTARY=tables is not None,
            num_warps=1,
        )
        query, key = turned.split([self.heads, self.kv_heads], dim=1)
        return query, key, qkv[:, self.heads + self.kv_heads :]

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See :class:`LayerOps`."""
        from sglang_lite.runtime.cuda.layer_kernels import gate_and_multiply

        tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(tokens, size)
        gate_and_multiply[(tokens, -(-size // _GATE_BLOCK))](
            gate_up, out, SIZE=size, BLOCK=_GATE_BLOCK
        )
        return out


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
