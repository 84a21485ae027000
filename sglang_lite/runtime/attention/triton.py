"""Attention on a GPU: everything is a work item of one Triton kernel, then one merge.

A decoding row is cut along its keys (split-KV), so that few rows fill the device; a chunk of a
prompt is cut along its tokens; a shared prefix is one set of keys for the tokens of many rows
(cascade).  Keys and values are addressed token by token through their slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sglang_lite.errors import UnsupportedModel
from sglang_lite.runtime.attention.plan import PlannedRow, Stretch, plan_rows, plan_stretches
from sglang_lite.runtime.batch import Row

_BLOCK_KEYS = 64
_MIN_SPLIT = 128
# Enough programs to fill a large GPU about twice.
_PROGRAMS = 264
_ROWS_FEW, _ROWS_MANY = 16, 64


@dataclass(frozen=True)
class _Item:
    """Flat ``tokens`` against the keys of ``slots``, the first of which is at ``position``."""

    tokens: np.ndarray
    slots: np.ndarray
    position: int
    part: int


@dataclass(frozen=True)
class TritonPlan:
    """Device tensors of a step.

    ``launches``: rows of a block, and int32[n, 6] items as `attend_items` reads them.
    """

    launches: list[tuple[int, torch.Tensor]]
    tokens: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor
    parts: int
    window: int | None


class TritonAttention:
    """The :class:`~sglang_lite.runtime.attention.plan.AttentionBackend` for GPUs with Triton.

    ``heads`` and ``kv_heads`` are the model's: how many tokens fit a block depends on them.
    """

    def __init__(self, device: torch.device, heads: int, kv_heads: int) -> None:
        self.device = device
        self.group = heads // kv_heads
        self.kv_heads = kv_heads

    def plan(self, rows: Sequence[Row], window: int | None) -> TritonPlan:
        """Cut the step into work items."""
        planned = plan_rows(rows)
        stretches = list(plan_stretches(planned, window))
        items = [
            item for stretch in stretches for item in self._items(stretch, len(stretches), window)
        ]
        few = [item for item in items if len(item.tokens) * self.group <= _ROWS_FEW]
        many = [item for item in items if len(item.tokens) * self.group > _ROWS_FEW]
        launches, tokens, slots = [], [], []
        token_at = slot_at = 0
        for block, chosen in ((_ROWS_FEW, few), (self._rows_many, many)):
            table = np.empty((len(chosen), 6), dtype=np.int32)
            for line, item in zip(table, chosen, strict=True):
                counts = len(item.tokens), len(item.slots)
                line[:] = (token_at, counts[0], slot_at, counts[1], item.position, item.part)
                tokens.append(item.tokens)
                slots.append(item.slots)
                token_at, slot_at = token_at + counts[0], slot_at + counts[1]
            if chosen:
                launches.append((block, self._tensor(table)))
        positions = np.concatenate([np.arange(row.start, row.end) for row in rows])
        return TritonPlan(
            launches,
            self._tensor(np.concatenate(tokens)),
            self._tensor(np.concatenate(slots)),
            self._tensor(positions),
            1 + max(item.part for item in items),
            window,
        )

    @property
    def _rows_many(self) -> int:
        """Rows of a large block: at least one token's group."""
        return max(_ROWS_MANY, 1 << (self.group - 1).bit_length())

    def _tensor(self, numbers: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(numbers.astype(np.int32)).to(self.device)

    def _items(self, stretch: Stretch, stretches: int, window: int | None) -> Iterator[_Item]:
        block = max(1, self._rows_many // self.group)
        item = stretch.rows[0]
        if len(stretch.rows) == 1 and item.row.new_tokens > 1:
            yield from self._chunk_items(item, stretch.begin, block, window)
            return
        slots = stretch.slots
        wanted = math.ceil(_PROGRAMS / (stretches * self.kv_heads))
        length = max(_MIN_SPLIT, math.ceil(len(slots) / wanted / _BLOCK_KEYS) * _BLOCK_KEYS)
        tokens = np.concatenate([np.asarray(row.tokens) for row in stretch.rows])
        for first in range(0, len(slots), length):
            part = max(row.parts for row in stretch.rows)
            for row in stretch.rows:
                row.parts = part + 1
            for i in range(0, len(tokens), block):
                keys = slots[first : first + length]
                yield _Item(tokens[i : i + block], keys, stretch.begin + first, part)

    def _chunk_items(
        self, item: PlannedRow, begin: int, block: int, window: int | None
    ) -> Iterator[_Item]:
        """Blocks of a chunk's tokens, each with the keys up to its last token's own."""
        part, item.parts = item.parts, item.parts + 1
        tokens = np.asarray(item.tokens)
        for i in range(0, len(tokens), block):
            end = min(item.row.start + i + block, item.row.end)
            first = begin
            if window is not None:
                first = max(begin, item.row.start + i + 1 - window)
            yield _Item(tokens[i : i + block], item.row.slots[first:end], first, part)

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
        if (heads, key.shape[1]) != (self.group * self.kv_heads, self.kv_heads):
            raise UnsupportedModel(
                f"a layer with {heads} heads over {key.shape[1]} in a model with "
                f"{self.group * self.kv_heads} over {self.kv_heads}"
            )
        if query.stride(2) != 1:
            query = query.contiguous()
        block_dim = max(16, 1 << (dim - 1).bit_length())
        shape = (plan.parts, tokens, heads)
        partial_out = torch.empty(*shape, dim, dtype=torch.float32, device=query.device)
        partial_lse = torch.full(shape, -torch.inf, dtype=torch.float32, device=query.device)
        for block_rows, items in plan.launches:
            attend_items[(len(items), self.kv_heads)](
                query,
                key_cache,
                value_cache,
                partial_out,
                partial_lse,
                items,
                plan.tokens,
                plan.slots,
                plan.positions,
                query.stride(0),
                query.stride(1),
                key_cache.stride(0),
                key_cache.stride(1),
                tokens,
                heads,
                scale,
                softcap or 0.0,
                plan.window or 0,
                GROUP=self.group,
                DIM=dim,
                BLOCK_D=block_dim,
                BLOCK_M=block_rows,
                BLOCK_N=_BLOCK_KEYS,
                SOFTCAP=softcap is not None,
                WINDOW=plan.window is not None,
            )
        out = torch.empty(tokens, heads, dim, dtype=query.dtype, device=query.device)
        merge_parts[(tokens, heads)](
            partial_out,
            partial_lse,
            sinks if sinks is not None else partial_lse,
            out,
            tokens,
            heads,
            plan.parts,
            DIM=dim,
            BLOCK_D=block_dim,
            SINKS=sinks is not None,
        )
        return out
