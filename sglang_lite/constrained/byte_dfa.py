"""The image of an automaton over code points in bytes: what the matcher walks."""

from __future__ import annotations

import threading
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from sglang_lite.constrained import budget
from sglang_lite.constrained.automaton import ANY_REMAINDER, DEAD, Automaton, any_text
from sglang_lite.constrained.dfa import Targets
from sglang_lite.constrained.encoding import Encoding, Node, Row, first_row
from sglang_lite.constrained.ir import Bound, ByteDFA
from sglang_lite.constrained.lengths import Bounded

ROW_BYTES, STATE_BYTES = 2200, 800
"""Rough memory of a row, and of a state with its arcs and what its automaton knows of it."""
_NOWHERE = Row([0] * 256, ())
_OPEN = Row([int(byte == 0x22) for byte in range(256)], ())


class TextDFA(ByteDFA):
    """The texts of ``automaton``, spelled in ``encoding``, between quotes if ``quoted``.

    States are numbered when they are first seen: 0 is the start.  A state lies between two
    characters (an automaton's state) or in the middle of one (a node and where its classes lead).
    """

    start = 0

    def __init__(self, automaton: Automaton, encoding: Encoding, quoted: bool) -> None:
        self.automaton = automaton
        self.encoding: Encoding = encoding
        self.quoted = quoted
        self._lock = threading.RLock()
        self._rows: list[tuple[int, ...] | None] = []
        self._keys: list[Any] = []
        self._ids: dict[Any, int] = {}
        if quoted:
            self._number("open")
            self.end = self._number("close")
        self._number(0)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return text_dfa, (self.automaton, self.encoding, self.quoted)

    @property
    def body(self) -> int:
        """The state at the beginning of the text, after the opening quote if there is one."""
        return 2 if self.quoted else 0

    def step(self, state: int, byte: int) -> int:
        """The state after ``byte``, or -1."""
        return self.row(state)[byte]

    def row(self, state: int) -> tuple[int, ...]:
        """The 256 targets of ``state``; -1 is a refusal."""
        row = self._rows[state]
        if row is None:
            with self._lock:
                pattern, items = self._pattern(self._keys[state])
                row = self._rows[state] = pattern.pick(items)
        return row

    def array(self, state: int) -> Targets:
        """:meth:`row` as an array, without the tuple."""
        with self._lock:
            pattern, items = self._pattern(self._keys[state])
        return np.array(items, np.int32).take(pattern.entries)

    def accepts(self, state: int) -> bool:
        """True where the bytes so far are a text of the language."""
        key = self._keys[state]
        if self.quoted:
            return key == "close"
        return isinstance(key, int) and self.automaton.accepts(key)

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the states made so far; 0 for the unrestricted string."""
        if self.automaton is any_text():
            return 0
        rows = sum(row is not None for row in self._rows)
        return ROW_BYTES * rows + STATE_BYTES * len(self._keys)

    def bound(self, state: int) -> Bound | None:
        """Between two characters of a string with a bounded length: the string without it."""
        key = self._keys[state]
        if not self.quoted or not isinstance(key, int) or not isinstance(self.automaton, Bounded):
            return None
        bounded = self.automaton
        inner, length = bounded.split(key)
        plain = text_dfa(bounded.whole, self.encoding, True)

        def boundary(at: int) -> bool:
            return isinstance(plain._keys[at], int)

        def fits(at: int, chars: int) -> bool:
            here = plain._keys[at]
            if here == "close":
                return bounded.holds(length + chars)
            if isinstance(here, int):
                return bounded.fits(here, length + chars)
            return any(t != DEAD and bounded.fits(t, length + chars + 1) for t in here[1])

        return Bound(plain, plain.number(inner), boundary, fits, bounded.holds(length))

    def needs(self, absent: frozenset[int]) -> bool:
        """False for JSON values: every character has a spelling in printable ASCII."""
        return self.encoding != "json" or any(0x20 <= byte < 0x7F for byte in absent)

    def endless(self, state: int) -> bool:
        """True in the body of a string that no text makes refuse what follows."""
        key = self._keys[state]
        return self.quoted and isinstance(key, int) and self.automaton.total(key)

    def alias(self, state: int) -> tuple[ByteDFA, int] | None:
        """The state of the unrestricted string that accepts the same, where this one is past it.

        So all patterns that have matched share the tables of the one string terminal.
        """
        key = self._keys[state]
        if key in ("open", "close"):
            return None
        inner = key if isinstance(key, int) else key[1][0] if len(key[1]) == 1 else DEAD
        if inner == DEAD or self.automaton.remainder(inner) != ANY_REMAINDER:
            return None
        plain = text_dfa(any_text(), self.encoding, self.quoted)
        if plain is self:
            return None
        return plain, plain.body if isinstance(key, int) else plain.number((key[0], (0,)))

    def like(self, state: int) -> tuple[ByteDFA, int] | None:
        """The body of the unrestricted string, where no text of a string is ever refused."""
        key = self._keys[state]
        if not self.quoted or key in ("open", "close"):
            return None
        between = isinstance(key, int)
        if not all(t != DEAD and self.automaton.total(t) for t in ((key,) if between else key[1])):
            return None
        plain = text_dfa(any_text(), self.encoding, True)
        if plain is self:
            return None
        return plain, plain.body if between else plain.number((key[0].of_one_class(), (0,)))

    def near(self, state: int, horizon: int) -> int:
        """A state that does the same with every byte sequence of up to ``horizon`` bytes."""
        key = self._keys[state]
        if key in ("open", "close"):
            return state
        near = self.automaton.near
        if isinstance(key, int):
            return self.number(near(key, horizon))
        node, targets = key
        return self.number((node, tuple(t if t == DEAD else near(t, horizon) for t in targets)))

    def twins(self, one: int, other: int, met: Seq[int]) -> list[int] | None:
        """See :class:`ByteDFA`; compared by characters, of which there are far fewer than bytes."""
        here, there = self._keys[one], self._keys[other]
        if not isinstance(here, int) or not isinstance(there, int):
            return None
        keys = [self._keys[state] for state in met]
        image = self._images(here, there, {key for key in keys if isinstance(key, int)})
        if image is None:
            return None
        found = []
        for state, key in zip(met, keys, strict=True):
            if isinstance(key, int):
                found.append(self.number(image[key]))
            elif key in ("open", "close"):
                found.append(state)
            else:
                targets = tuple([t if t == DEAD else image[t] for t in key[1]])
                found.append(self.number((key[0], targets)))
        return found if len(set(found)) == len(found) else None

    def _images(self, here: int, there: int, met: set[int]) -> dict[int, int] | None:
        """Images of ``met`` and of where its arcs lead; any other state may differ in all else."""
        automaton = self.automaton
        image: dict[int, int] = {}
        work = [(here, there)]
        while work:
            one, other = work.pop()
            if one in image:
                if image[one] != other:
                    return None
                continue
            image[one] = other
            if one not in met:
                continue
            ours, theirs = automaton.arcs(one), automaton.arcs(other)
            if automaton.accepts(one) != automaton.accepts(other):
                return None
            if ours.partition is not theirs.partition:
                return None
            for pair in zip(ours.targets, theirs.targets, strict=True):
                if DEAD not in pair:
                    work.append(pair)
                elif pair != (DEAD, DEAD):
                    return None
        return image

    def matches(self, text: bytes) -> bool:
        """True where exactly these bytes are in the language."""
        state = self.start
        for byte in text:
            state = self.row(state)[byte]
            if state == DEAD:
                return False
        return self.accepts(state)

    def number(self, key: Any) -> int:
        """The state of a key, a new one if it was not seen before."""
        with self._lock:
            return self._number(key)

    def _number(self, key: Any) -> int:
        state = self._ids.get(key)
        if state is None:
            state = len(self._keys)
            if state >= budget.AUTOMATON_STATES:
                budget.overfull("a byte automaton")
            self._keys.append(key)
            self._rows.append(None)
            self._ids[key] = state
        return state

    def _pattern(self, key: Any) -> tuple[Row, list[int]]:
        """What the bytes do after ``key``, and the states that its entries stand for."""
        if key == "close":
            return _NOWHERE, [DEAD]
        if key == "open":
            return _OPEN, [DEAD, self._number(0)]
        quote, before = DEAD, len(self._keys)
        if isinstance(key, int):
            partition, targets = self.automaton.arcs(key)
            row = first_row(self.encoding, partition)
            if self.quoted and self.automaton.accepts(key):
                quote = self.end
        else:
            node, targets = key
            row = node.row()
        items = [DEAD, quote]
        items += [t if t == DEAD else self._number(t) for t in targets]
        for node, classes in row.children:
            items.append(self._middle(node, tuple([targets[c] for c in classes])))
        budget.spend(1 + len(self._keys) - before)
        return row, items

    def _middle(self, node: Node, targets: tuple[int, ...]) -> int:
        return DEAD if max(targets) == DEAD else self._number((node, targets))


def text_dfa(automaton: Automaton, encoding: Encoding = "utf8", quoted: bool = False) -> TextDFA:
    """The one :class:`TextDFA` of these arguments; it lives as long as the automaton."""
    key = (encoding, quoted)
    dfa = automaton.images.get(key)
    if dfa is None:
        dfa = automaton.images.setdefault(key, TextDFA(automaton, encoding, quoted))
    return dfa
