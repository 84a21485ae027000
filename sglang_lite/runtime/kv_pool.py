"""Which KV slots are free.  Integers only: the tensors behind the slots are `kv_cache.py`'s.

A sequence may use any slots in any order, but attention reads consecutive slots as one slice, so
the pool hands out contiguous runs while it has them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np


class KVPool:
    """Free slots of ``[0, size)``, kept as maximal runs in size classes (powers of two).

    A segregated-fit allocator with boundary tags (Knuth, The Art of Computer Programming,
    volume 1, section 2.5): a run is found by its start and by its end, so both taking and
    giving back are independent of how many runs there are.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.free = size
        self._length: dict[int, int] = {}
        self._start_of_end: dict[int, int] = {}
        # One heap of run starts per size class; entries of runs that are gone stay until met.
        self._classes: list[list[int]] = [[] for _ in range(size.bit_length() + 1)]
        if size:
            self._add(0, size)

    def allocate(self, count: int, after: int | None = None) -> np.ndarray | None:
        """Take ``count`` slots (int64), or None if fewer are free.

        ``after``: the slot that the new ones continue; its neighbours are preferred.
        """
        if count > self.free:
            return None
        pieces: list[np.ndarray] = []
        left = count
        if after is not None and left and after + 1 in self._length:
            pieces.append(self._take(after + 1, min(left, self._length[after + 1])))
            left -= len(pieces[-1])
        while left:
            start = self._find(left)
            pieces.append(self._take(start, min(left, self._length[start])))
            left -= len(pieces[-1])
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def release(self, slots: np.ndarray) -> None:
        """Give slots back; the caller must own them."""
        if not len(slots):
            return
        slots = np.sort(slots)
        starts = np.flatnonzero(np.diff(slots, prepend=slots[0] - 2) != 1)
        for begin, end in zip(starts, [*starts[1:], len(slots)], strict=True):
            self._join(int(slots[begin]), int(end - begin))

    def runs(self) -> Iterator[tuple[int, int]]:
        """The free runs as (start, length), in no particular order."""
        return iter(self._length.items())

    def _find(self, count: int) -> int:
        """The start of a run of at least ``count`` slots, or of one of the longest runs."""
        fit = self._lowest(count.bit_length())
        if fit is not None and self._length[fit] >= count:
            return fit
        for size_class in range(count.bit_length() + 1, len(self._classes)):
            if (start := self._lowest(size_class)) is not None:
                return start
        for size_class in range(count.bit_length(), -1, -1):
            if (start := self._lowest(size_class)) is not None:
                return start
        raise AssertionError("slots are counted as free, but in no run")

    def _lowest(self, size_class: int) -> int | None:
        heap = self._classes[size_class]
        while heap and self._length.get(heap[0], 0).bit_length() != size_class:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _take(self, start: int, count: int) -> np.ndarray:
        length = self._remove(start)
        if length > count:
            self._add(start + count, length - count)
        self.free -= count
        return np.arange(start, start + count, dtype=np.int64)

    def _join(self, start: int, length: int) -> None:
        self.free += length
        if (before := self._start_of_end.get(start)) is not None:
            length += self._remove(before)
            start = before
        if start + length in self._length:
            length += self._remove(start + length)
        self._add(start, length)

    def _add(self, start: int, length: int) -> None:
        self._length[start] = length
        self._start_of_end[start + length] = start
        heap = self._classes[length.bit_length()]
        if len(heap) > 2 * len(self._length) + 64:
            size_class = length.bit_length()
            heap[:] = sorted(s for s, n in self._length.items() if n.bit_length() == size_class)
        else:
            heapq.heappush(heap, start)

    def _remove(self, start: int) -> int:
        length = self._length.pop(start)
        del self._start_of_end[start + length]
        return length
