"""Texts of an automaton whose length in code points is within bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_lite.constrained.algebra import check_search
from sglang_lite.constrained.automaton import (
    DEAD,
    Arcs,
    Automaton,
    EmptyLanguage,
    Remainder,
    merge_arcs,
    repeated,
)


def bounded(whole: Automaton, minimum: int = 0, maximum: int | None = None) -> Automaton:
    """The texts of ``whole`` of ``minimum`` to ``maximum`` (None = no limit) code points.

    Raises :class:`EmptyLanguage` where there is none.
    """
    if minimum <= 0 and maximum is None:
        return whole
    rest = whole.remainder(0)
    if rest is not None:
        lengths = [m for m in (maximum, rest.maximum) if m is not None]
        return repeated(rest.members, max(minimum, rest.minimum), min(lengths, default=None))
    automaton = Bounded(whole, minimum, maximum)
    if not automaton.fits(0, 0):
        raise EmptyLanguage(f"no text has {minimum} to {maximum} characters")
    return automaton


class Bounded(Automaton):
    """The texts of another automaton with a length within bounds; a key is (state, length).

    The length is counted only as far as it matters: up to ``minimum`` where there is no maximum.
    """

    def __init__(self, whole: Automaton, minimum: int, maximum: int | None) -> None:
        self._whole = whole
        self._minimum = max(minimum, 0)
        self._maximum = maximum
        self._pumped: dict[int, int | None] = {}
        self._source = (Bounded, (whole, minimum, maximum))
        super().__init__((0, 0))

    @property
    def whole(self) -> Automaton:
        """The automaton without the bound."""
        return self._whole

    def split(self, state: int) -> tuple[int, int]:
        """(state of :attr:`whole`, code points so far) of a state."""
        inner, length = self._keys[state]
        return inner, length

    def holds(self, length: int) -> bool:
        """True where a text of so many code points is within the bounds."""
        return length >= self._minimum and (self._maximum is None or length <= self._maximum)

    def _accepting(self, key: Any) -> bool:
        state, length = key
        return length >= self._minimum and self._whole.accepts(state)

    def _expand(self, key: Any) -> Arcs:
        state, length = key
        partition, targets = self._whole.arcs(state)
        length = length + 1 if self._maximum is not None else min(length + 1, self._minimum)
        kept = [
            self._number((t, length)) if t != DEAD and self.fits(t, length) else DEAD
            for t in targets
        ]
        return merge_arcs(partition, kept)

    def remainder(self, state: int) -> Remainder | None:
        inner, length = self._keys[state]
        rest = self._whole.remainder(inner)
        if rest is None:
            return None
        minimum = max(rest.minimum, self._minimum - length)
        if self._maximum is None:
            return Remainder(rest.members, minimum, rest.maximum)
        room = self._maximum - length
        return Remainder(
            rest.members, minimum, room if rest.maximum is None else min(room, rest.maximum)
        )

    def near(self, state: int, horizon: int) -> int:
        inner, length = self._keys[state]
        farthest = self._whole.farthest
        if farthest is None or self._maximum is None or length <= self._minimum:
            return state
        if self._maximum - length <= horizon + farthest:
            return state  # the bound may decide which states within the horizon are live
        length = self._minimum
        with self._lock:
            return self._number((self._whole.near(inner, horizon), length))

    def total(self, state: int) -> bool:
        return self._maximum is None and self._whole.total(self._keys[state][0])

    def shortest(self, state: int) -> int:
        inner, length = self._keys[state]
        least = self._whole.shortest(inner)
        return least if least + length >= self._minimum else super().shortest(state)

    def hint(self, state: int) -> int:
        return self._whole.hint(self._keys[state][0])

    def fits(self, state: int, length: int) -> bool:
        """True where a text from ``state`` to acceptance has a length that is still allowed."""
        need = max(0, self._minimum - length)
        room = None if self._maximum is None else self._maximum - length
        if room is not None and (room < need or self._whole.shortest(state) > room):
            return False
        if need <= self._whole.shortest(state):
            return True
        pumped = self._least_pumped(state)
        if pumped is not None and (room is None or pumped <= room):
            return True
        return self._search(state, need, room)

    def _least_pumped(self, state: int) -> int | None:
        """A length from which on every length leads from ``state`` to acceptance, if one is seen.

        That is the way to a state with an arc to itself, and from there to acceptance.
        """
        if state not in self._pumped:
            loops: list[int] = []

            def loops_here(here: int) -> bool:
                if here not in self._whole.arcs(here).targets:
                    return False
                loops.append(here)
                return True

            way = self._breadth_first(state, loops_here)
            self._pumped[state] = None if way is None else way + self._whole.shortest(loops[0])
        return self._pumped[state]

    def _breadth_first(self, state: int, goal: Callable[[int], bool]) -> int | None:
        frontier, seen, length = [state], {state}, 0
        while frontier:
            following = []
            for here in frontier:
                if goal(here):
                    return length
                for target in self._whole.arcs(here).targets:
                    if target != DEAD and target not in seen:
                        seen.add(target)
                        following.append(target)
            check_search(len(seen))
            frontier, length = following, length + 1
        return None

    def _search(self, state: int, need: int, room: int | None) -> bool:
        """The exact answer of :meth:`fits`: all states after 1, 2, 3... characters."""
        frontier, length, seen = {state}, 0, 0
        while frontier and (room is None or length <= room):
            if length >= need and (room is None or any(map(self._whole.accepts, frontier))):
                return True
            frontier = {t for s in frontier for t in self._whole.arcs(s).targets if t != DEAD}
            length += 1
            seen += len(frontier)
            check_search(seen)
        return False
