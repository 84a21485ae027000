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
class PlannedRow:
    """A row with the range of its flat tokens; ``parts`` counts its partial results so far."""

    row: Row
    tokens: range
    parts: int = 0

    @property
    def pool_keys(self) -> int:
        """Keys read from the pool: a decoding row reads its own new key there too."""
        return self.row.end if self.row.new_tokens == 1 else self.row.start

    def first_key(self, window: int | None) -> int:
        """The first key that some token of the row sees."""
        return 0 if window is None else max(0, self.row.start + 1 - window)

    def clipped(self, window: int | None) -> bool:
        """Whether the window hides some of the row's keys from some of its tokens."""
        return window is not None and self.row.end > window


@dataclass(frozen=True)
class Stretch:
    """The slots ``[begin, end)`` of ``rows[0]``, which all tokens of all these rows read.

    With one row it is what the row doesn't share, up to its ``pool_keys``; maybe nothing.
    """

    rows: list[PlannedRow]
    begin: int
    end: int

    @property
    def slots(self) -> np.ndarray:
        """The KV slots, in the order of positions."""
        return self.rows[0].row.slots[self.begin : self.end]


def plan_rows(rows: Sequence[Row]) -> list[PlannedRow]:
    """The rows with their places in the flat batch."""
    ends = np.cumsum([row.new_tokens for row in rows]).tolist()
    return [
        PlannedRow(row, range(end - row.new_tokens, end))
        for row, end in zip(rows, ends, strict=True)
    ]


def plan_stretches(planned: list[PlannedRow], window: int | None) -> Iterator[Stretch]:
    """Every row's pool keys in stretches: shared ones once, then each row's own.

    A row that the window clips shares nothing: what others read isn't what it reads.
    """
    yield from _shared([p for p in planned if not p.clipped(window)], begin=0, common=0)
    for item in planned:
        if item.clipped(window):
            yield Stretch([item], min(item.first_key(window), item.pool_keys), item.pool_keys)


def _shared(rows: list[PlannedRow], begin: int, common: int) -> Iterator[Stretch]:
    """Stretches of rows that share the slots ``[0, common)``, whose keys before ``begin`` are done.

    Follows the tree of shared slots downwards, without recursion: it may be as deep as there are
    rows.  A stretch that is too short for itself is left to those below.
    """
    pending = [(rows, begin, common)]
    while pending:
        rows, begin, common = pending.pop()
        by_next_slot: dict[int, list[PlannedRow]] = {}
        for item in rows:
            if item.pool_keys > common:
                by_next_slot.setdefault(int(item.row.slots[common]), []).append(item)
            else:
                yield Stretch([item], begin, item.pool_keys)
        for group in by_next_slot.values():
            if len(group) == 1:
                yield Stretch(group, begin, group[0].pool_keys)
                continue
            shared = _common_slots(group, common)
            long_enough = shared - begin >= MIN_SHARED_KEYS
            if long_enough:
                yield Stretch(group, begin, shared)
            pending.append((group, shared if long_enough else begin, shared))


def _common_slots(group: list[PlannedRow], known: int) -> int:
    """Length of the common prefix of the rows' pool slots, of which ``known`` are known."""
    first = group[0]
    shared = first.pool_keys
    for item in group[1:]:
        limit = min(shared, item.pool_keys)
        differs = np.flatnonzero(first.row.slots[known:limit] != item.row.slots[known:limit])
        shared = known + int(differs[0]) if len(differs) else limit
    return shared


def plan_segments(rows: Sequence[Row], window: int | None = None) -> list[Segment]:
    """The segments of a step; with ``window``, a token sees so many keys including its own."""
    planned = plan_rows(rows)
    segments = [_own_segment(item, window) for item in planned if item.row.new_tokens > 1]
    for stretch in plan_stretches(planned, window):
        segments += _segments_of(stretch, _mask(stretch, window))
    return segments


def _own_segment(item: PlannedRow, window: int | None) -> Segment:
    item.parts = 1
    tokens = item.row.new_tokens
    if window is None or tokens <= window:
        return Segment(item.tokens, None, causal=True)
    distance = np.arange(tokens)[:, None] - np.arange(tokens)
    return Segment(item.tokens, None, mask=(distance >= 0) & (distance < window))


def _mask(stretch: Stretch, window: int | None) -> np.ndarray | None:
    """Which of the stretch's keys each token of a clipped row sees."""
    item = stretch.rows[0]
    if window is None or not item.clipped(window) or item.row.new_tokens == 1:
        return None
    query = np.arange(item.row.start, item.row.end)[:, None]
    return np.arange(stretch.begin, stretch.end) > query - window


def _segments_of(stretch: Stretch, mask: np.ndarray | None) -> Iterator[Segment]:
    """One segment per long run of consecutive slots, and one for all the rest."""
    slots, group = stretch.slots, stretch.rows
    if not len(slots):
        return
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
    tokens: range | np.ndarray = group[0].tokens
    if len(group) > 1:
        tokens = np.concatenate([np.asarray(item.tokens) for item in group])
    for keys, seen in pieces:
        # A mask that hides nothing costs time for nothing.
        seen = None if seen is None or seen.all() else seen
        part = max(item.parts for item in group)
        for item in group:
            item.parts = part + 1
        yield Segment(tokens, keys, mask=seen, part=part)
