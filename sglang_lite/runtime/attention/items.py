"""A step cut into work items for a GPU: some query tokens against some keys each.

A row is cut along its keys (split-KV) where there are too few rows to fill the device; a chunk of
a prompt is cut along its tokens; a prefix that several rows share is one set of keys for the tokens
of all of them (cascade).  A token that takes part in one item only gets its result from there; the
partial results of the others are merged.  Planning is numpy and integers; no tensor, no device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sglang_lite.runtime.attention.plan import PlannedRow, Stretch, plan_rows, plan_stretches
from sglang_lite.runtime.batch import Row

KEY_STEP = 64
"""Rows are cut at multiples of so many keys."""

MIN_SPLIT = 128
"""Fewer keys than this are not cut: the merge would cost more."""

PROGRAMS = 264
"""So many programs fill a large GPU about twice."""

FEW_ROWS = 16
"""Query rows (tokens times heads per KV head) of a small block: the least a tensor core takes."""


@dataclass(frozen=True)
class WorkItems:
    """All arrays are int32.

    * ``few``, ``many`` ``[n, 6]``: items whose rows fit a small block, and the others: first token
      and number of tokens (places in ``tokens``), first key and number of keys (in ``slots``),
      position of the first key, and which part of its tokens' results it makes.
    * ``tokens``: flat indices of query tokens; ``places``: where a token's partial result of part
      0 goes, -1 = the result is whole and goes to the output.
    * ``merges`` ``[m, 3]``: token, its first place, number of places.
    * ``slots``: KV slots; ``positions``: the position of each of the step's tokens.
    * ``parts``: number of places.
    """

    few: np.ndarray
    many: np.ndarray
    merges: np.ndarray
    positions: np.ndarray
    tokens: np.ndarray
    places: np.ndarray
    slots: np.ndarray
    parts: int

    def arrays(self) -> tuple[np.ndarray, ...]:
        """The arrays in the order in which they are sent: those of unbounded size last."""
        return (
            self.few,
            self.many,
            self.merges,
            self.positions,
            self.tokens,
            self.places,
            self.slots,
        )


def many_rows(group: int) -> int:
    """Rows of a large block: at least one token's group of heads."""
    return max(64, 1 << (group - 1).bit_length())


def cut(rows: Sequence[Row], window: int | None, group: int, kv_heads: int) -> WorkItems:
    """The items of a step of a model with ``kv_heads`` KV heads of ``group`` query heads each."""
    jobs = _Jobs(max(1, many_rows(group) // group))
    for stretch in plan_stretches(plan_rows(rows), window):
        jobs.add(stretch, window)
    table = np.array(jobs.table, dtype=np.int64).reshape(-1, 5)
    tokens = np.concatenate(jobs.tokens)
    work = int(table[:, 3].sum()) * kv_heads
    length = max(MIN_SPLIT, -(-work // (PROGRAMS * KEY_STEP)) * KEY_STEP)
    splits = -(-table[:, 3] // length)
    places, merges, parts = _places(tokens, np.repeat(splits, table[:, 1]))
    items, job_rows = _split(table, splits, length), np.repeat(table[:, 1], splits) * group
    # The longest first: what is left to run alone at the end is short.
    order = np.argsort(-items[:, 3], kind="stable")
    small = job_rows[order] <= FEW_ROWS
    return WorkItems(
        few=items[order[small]],
        many=items[order[~small]],
        merges=merges,
        positions=np.concatenate([np.arange(r.start, r.end, dtype=np.int32) for r in rows]),
        tokens=tokens.astype(np.int32),
        places=places,
        slots=np.concatenate(jobs.slots).astype(np.int32),
        parts=parts,
    )


@dataclass
class _Jobs:
    """Tokens that fit a block against keys of any number: what :class:`WorkItems` is cut from.

    ``table`` has rows (first token, tokens, first key, keys, position of the first key).
    """

    block: int
    table: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    tokens: list[np.ndarray] = field(default_factory=list)
    slots: list[np.ndarray] = field(default_factory=list)
    token_at: int = 0
    slot_at: int = 0

    def add(self, stretch: Stretch, window: int | None) -> None:
        """The jobs of a stretch; one that is a row's own includes a chunk's new keys."""
        item = stretch.rows[0]
        if len(stretch.rows) == 1 and item.row.new_tokens > 1:
            self._add_chunk(item, stretch.begin, window)
            return
        if stretch.begin == stretch.end:
            return
        tokens = np.concatenate([np.asarray(row.tokens) for row in stretch.rows])
        for i in range(0, len(tokens), self.block):
            count = min(self.block, len(tokens) - i)
            keys = stretch.end - stretch.begin
            self.table.append((self.token_at + i, count, self.slot_at, keys, stretch.begin))
        self._add_arrays(tokens, stretch.slots)

    def _add_chunk(self, item: PlannedRow, begin: int, window: int | None) -> None:
        """Blocks of a chunk's tokens, each with the keys up to its last token's own."""
        row = item.row
        for i in range(0, row.new_tokens, self.block):
            count = min(self.block, row.new_tokens - i)
            first = begin if window is None else max(begin, row.start + i + 1 - window)
            keys = row.start + i + count - first
            self.table.append((self.token_at + i, count, self.slot_at + first - begin, keys, first))
        self._add_arrays(np.asarray(item.tokens), row.slots[begin:])

    def _add_arrays(self, tokens: np.ndarray, slots: np.ndarray) -> None:
        self.tokens.append(tokens)
        self.slots.append(slots)
        self.token_at += len(tokens)
        self.slot_at += len(slots)


def _split(table: np.ndarray, splits: np.ndarray, length: int) -> np.ndarray:
    """Each job's keys in pieces of ``length``: int32[n, 6] as in :class:`WorkItems`."""
    items = np.empty((int(splits.sum()), 6), dtype=np.int32)
    items[:, :5] = np.repeat(table, splits, axis=0)
    part = np.arange(len(items)) - np.repeat(np.cumsum(splits) - splits, splits)
    skipped = part * length
    items[:, 2] += skipped
    items[:, 3] = np.minimum(items[:, 3] - skipped, length)
    items[:, 4] += skipped
    items[:, 5] = part
    return items


def _places(tokens: np.ndarray, parts: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Places for the partial results of jobs, ``parts[i]`` of them for ``tokens[i]``.

    Those of one token follow each other.  Returns places, merges and their number as in
    :class:`WorkItems`.
    """
    counts = np.bincount(tokens, weights=parts).astype(np.int64)
    counts[counts == 1] = 0
    needed = np.where(counts[tokens] > 0, parts, 0)
    order = np.argsort(tokens, kind="stable")
    places = np.full(len(tokens), -1, dtype=np.int32)
    places[order] = np.cumsum(needed[order]) - needed[order]
    places[counts[tokens] == 0] = -1
    merged = np.flatnonzero(counts)
    first = np.cumsum(counts) - counts
    merges = np.stack([merged, first[merged], counts[merged]], axis=1).astype(np.int32)
    return places, merges, int(counts.sum())
