"""Sets of code points, and partitions of all code points into classes.

A set is an inversion list: an increasing tuple of code points at which membership changes, so that
``(97, 123)`` is a-z and ``(0, 1114112)`` everything.  Surrogates are not characters: a bound never
lies inside D800..DFFF, and the gap goes wherever U+D7FF goes, so complements stay simple and no set
consists of surrogates only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache

END = 0x110000
_GAP, _AFTER_GAP = 0xD800, 0xE000


class CharSet:
    """An immutable set of Unicode scalar values."""

    __slots__ = ("_hash", "bounds")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self._hash = hash(bounds)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CharSet) and self.bounds == other.bounds

    def __reduce__(self) -> tuple[type, tuple[tuple[int, ...]]]:
        return CharSet, (self.bounds,)

    def __contains__(self, code_point: int) -> bool:
        return bisect_right(self.bounds, code_point) % 2 == 1

    def __bool__(self) -> bool:
        return bool(self.bounds)

    def __invert__(self) -> CharSet:
        bounds = self.bounds
        bounds = bounds[1:] if bounds and bounds[0] == 0 else (0, *bounds)
        return CharSet(bounds[:-1] if bounds and bounds[-1] == END else (*bounds, END))

    def __or__(self, other: CharSet) -> CharSet:
        return char_set([*self.ranges(), *other.ranges()])

    def __and__(self, other: CharSet) -> CharSet:
        return ~(~self | ~other)

    def __sub__(self, other: CharSet) -> CharSet:
        return self & ~other

    def __repr__(self) -> str:
        shown = ", ".join(f"{low:X}-{high:X}" for low, high in self.ranges()[:6])
        return f"CharSet({shown})"

    def ranges(self) -> list[tuple[int, int]]:
        """Its inclusive ranges, in order; the surrogate gap may lie inside one."""
        return [
            (low, high - 1) for low, high in zip(self.bounds[::2], self.bounds[1::2], strict=True)
        ]

    def size(self) -> int:
        """How many scalar values it has."""
        total = sum(
            high - low for low, high in zip(self.bounds[::2], self.bounds[1::2], strict=True)
        )
        return total - (_AFTER_GAP - _GAP if _GAP in self else 0)


def char_set(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """The union of inclusive ranges of code points, without the surrogates."""
    bounds: list[int] = []
    for low, high in sorted(ranges):
        start = _AFTER_GAP if _GAP <= low < _AFTER_GAP else low
        stop = high + 1
        if _GAP < stop < _AFTER_GAP:
            stop = _GAP if start < _GAP else start
        if stop == _GAP:
            stop = _AFTER_GAP
        if start >= stop:
            continue
        if bounds and start <= bounds[-1]:
            bounds[-1] = max(bounds[-1], stop)
        else:
            bounds += (start, stop)
    return CharSet(tuple(bounds))


@lru_cache(maxsize=2048)
def single(code_point: int) -> CharSet:
    """The set of one character (of none, if it is a surrogate)."""
    return char_set([(code_point, code_point)])


@lru_cache(maxsize=2048)
def characters(text: str) -> CharSet:
    """The set of the characters of ``text``."""
    return char_set((ord(c), ord(c)) for c in text)


NOTHING = CharSet(())
ANYTHING = CharSet((0, END))


class Partition:
    """All code points in classes: segment i begins at ``starts[i]`` and is of class ``classes[i]``.

    Classes are numbered from 0 in order of first appearance, so equal partitions have equal fields.
    ``images`` is a cache in which encodings keep what they derive from it.
    """

    __slots__ = ("_coarser", "classes", "count", "images", "starts")

    def __init__(self, starts: tuple[int, ...], classes: tuple[int, ...]) -> None:
        self.starts = starts
        self.classes = classes
        self.count = max(classes) + 1
        self.images: dict[str, object] = {}
        self._coarser: dict[tuple[int, ...], Partition] = {}

    def __reduce__(self) -> tuple[object, tuple[tuple[int, ...], tuple[int, ...]]]:
        return partition_of, (self.starts, self.classes)

    def class_of(self, code_point: int) -> int:
        return self.classes[bisect_right(self.starts, code_point) - 1]

    def merge(self, onto: Sequence[int]) -> Partition:
        """The partition in which class c becomes class ``onto[c]`` (numbered by appearance)."""
        key = tuple(onto)
        coarser = self._coarser.get(key)
        if coarser is None:
            coarser = self._coarser[key] = partition_of(
                *_join(self.starts, [key[c] for c in self.classes])
            )
        return coarser

    def char_set(self, number: int) -> CharSet:
        """The code points of one class."""
        stops = (*self.starts[1:], END)
        return char_set(
            (low, high - 1)
            for low, high, c in zip(self.starts, stops, self.classes, strict=True)
            if c == number
        )


@lru_cache(maxsize=4096)
def partition_of(starts: tuple[int, ...], classes: tuple[int, ...]) -> Partition:
    """The one Partition with these fields."""
    return Partition(starts, classes)


WHOLE = partition_of((0,), (0,))


@lru_cache(maxsize=2048)
def refine(sets: tuple[CharSet, ...]) -> tuple[Partition, tuple[int, ...]]:
    """The coarsest partition that every one of ``sets`` is a union of classes of.

    The second value is, for each class, a bit mask of the sets that contain it.
    """
    if len(sets) == 1 and sets[0] == ANYTHING:
        return WHOLE, (1,)
    changes: dict[int, int] = {0: 0}
    for index, members in enumerate(sets):
        bit = 1 << index
        for bound in members.bounds:
            changes[bound] = changes.get(bound, 0) ^ bit
    changes.pop(END, None)
    starts, masks, mask = [], [], 0
    for start in sorted(changes):
        mask ^= changes[start]
        starts.append(start)
        masks.append(mask)
    numbers: dict[int, int] = {}
    classes = [numbers.setdefault(mask, len(numbers)) for mask in masks]
    return partition_of(*_join(starts, classes)), tuple(numbers)


@lru_cache(maxsize=2048)
def refine_partitions(
    partitions: tuple[Partition, ...],
) -> tuple[Partition, list[tuple[int, ...]]]:
    """The coarsest common refinement, and for each of its classes the class in every partition."""
    if not partitions:
        return WHOLE, [()]
    if len(partitions) == 1:
        return partitions[0], [(c,) for c in range(partitions[0].count)]
    starts = sorted({start for partition in partitions for start in partition.starts})
    numbers: dict[tuple[int, ...], int] = {}
    classes = [
        numbers.setdefault(tuple(p.class_of(start) for p in partitions), len(numbers))
        for start in starts
    ]
    return partition_of(*_join(starts, classes)), list(numbers)


def _join(starts: Sequence[int], classes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Neighbouring segments of one class become one."""
    kept = [i for i in range(len(starts)) if i == 0 or classes[i] != classes[i - 1]]
    if len(kept) == len(starts):
        return tuple(starts), tuple(classes)
    return tuple(starts[i] for i in kept), tuple(classes[i] for i in kept)
