"""Punctuation with whitespace around it as one terminal.

``gap "," gap`` occurs after nearly every value.  As one automaton its token table is made once for
all grammars, and a walk crosses it in one step instead of three.
"""

from __future__ import annotations

import threading
from functools import lru_cache

from sglang_lite.constrained.ir import ByteDFA, Literal, Node, Terminal

MAX_TEXT = 16
"""Longer literals are texts of their own, not punctuation."""

MAX_LAYOUT = 3
"""Nodes of ``gap "," gap``."""

_WHITESPACE = frozenset(b" \t\n\r")

Part = bytes | ByteDFA


def fuse(items: tuple[Node, ...]) -> tuple[Node, ...]:
    """``items`` of a sequence with each run of whitespace and short literals made one terminal."""
    # Layout is the same in nearly all grammars; longer sequences hold a grammar's own content.
    return _layout(items) if len(items) <= MAX_LAYOUT else _fuse(items)


def _fuse(items: tuple[Node, ...]) -> tuple[Node, ...]:
    fused: list[Node] = []
    run: list[Node] = []
    for item in (*items, None):
        if item is not None and _is_punctuation(item):
            run.append(item)
            continue
        if any(isinstance(node, Terminal) for node in run) and len(run) > 1:
            parts = tuple(
                node.text if isinstance(node, Literal) else node.dfa  # type: ignore[attr-defined]
                for node in run
            )
            fused.append(Terminal(fused_dfa(parts)))
        else:
            fused += run
        run = []
        if item is not None:
            fused.append(item)
    return tuple(fused)


@lru_cache(maxsize=1024)
def _layout(items: tuple[Node, ...]) -> tuple[Node, ...]:
    return _fuse(items)


def _is_punctuation(node: Node) -> bool:
    if isinstance(node, Literal):
        return len(node.text) <= MAX_TEXT
    return isinstance(node, Terminal) and _is_whitespace(node.dfa)


@lru_cache(maxsize=1024)
def _is_whitespace(dfa: ByteDFA) -> bool:
    row = dfa.row(dfa.start)
    live = {byte for byte, target in enumerate(row) if target >= 0}
    return bool(live) and live <= _WHITESPACE and dfa.accepts(dfa.start)


class FusedDFA(ByteDFA):
    """The concatenation of ``parts``, determinised state by state.

    A state is the set of (part, state in it) that the text may have come to; all of them are live
    because all states of the parts are.
    """

    start = 0

    def __init__(self, parts: tuple[Part, ...]) -> None:
        self.parts = parts
        self._lock = threading.Lock()
        self._ids: dict[frozenset[tuple[int, int]], int] = {}
        self._sets: list[frozenset[tuple[int, int]]] = []
        self._rows: list[tuple[int, ...] | None] = []
        self._number(self._closed({(0, self._begin(0))}))

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return fused_dfa, (self.parts,)

    def _begin(self, part: int) -> int:
        first = self.parts[part]
        return 0 if isinstance(first, bytes) else first.start

    def _ended(self, part: int, state: int) -> bool:
        here = self.parts[part]
        return state == len(here) if isinstance(here, bytes) else here.accepts(state)

    def _closed(self, pairs: set[tuple[int, int]]) -> frozenset[tuple[int, int]]:
        """``pairs`` and the beginnings of the parts that follow where one has ended."""
        work = list(pairs)
        while work:
            part, state = work.pop()
            if part + 1 < len(self.parts) and self._ended(part, state):
                after = (part + 1, self._begin(part + 1))
                if after not in pairs:
                    pairs.add(after)
                    work.append(after)
        return frozenset(pairs)

    def _number(self, pairs: frozenset[tuple[int, int]]) -> int:
        found = self._ids.get(pairs)
        if found is None:
            found = self._ids[pairs] = len(self._sets)
            self._sets.append(pairs)
            self._rows.append(None)
        return found

    def step(self, state: int, byte: int) -> int:
        """The state after ``byte``, or -1."""
        return self.row(state)[byte]

    def row(self, state: int) -> tuple[int, ...]:
        """The 256 targets of ``state``; -1 is a refusal."""
        row = self._rows[state]
        if row is None:
            with self._lock:
                row = self._rows[state] = self._row(state)
        return row

    def _row(self, state: int) -> tuple[int, ...]:
        targets: dict[int, set[tuple[int, int]]] = {}
        for part, at in self._sets[state]:
            here = self.parts[part]
            if isinstance(here, bytes):
                if at < len(here):
                    targets.setdefault(here[at], set()).add((part, at + 1))
            else:
                for byte, target in enumerate(here.row(at)):
                    if target >= 0:
                        targets.setdefault(byte, set()).add((part, target))
        row = [-1] * 256
        for byte, pairs in targets.items():
            row[byte] = self._number(self._closed(pairs))
        return tuple(row)

    def accepts(self, state: int) -> bool:
        """True where the last part has ended."""
        last = len(self.parts) - 1
        return any(part == last and self._ended(part, at) for part, at in self._sets[state])


@lru_cache(maxsize=1024)
def fused_dfa(parts: tuple[Part, ...]) -> FusedDFA:
    """The one :class:`FusedDFA` of these parts."""
    return FusedDFA(parts)
