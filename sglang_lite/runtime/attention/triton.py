"""Attention on a GPU: the work items of a step are programs of one Triton kernel, then one merge.

A plan is one array of integers that a single copy brings to the device.  A *static* plan has fixed
shapes with padding, so that a CUDA graph that was captured with it can be replayed for any step
that fits it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sglang_lite.errors import UnsupportedModel
from sglang_lite.runtime.attention.items import (
    FEW_ROWS,
    PROGRAMS,
    WorkItems,
    cut,
    many_rows,
)
from sglang_lite.runtime.batch import Row
from sglang_lite.runtime.device import send, send_into

# Addresses on multiples of so many integers: Triton compiles a kernel anew for unaligned ones.
_ALIGNED = 16


@dataclass(frozen=True)
class TritonPlan:
    """Device tensors of a step, int32 and in the order of :meth:`WorkItems.arrays`."""

    few: torch.Tensor
    many: torch.Tensor
    merges: torch.Tensor
    positions: torch.Tensor
    tokens: torch.Tensor
    places: torch.Tensor
    slots: torch.Tensor
    parts: int
    window: int | None


@dataclass(frozen=True)
class StaticPlan:
    """A plan of fixed shapes for steps of ``rows`` decoding rows, in a ``buffer`` int32[n].

    ``sizes``: integers that there is room for, per array.
    """

    plan: TritonPlan
    rows: int
    buffer: torch.Tensor
    sizes: tuple[int, ...]


class TritonAttention:
    """The :class:`~sglang_lite.runtime.attention.plan.AttentionBackend` for GPUs with Triton.

    ``heads`` and ``kv_heads`` are the model's: how many tokens fit a block depends on them.
    """

    def __init__(self, device: torch.device, heads: int, kv_heads: int) -> None:
        self.device = device
        self.heads, self.kv_heads = heads, kv_heads
        self.group = heads // kv_heads

    def plan(self, rows: Sequence[Row], window: int | None) -> TritonPlan:
        """Cut the step into work items."""
        items = cut(rows, window, self.group, self.kv_heads)
        sizes = tuple(array.size for array in items.arrays())
        host = np.empty(_offsets(sizes)[-1], dtype=np.int32)
        _pack(items, host, sizes)
        return _view(send(host, self.device), sizes, items.parts, window)

    def static_plan(
        self, rows: int, window: int | None, slots: int, buffer: torch.Tensor | None = None
    ) -> StaticPlan:
        """An empty plan for ``rows`` decoding rows that read at most ``slots`` keys in all.

        ``buffer``: that of a plan for more rows, if only one of the two is in use at a time.
        """
        split = -(-PROGRAMS // self.kv_heads)
        tokens = 4 * rows
        shared = 0 if rows * self.group <= FEW_ROWS else split + rows
        parts = 4 * rows + 2 * split
        sizes = (6 * (split + 2 * rows), 6 * shared, 3 * rows, rows, tokens, tokens, slots)
        if buffer is None:
            buffer = torch.zeros(_offsets(sizes)[-1], dtype=torch.int32, device=self.device)
        return StaticPlan(_view(buffer, sizes, parts, window), rows, buffer, sizes)

    def fill(self, static: StaticPlan, rows: Sequence[Row]) -> bool:
        """Make ``static`` the plan of these rows; False, and nothing happens, if it is too small.

        The copy is queued behind the work already on its way, which may still read the old plan.
        """
        if len(rows) != static.rows or any(row.new_tokens != 1 for row in rows):
            return False
        items = cut(rows, static.plan.window, self.group, self.kv_heads)
        fits = all(a.size <= room for a, room in zip(items.arrays(), static.sizes, strict=True))
        if not fits or items.parts > static.plan.parts:
            return False
        # The slots are the last array and the only long one.
        used = _offsets(static.sizes)[-2] + items.slots.size
        host = np.zeros(used, dtype=np.int32)
        _pack(items, host, static.sizes)
        send_into(host, static.buffer)
        return True

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        plan: TritonPlan,
        *,
        scale: float,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See :class:`AttentionBackend`; new keys and values are read from the caches."""
        from sglang_lite.runtime.attention.triton_kernels import attend_items, merge_parts

        tokens, heads, dim = query.shape
        if (heads, key.shape[1]) != (self.heads, self.kv_heads):
            raise UnsupportedModel(
                f"a layer with {heads} heads over {key.shape[1]} in a model with "
                f"{self.heads} over {self.kv_heads}"
            )
        if query.stride(2) != 1:
            query = query.contiguous()
        out = torch.empty(tokens, heads, dim, dtype=query.dtype, device=query.device)
        partial_out = torch.empty(plan.parts, heads, dim, dtype=torch.float32, device=query.device)
        partial_lse = torch.empty(plan.parts, heads, dtype=torch.float32, device=query.device)
        block_dim = max(16, 1 << (dim - 1).bit_length())
        tile = _Tile.of(block_dim, key_cache.dtype)
        constants = {"HEADS": heads, "DIM": dim, "BLOCK_D": block_dim, "SINKS": sinks is not None}
        # Never read without SINKS.
        given = out if sinks is None else sinks
        for block, items in ((FEW_ROWS, plan.few), (many_rows(self.group), plan.many)):
            if not len(items):
                continue
            attend_items[(len(items), self.kv_heads)](
                query,
                key_cache,
                value_cache,
                out,
                partial_out,
                partial_lse,
                given,
                items,
                plan.tokens,
                plan.places,
                plan.slots,
                plan.positions,
                query.stride(0),
                query.stride(1),
                key_cache.stride(0),
                key_cache.stride(1),
                scale,
                softcap or 0.0,
                plan.window or 0,
                GROUP=self.group,
                BLOCK_M=block,
                BLOCK_N=tile.keys,
                SOFTCAP=softcap is not None,
                WINDOW=plan.window is not None,
                num_warps=tile.warps,
                num_stages=tile.stages,
                **constants,
            )
        if len(plan.merges):
            merge_parts[(len(plan.merges), heads)](
                partial_out, partial_lse, given, out, plan.merges, BLOCK_P=16, **constants
            )
        return out


@dataclass(frozen=True)
class _Tile:
    """How a program goes through its keys: so many at once, by so many warps, loaded so far ahead.

    Compiled for an H200 these need neither more shared memory than a program may have nor, but
    for 256 dimensions in float32, more registers.
    """

    keys: int
    warps: int
    stages: int

    @classmethod
    def of(cls, block_dim: int, dtype: torch.dtype) -> _Tile:
        row_bytes = block_dim * dtype.itemsize
        return cls(
            keys=32 if dtype == torch.float32 else 64,
            warps=8 if block_dim >= 256 else 4,
            stages=3 if row_bytes <= 256 else 2 if row_bytes <= 512 else 1,
        )


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Where each array begins, and the end of the last."""
    return list(itertools.accumulate((-(-n // _ALIGNED) * _ALIGNED for n in sizes), initial=0))


def _pack(items: WorkItems, host: np.ndarray, sizes: Sequence[int]) -> None:
    for array, at in zip(items.arrays(), _offsets(sizes), strict=False):
        host[at : at + array.size] = array.ravel()


def _view(buffer: torch.Tensor, sizes: Sequence[int], parts: int, window: int | None) -> TritonPlan:
    pieces = [buffer[at : at + n] for at, n in zip(_offsets(sizes), sizes, strict=False)]
    few, many, merges, positions, tokens, places, slots = pieces
    tables = few.view(-1, 6), many.view(-1, 6), merges.view(-1, 3)
    return TritonPlan(*tables, positions, tokens, places, slots, parts, window)
