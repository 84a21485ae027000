"""Intersection, union and complement of automata over code points.

Products are made state by state.  What a product lacks is a guarantee that its states are live, so
:class:`_Trimmed` searches forward from each new state until it meets acceptance, and remembers.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

from sglang_lite.constrained import budget
from sglang_lite.constrained.automaton import (
    ANY_REMAINDER,
    DEAD,
    NO_ARCS,
    Arcs,
    Automaton,
    EmptyLanguage,
    Remainder,
    any_text,
    common_arcs,
    merge_arcs,
)
from sglang_lite.errors import GrammarTooComplex

MAX_SEARCH = 10_000
LEAST_SEARCH = 100
"""States of one search, and of one for a mask whose work is used up."""
_ANY = -2


def combine(required: Sequence[Automaton], refused: Sequence[Automaton] = ()) -> Automaton:
    """The texts that are in all of ``required`` and in none of ``refused``.

    Raises :class:`EmptyLanguage` where there is none, :class:`GrammarTooComplex` where the search
    for one takes more than ``MAX_SEARCH`` states.
    """
    required = tuple(dict.fromkeys(r for r in required if not _is_any(r, 0)))
    refused = tuple(dict.fromkeys(map(_whole, refused)))
    if not refused and not required:
        return any_text()
    if not refused and len(required) == 1:
        return required[0]
    return trimmed(_Product(required, refused))


def trimmed(automaton: Automaton) -> Automaton:
    """The same language where some states of ``automaton`` may be dead ends."""
    live = _Trimmed(automaton)
    if not live.alive(0):
        raise EmptyLanguage("the conditions exclude each other")
    return live


def union(parts: Sequence[Automaton]) -> Automaton:
    """The texts that are in at least one of ``parts``."""
    parts = tuple(dict.fromkeys(parts))
    if not parts:
        raise EmptyLanguage("a union of nothing")
    return parts[0] if len(parts) == 1 else _Union(parts)


def _whole(automaton: Automaton) -> Automaton:
    """The same language, perhaps with dead states, which do no harm in a product that is searched.

    It is exact even where a search had to give a state up: what is refused must not shrink.
    """
    if isinstance(automaton, _Trimmed):
        return _whole(automaton.whole)
    if isinstance(automaton, _Union):
        return _Union(tuple(map(_whole, automaton.parts)))
    return automaton


def check_search(states: int) -> None:
    """The budget of a search for any text at all that satisfies a combination of conditions."""
    budget.check()
    if states > MAX_SEARCH:
        raise GrammarTooComplex(
            f"after {MAX_SEARCH} states it is open whether any text satisfies a combination of"
            " string conditions"
        )


def _is_any(automaton: Automaton, state: int) -> bool:
    return automaton.remainder(state) == ANY_REMAINDER


class _Product(Automaton):
    """All of ``required`` and none of ``refused``; its states need not be live.

    A key is one state per component: ``_ANY`` for a required one that accepts whatever follows,
    -1 for a refused one that cannot accept any more.
    """

    def __init__(self, required: tuple[Automaton, ...], refused: tuple[Automaton, ...]) -> None:
        self._required = required
        self._refused = refused
        self._source = (_Product, (required, refused))
        super().__init__(self._key([0] * len(required), [0] * len(refused)))

    def _key(self, required: list[int], refused: list[int]) -> tuple[tuple[int, ...], ...]:
        kept = [
            _ANY if s != _ANY and _is_any(a, s) else s
            for a, s in zip(self._required, required, strict=True)
        ]
        return tuple(kept), tuple(refused)

    def _accepting(self, key: Any) -> bool:
        required, refused = key
        return all(
            s == _ANY or a.accepts(s) for a, s in zip(self._required, required, strict=True)
        ) and not any(
            s != DEAD and a.accepts(s) for a, s in zip(self._refused, refused, strict=True)
        )

    def _expand(self, key: Any) -> Arcs:
        required, refused = key
        if any(s != DEAD and _is_any(a, s) for a, s in zip(self._refused, refused, strict=True)):
            return NO_ARCS
        live = [a.arcs(s) for a, s in zip(self._required, required, strict=True) if s != _ANY]
        live += [a.arcs(s) for a, s in zip(self._refused, refused, strict=True) if s != DEAD]
        partition, rows = common_arcs(live)
        targets = []
        for row in rows:
            following = iter(row)
            first = [_ANY if s == _ANY else next(following) for s in required]
            second = [DEAD if s == DEAD else next(following) for s in refused]
            targets.append(DEAD if DEAD in first else self._number(self._key(first, second)))
        return merge_arcs(partition, targets)

    def hint(self, state: int) -> int:
        """How far the required part that is farthest from acceptance is from it."""
        pairs = zip(self._required, self._keys[state][0], strict=True)
        return max((a.hint(s) for a, s in pairs if s != _ANY), default=0)

    def remainder(self, state: int) -> Remainder | None:
        required, refused = self._keys[state]
        if any(s != DEAD for s in refused):
            return None
        open_ = [(a, s) for a, s in zip(self._required, required, strict=True) if s != _ANY]
        if not open_:
            return ANY_REMAINDER
        return open_[0][0].remainder(open_[0][1]) if len(open_) == 1 else None

    def total(self, state: int) -> bool:
        required, refused = self._keys[state]
        open_ = [(a, s) for a, s in zip(self._required, required, strict=True) if s != _ANY]
        return all(s == DEAD for s in refused) and (
            not open_ or (len(open_) == 1 and open_[0][0].total(open_[0][1]))
        )


class _Union(Automaton):
    """At least one of ``parts``; a key is one state per part, -1 where it is out."""

    def __init__(self, parts: tuple[Automaton, ...]) -> None:
        self.parts = parts
        self._source = (_Union, (parts,))
        super().__init__((0,) * len(parts))

    def _accepting(self, key: Any) -> bool:
        return any(s != DEAD and a.accepts(s) for a, s in zip(self.parts, key, strict=True))

    def _expand(self, key: Any) -> Arcs:
        partition, rows = common_arcs(
            [a.arcs(s) for a, s in zip(self.parts, key, strict=True) if s != DEAD]
        )
        targets = []
        for row in rows:
            following = iter(row)
            states = tuple(DEAD if s == DEAD else next(following) for s in key)
            targets.append(DEAD if max(states) == DEAD else self._number(states))
        return merge_arcs(partition, targets)

    def hint(self, state: int) -> int:
        pairs = zip(self.parts, self._keys[state], strict=True)
        return min(a.hint(s) for a, s in pairs if s != DEAD)

    def remainder(self, state: int) -> Remainder | None:
        key = self._keys[state]
        known = [a.remainder(s) for a, s in zip(self.parts, key, strict=True) if s != DEAD]
        return ANY_REMAINDER if ANY_REMAINDER in known else known[0] if len(known) == 1 else None

    def total(self, state: int) -> bool:
        return any(
            s != DEAD and a.total(s) for a, s in zip(self.parts, self._keys[state], strict=True)
        )


class _Trimmed(Automaton):
    """Another automaton without the states from which no text leads to acceptance."""

    def __init__(self, whole: Automaton) -> None:
        self.whole = whole
        self._live: dict[int, bool] = {}
        self._source = (_Trimmed, (whole,))
        super().__init__(None)

    def accepts(self, state: int) -> bool:
        return self.whole.accepts(state)

    def hint(self, state: int) -> int:
        return self.whole.hint(state)

    def remainder(self, state: int) -> Remainder | None:
        return self.whole.remainder(state)

    def total(self, state: int) -> bool:
        return self.whole.total(state)

    def arcs(self, state: int) -> Arcs:
        while state >= len(self._arcs):
            self._arcs.append(None)
        arcs = self._arcs[state]
        if arcs is None:
            partition, targets = self.whole.arcs(state)
            kept = [t if t != DEAD and self.alive(t) else DEAD for t in targets]
            arcs = self._arcs[state] = merge_arcs(partition, kept)
        return arcs

    def alive(self, state: int) -> bool:
        """True where some text leads from ``state`` to acceptance; remembers what it learns.

        The search goes first where the parts, taken alone, are nearest to acceptance.  From the
        start, exceeding the budget is an error.  Later it makes the state a dead one: that refuses
        texts, but never strands one, because the way that proved a state live stays open.
        """
        known = self._live.get(state)
        if known is None:
            with self._lock:
                known = self._search(state)
        return known

    def _search(self, state: int) -> bool:
        with budget.searching():
            return self._find_way(state)

    def _find_way(self, state: int) -> bool:
        live, whole = self._live, self.whole
        came_from = {state: DEAD}
        todo = [(0, 0, state)]
        # What is broad at the start will be broad later, so it is searched in breadth there, which
        # refuses it.  A state within a text is taken to the nearest end by the shortest way.
        newer = -1 if state else 1
        left = budget.work_left()
        limit = MAX_SEARCH if left is None else min(MAX_SEARCH, max(left, LEAST_SEARCH))

        def ends(here: int) -> bool:
            return live.get(here, False) or whole.accepts(here)

        while todo:
            here = heappop(todo)[2]
            if ends(here):
                while here != DEAD:
                    live[here] = True
                    here = came_from[here]
                return True
            if state and len(came_from) > limit:
                break
            budget.spend()
            check_search(len(came_from))
            for target in whole.arcs(here).targets:
                if target != DEAD and target not in came_from and live.get(target) is not False:
                    came_from[target] = here
                    # An end one step away goes first: a count ahead may be hundreds of steps.
                    nearest = -1 if state and ends(target) else whole.hint(target)
                    heappush(todo, (nearest, newer * len(came_from), target))
        live.update(dict.fromkeys(came_from, False))
        return False
