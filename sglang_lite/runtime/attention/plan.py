"""Who attends to what in one step, worked out once and used by every layer.

A plan is a list of segments: a set of query tokens and a set of keys that all of them see.  A
token's attention is the merge, by log-sum-exp, of the segments it takes part in:

* its row's *new* tokens, causally, read from the projections and not from the pool;
* the row's earlier keys, as runs of consecutive slots (views without a copy) plus one gathered
  rest;
* a prefix that several rows share, read once for all of them (cascade).

Planning is numpy and integers; no tensor, no device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch

from sglang_lite.runtime.batch import Row

MIN_SHARED_KEYS = 64
"""A shared prefix shorter than this isn't worth a segment and a merge of its own."""

MIN_RUN = 64
"""Shorter runs of consecutive slots are gathered together: each segment costs a kernel call."""


class AttentionBackend(Protocol):
    """Plans a step and computes attention of one layer at a time."""

    def plan(self, rows: Sequence[Row], window: int | None) -> Any:
        """What :meth:`attend` needs to know about the rows, for layers with this window."""
        ...

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        plan: Any,
        *,
        scale: float,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention output ``[T, heads, head_dim]``, contiguous, in the query's dtype.

        * ``query [T, heads, head_dim]``, ``key`` and ``value [T, kv_heads, head_dim]``: the new
          tokens, positions already encoded; their slots of the caches are already written.
        * ``key_cache``, ``value_cache``: ``[kv_heads, slots, head_dim]`` of this layer.
        * ``softcap``: scores become ``softcap * tanh(score / softcap)``.
        * ``sinks [heads]``: one more logit per head in the softmax, without a value.
        """
        ...


@dataclass(frozen=True)
class Segment:
    """Query tokens and the keys that they see.

    * ``tokens``: flat indices of the queries, a range or int64 array.
    * ``keys``: KV slots, a slice or int64 array; None = the queries' own new keys.
    * ``causal``: own keys only, token i sees the keys up to i.
    * ``mask``: bool[tokens, keys], what is seen (a sliding window cuts here); None = all.
    * ``part``: which of a token's partial results this is; no token has the same part twice.
    """

    tokens: range | np.ndarray
    keys: slice | np.ndarray | None
    causal: bool = False
    mask: np.ndarray | None = None
    part: int = 0


@dataclass
class _Planned:
    """A row with the range of its flat tokens and the number of parts it has so far."""

    row: Row
    tokens: range
    first_key: int
    parts: int = 0

    @property
    def pool_keys(self) -> int:
        """Keys read from the pool: a decoding row reads its own new key there too."""
        return self.row.end if self.row.new_tokens == 1 else self.row.start


def plan_segments(rows: Sequence[Row], window: int | None = None) -> list[Segment]:
    """The segments of a step; with ``window``, a token sees so many keys including its own."""
    planned, offset = [], 0
    for row in rows:
        first = 0 if window is None else max(0, row.start + 1 - window)
        planned.append(_Planned(row, range(offset, offset + row.new_tokens), first))
        offset += row.new_tokens
    segments = [_own_segment(item, window) for item in planned if item.row.new_tokens > 1]
    whole = [item for item in planned if item.first_key == 0 and not _clipped(item, window)]
    segments += _shared_segments(whole, begin=0, common=0)
    clipped = [item for item in planned if item.first_key or _clipped(item, window)]
    for item in clipped:
        segments += _pool_segments(item, item.first_key, window)
    return segments


def _clipped(item: _Planned, window: int | None) -> bool:
    """Whether some token of the row doesn't see some key before the row's start."""
    return window is not None and item.row.end > window


def _own_segment(item: _Planned, window: int | None) -> Segment:
    item.parts = 1
    tokens = item.row.new_tokens
    if window is None or tokens <= window:
        return Segment(item.tokens, None, causal=True)
    distance = np.arange(tokens)[:, None] - np.arange(tokens)
    return Segment(item.tokens, None, mask=(distance >= 0) & (distance < window))


def _shared_segments(items: list[_Planned], begin: int, common: int) -> Iterator[Segment]:
    """Segments of rows that share the slots ``[0, common)``, whose keys before ``begin`` are done.

    Follows the tree of shared slots downwards; a stretch that is too short for a segment of its
    own is left to the segments below.
    """
    by_next_slot: dict[int, list[_Planned]] = {}
    for item in items:
        if item.pool_keys > common:
            by_next_slot.setdefault(int(item.row.slots[common]), []).append(item)
        else:
            yield from _pool_segments(item, begin, None)
    for group in by_next_slot.values():
        if len(group) == 1:
            yield from _pool_segments(group[0], begin, None)
            continue
        shared = _common_slots(group, common)
        if shared - begin < MIN_SHARED_KEYS:
            yield from _shared_segments(group, begin, shared)
            continue
        tokens = np.concatenate([np.asarray(item.tokens) for item in group])
        yield from _segments_of(group, tokens, group[0].row.slots[begin:shared])
        yield from _shared_segments(group, shared, shared)


def _common_slots(group: list[_Planned], known: int) -> int:
    """Length of the common prefix of the rows' pool slots, of which ``known`` are known."""
    first = group[0]
    shared = first.pool_keys
    for item in group[1:]:
        limit = min(shared, item.pool_keys)
        differs = np.flatnonzero(first.row.slots[known:limit] != item.row.slots[known:limit])
        shared = known + int(differs[0]) if len(differs) else limit
    return shared


def _pool_segments(item: _Planned, begin: int, window: int | None) -> Iterator[Segment]:
    """Segments of one row's pool keys from ``begin`` on."""
    slots = item.row.slots[begin : item.pool_keys]
    if not len(slots):
        return
    mask = None
    if _clipped(item, window) and item.row.new_tokens > 1:
        assert window is not None
        query = np.arange(item.row.start, item.row.end)[:, None]
        mask = np.arange(begin, item.pool_keys) > query - window
    tokens: range | np.ndarray = item.tokens
    yield from _segments_of([item], tokens, slots, mask)


def _segments_of(
    group: list[_Planned],
    tokens: range | np.ndarray,
    slots: np.ndarray,
    mask: np.ndarray | None = None,
) -> Iterator[Segment]:
    """One segment per long run of consecutive slots, and one for all the rest."""
    bounds = [0, *(np.flatnonzero(np.diff(slots) != 1) + 1), len(slots)]
    runs = list(pairwise(bounds))
    long_runs = [(a, b) for a, b in runs if b - a >= MIN_RUN or len(runs) == 1]
    pieces: list[tuple[slice | np.ndarray, np.ndarray | None]] = []
    rest = np.ones(len(slots), dtype=bool)
    for a, b in long_runs:
        first = int(slots[a])
        pieces.append((slice(first, first + int(b - a)), None if mask is None else mask[:, a:b]))
        rest[a:b] = False
    if rest.any():
        pieces.append((slots[rest], None if mask is None else mask[:, rest]))
    for keys, seen in pieces:
        # A mask that hides nothing costs time for nothing.
        seen = None if seen is None or seen.all() else seen
        part = max(item.parts for item in group)
        for item in group:
            item.parts = part + 1
        yield Segment(tokens, keys, mask=seen, part=part)
