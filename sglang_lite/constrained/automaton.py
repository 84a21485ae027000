"""Deterministic automata over code points, made state by state on demand, and their algebra.

Patterns, formats, numbers and finite sets of texts all are :class:`Automaton`.  Working on code
points keeps automata small (no states in the middle of a UTF-8 sequence or of ``\\u00e9``), makes a
length a plain count, and makes complements exact; ``byte_dfa`` takes their image in bytes, and
``algebra`` combines them.

Every state of an automaton is *live*: some text leads from it to acceptance.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

from sglang_lite.constrained import budget
from sglang_lite.constrained.charset import (
    ANYTHING,
    NOTHING,
    WHOLE,
    CharSet,
    Partition,
    characters,
    refine,
    refine_partitions,
)

DEAD = -1


class EmptyLanguage(ValueError):
    """No text at all is in the language."""


class Arcs(NamedTuple):
    """The transitions of a state: code points of class c of ``partition`` lead to ``targets[c]``.

    The targets are distinct, so two equal functions have equal arcs; -1 is a refusal.
    """

    partition: Partition
    targets: tuple[int, ...]


class Remainder(NamedTuple):
    """What may still follow: from ``minimum`` to ``maximum`` characters out of ``members``."""

    members: CharSet
    minimum: int
    maximum: int | None


NO_ARCS = Arcs(WHOLE, (DEAD,))
ANY_REMAINDER = Remainder(ANYTHING, 0, None)


class Automaton:
    """A deterministic automaton over code points; state 0 is the start.

    A subclass describes states by hashable keys: ``_accepting(key)``, and ``_moves(key)`` which
    gives character sets and a function from the subset of them that contains a code point (a bit
    mask) to the next key or None.  Safe for several threads.
    """

    farthest: int | None = None
    """No state is farther from acceptance than this; None is unknown."""

    def __init__(self, start: Hashable) -> None:
        self._lock = threading.RLock()
        self._keys: list[Any] = []
        self._ids: dict[Hashable, int] = {}
        self._arcs: list[Arcs | None] = []
        self._accepted: dict[int, bool] = {}
        self._shortest: dict[int, int] = {}
        self.images: dict[
            tuple[str, bool], Any
        ] = {}  # where ``byte_dfa`` keeps what it makes of it
        self._source: tuple[Any, tuple[Any, ...]]
        self._number(start)

    def _accepting(self, key: Any) -> bool:
        raise TypeError("a subclass says which keys accept")

    def _moves(self, key: Any) -> tuple[tuple[CharSet, ...], Callable[[int], Hashable | None]]:
        raise TypeError("a subclass says where a key leads")

    # -- the automaton ---------------------------------------------------------------------------

    def accepts(self, state: int) -> bool:
        """True where the text read so far is in the language."""
        accepted = self._accepted.get(state)
        if accepted is None:
            with self._lock:
                accepted = self._accepted[state] = self._accepting(self._keys[state])
        return accepted

    def arcs(self, state: int) -> Arcs:
        """Where each code point leads from ``state``."""
        arcs = self._arcs[state]
        if arcs is None:
            budget.spend()
            with self._lock:
                arcs = self._arcs[state] = self._expand(self._keys[state])
        return arcs

    def remainder(self, state: int) -> Remainder | None:
        """The remaining language, where it is known to be so many characters of one set."""
        return None

    def near(self, state: int, horizon: int) -> int:
        """A state from which all texts of up to ``horizon`` characters fare as they do from here.

        Counters that are far from their bounds look the same, so states share what is computed of
        them for short texts.
        """
        return state

    def total(self, state: int) -> bool:
        """True where it is known that no text at all leads to a dead end from ``state``."""
        return False

    def shortest(self, state: int) -> int:
        """The length of the shortest text that leads from ``state`` to acceptance."""
        if state not in self._shortest:
            frontier, seen, length = [state], {state}, 0
            while not any(map(self.accepts, frontier)):
                budget.check()
                ahead = {t for here in frontier for t in self.arcs(here).targets if t != DEAD}
                frontier, length = list(ahead - seen), length + 1
                seen |= ahead
            self._shortest[state] = length
        return self._shortest[state]

    def hint(self, state: int) -> int:
        """A guess of :meth:`shortest` that is cheap, and defined for dead states too."""
        return self.shortest(state)

    def _number(self, key: Hashable) -> int:
        state = self._ids.get(key)
        if state is None:
            state = len(self._keys)
            if state >= budget.AUTOMATON_STATES:
                budget.overfull("an automaton")
            self._keys.append(key)
            self._arcs.append(None)
            self._ids[key] = state
        return state

    def _expand(self, key: Any) -> Arcs:
        sets, advance = self._moves(key)
        if not sets:
            return NO_ARCS
        partition, masks = refine(sets)
        targets = []
        for mask in masks:
            following = advance(mask) if mask else None
            targets.append(DEAD if following is None else self._number(following))
        return merge_arcs(partition, targets)

    def _spelled(self, moves: Mapping[str, Hashable]) -> Arcs:
        """The arcs of a state from its next characters and the keys that they lead to."""
        if not moves:
            return NO_ARCS
        by_key: dict[Hashable, str] = {}
        for character, key in moves.items():
            by_key[key] = by_key.get(key, "") + character
        partition, masks = refine(tuple(map(characters, by_key.values())))
        targets = [self._number(key) for key in by_key]
        return merge_arcs(partition, [targets[m.bit_length() - 1] if m else DEAD for m in masks])

    # -- questions -------------------------------------------------------------------------------

    def after(self, text: str, state: int = 0) -> int:
        """The state after ``text``, or -1."""
        for character in text:
            code_point = ord(character)
            if 0xD800 <= code_point < 0xE000:
                return DEAD
            arcs = self.arcs(state)
            state = arcs.targets[arcs.partition.class_of(code_point)]
            if state == DEAD:
                return DEAD
        return state

    def matches(self, text: str) -> bool:
        """True where ``text`` as a whole is in the language."""
        state = self.after(text)
        return state != DEAD and self.accepts(state)

    def enumerate(self, limit: int) -> list[str] | None:
        """All texts in order, or None if there are more than ``limit`` of them."""
        texts: list[str] = []
        todo: list[tuple[str, int]] = [("", 0)]
        while todo:
            budget.check()
            text, state = todo.pop()
            if self.accepts(state):
                texts.append(text)
            if len(text) > budget.AUTOMATON_STATES or len(texts) + len(todo) > limit:
                return None
            arcs = self.arcs(state)
            for number, target in enumerate(arcs.targets):
                if target == DEAD:
                    continue
                members = arcs.partition.char_set(number)
                if members.size() > limit:
                    return None
                for low, high in members.ranges():
                    todo += [
                        (text + chr(c), target)
                        for c in range(low, high + 1)
                        if not 0xD800 <= c < 0xE000
                    ]
        return sorted(texts) if len(texts) <= limit else None

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._source


def merge_arcs(partition: Partition, targets: Sequence[int]) -> Arcs:
    """Arcs whose targets are distinct: classes that lead to the same state become one."""
    numbers: dict[int, int] = {}
    onto = [numbers.setdefault(target, len(numbers)) for target in targets]
    if len(numbers) == len(targets):
        return Arcs(partition, tuple(targets))
    return Arcs(partition.merge(onto), tuple(numbers))


def common_arcs(arcs: Sequence[Arcs]) -> tuple[Partition, list[tuple[int, ...]]]:
    """A partition that refines all, and for each of its classes the target of every one of them."""
    partition, numbers = refine_partitions(tuple(a.partition for a in arcs))
    return partition, [
        tuple(a.targets[c] for a, c in zip(arcs, row, strict=True)) for row in numbers
    ]


class _Repeated(Automaton):
    """So many characters of one set; the key counts them as far as it matters."""

    def __init__(self, members: CharSet, minimum: int, maximum: int | None) -> None:
        self._members = members
        self._minimum = minimum
        self._maximum = maximum
        self._source = (repeated, (members, minimum, maximum))
        super().__init__(0)

    def _accepting(self, key: int) -> bool:
        return key >= self._minimum

    def _moves(self, key: int) -> tuple[tuple[CharSet, ...], Callable[[int], Hashable | None]]:
        if key == self._maximum:
            return (), lambda mask: None
        following = key + 1 if self._maximum is not None else min(key + 1, self._minimum)
        return (self._members,), lambda mask: following

    def remainder(self, state: int) -> Remainder:
        count = self._keys[state]
        return Remainder(
            self._members,
            max(0, self._minimum - count),
            None if self._maximum is None else self._maximum - count,
        )

    def shortest(self, state: int) -> int:
        return self.remainder(state).minimum

    def total(self, state: int) -> bool:
        return self._members == ANYTHING and self._maximum is None


@lru_cache(maxsize=1024)
def repeated(members: CharSet, minimum: int = 0, maximum: int | None = None) -> Automaton:
    """The texts of ``minimum`` to ``maximum`` characters out of ``members``."""
    if (minimum and not members) or (maximum is not None and maximum < minimum):
        raise EmptyLanguage(f"no text has {minimum} to {maximum} characters of {members}")
    return _Repeated(members if maximum != 0 else NOTHING, minimum, maximum)


@cache
def any_text() -> Automaton:
    """Every text."""
    # All arguments: the cache tells calls with and without defaults apart, and pickles give all.
    return repeated(ANYTHING, 0, None)


class _Words(Automaton):
    """A finite set of texts; a key is the sorted tuple of what may follow (a trie, made lazily)."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self._source = (words, (words,))
        super().__init__(words)

    def _accepting(self, key: tuple[str, ...]) -> bool:
        return key[0] == ""

    def shortest(self, state: int) -> int:
        return min(map(len, self._keys[state]))

    def _expand(self, key: tuple[str, ...]) -> Arcs:
        following: dict[str, list[str]] = {}
        for word in key:
            if word:
                following.setdefault(word[0], []).append(word[1:])
        return self._spelled({character: tuple(rest) for character, rest in following.items()})


@lru_cache(maxsize=256)
def words(texts: tuple[str, ...]) -> Automaton:
    """Exactly these texts."""
    usable = {w for w in texts if not any(0xD800 <= ord(c) < 0xE000 for c in w)}
    if not usable:
        raise EmptyLanguage("no texts")
    return _Words(tuple(sorted(usable)))
