"""Attention whose result depends on the sequence alone, for the deterministic mode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sglang_lite.runtime.attention.cpu import TorchAttention, TorchPlan
from sglang_lite.runtime.attention.plan import Segment
from sglang_lite.runtime.batch import Row


class SequenceAttention(TorchAttention):
    """Each row by itself, its earlier keys gathered into one piece.

    The fast plan splits a sequence where its slots are not consecutive or where others share them;
    then the order of the sums, and so the last bits, depend on what else ran before.
    """

    def plan(self, rows: Sequence[Row], window: int | None) -> TorchPlan:
        """One segment for a row's earlier keys and one for its new ones."""
        segments, offset = [], 0
        for row in rows:
            tokens = range(offset, offset + row.new_tokens)
            offset += row.new_tokens
            segments += _segments(row, tokens, window)
        return self._planned([self._call([segment]) for segment in segments])


def _segments(row: Row, tokens: range, window: int | None) -> list[Segment]:
    """Positions as keys, masked by the window where it hides any of them."""
    queries = np.arange(row.start, row.end)[:, None]
    first = 0 if window is None else max(0, row.start + 1 - window)
    if row.new_tokens == 1:
        return [Segment(tokens, row.slots[first:])]
    new = np.arange(row.start, row.end)
    seen = None if window is None else (new <= queries) & (new > queries - window)
    segments = [Segment(tokens, None, causal=seen is None, mask=seen)]
    if row.start > first:
        old = np.arange(first, row.start)
        seen = None if window is None else old > queries - window
        segments.append(Segment(tokens, row.slots[first : row.start], mask=seen, part=1))
    return segments
