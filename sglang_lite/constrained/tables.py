"""Token tables of a vocabulary: which tokens stay inside a terminal, and where the others leave it.

They depend on the terminal's automaton only, not on the grammar around it, so all grammars of one
vocabulary share them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_lite.constrained.ir import ByteDFA
from sglang_lite.constrained.trie import Int32, Place, Trie, ranges

if TYPE_CHECKING:
    from sglang_lite.constrained.counted import Measure
    from sglang_lite.constrained.frames import Frame

Row = NDArray[np.int32]
"""A packed set of token ids: bit ``i % 32`` of word ``i // 32``."""

SHORT = 48
"""Sets of more ids than this are packed rows; shorter ones are cheaper bit by bit."""


class Scan(NamedTuple):
    """What the tokens below a place do to a cursor.

    ``rows`` and ``tokens`` are allowed whatever follows; each of ``exits`` says that the cursor is
    done at that place, with these frames to be matched before the rest.
    """

    rows: tuple[Row, ...]
    tokens: tuple[int, ...]
    exits: tuple[tuple[tuple[Frame, ...], Place], ...]


NOTHING = Scan((), (), ())


class Tables:
    """The trie of a vocabulary and, for each terminal in use, its scans."""

    def __init__(self, trie: Trie, size: int) -> None:
        self.trie = trie
        self.words = (size + 31) // 32
        self._terminals: dict[ByteDFA, TerminalTable] = {}

    def terminal(self, dfa: ByteDFA) -> TerminalTable:
        """The table of ``dfa``."""
        found = self._terminals.get(dfa)
        if found is None:
            found = self._terminals.setdefault(dfa, TerminalTable(self, dfa))
        return found

    def prepare(self) -> None:
        """Make the tables of JSON's own terminals now, not when a text first needs them."""
        from sglang_lite.constrained.json_string import json_key, json_string

        for dfa in (json_string(), json_key()):
            self.terminal(dfa).scan(self.trie.root, dfa.start)
            self.terminal(dfa).scan(self.trie.root, dfa.body)

    def pack(self, tokens: Int32) -> Row:
        """The row with the bits of ``tokens``."""
        flags = np.zeros(self.words * 32, np.bool_)
        flags[tokens] = True
        return np.packbits(flags, bitorder="little").view(np.int32)

    def compact(self, tokens: Int32) -> tuple[tuple[Row, ...], tuple[int, ...]]:
        """``tokens`` as (rows, ids): a packed row if there are many, else the ids."""
        if len(tokens) > SHORT:
            return (self.pack(tokens),), ()
        return (), tuple(tokens.tolist())

    def without(self, scan: Scan, cut: Iterable[tuple[Place | None, tuple[int, ...]]]) -> Scan:
        """``scan`` less the tokens and the exit nodes of ``cut``."""
        tokens: set[int] = set()
        nodes: list[int] = []
        for place, ids in cut:
            tokens.update(ids)
            if place is not None:
                nodes += list(place.nodes)
        rows = scan.rows
        if tokens and rows:
            holes = ~self.pack(np.fromiter(tokens, np.int32))
            rows = tuple(row & holes for row in rows)
        exits = []
        for frames, place in scan.exits:
            kept = np.setdiff1d(np.asarray(place.nodes, np.int32), np.array(nodes, np.int32))
            after = self.trie.place(kept)
            if after is not None:
                exits.append((frames, after))
        return Scan(rows, tuple(t for t in scan.tokens if t not in tokens), tuple(exits))


class TerminalTable:
    """The scans of one byte DFA, by place and state."""

    def __init__(self, tables: Tables, dfa: ByteDFA) -> None:
        self.tables = tables
        self.dfa = dfa
        self._scans: dict[tuple[Place, int], Scan] = {}
        self._targets = np.full((8, 256), -1, np.int32)
        self._accepts = np.zeros(8, np.bool_)
        self._known = np.zeros(8, np.bool_)
        self._flagged = 0
        self._lock = threading.Lock()
        self._measures: dict[tuple[Place, int, int], Measure] = {}

    def scan(self, place: Place, state: int) -> Scan:
        """The tokens below ``place`` read from ``state``; memoised."""
        key = (place, state)
        found = self._scans.get(key)
        if found is None:
            found = self._scans.setdefault(key, self._scan(place, state))
        return found

    def _scan(self, place: Place, state: int) -> Scan:
        inside, exits = self._walk(place, state)
        trie = self.tables.trie
        rows, tokens = self.tables.compact(trie.tokens_at(inside))
        if len(exits):
            ends = trie.tokens_at(exits)
            more_rows, more_tokens = self.tables.compact(ends)
            rows, tokens = rows + more_rows, tokens + more_tokens
            after = trie.place(np.unique(exits))
            return Scan(rows, tokens, (((), after),) if after else ())
        return Scan(rows, tokens, ())

    def _walk(self, place: Place, state: int) -> tuple[Int32, Int32]:
        """(nodes reached in states that do not accept, nodes reached in states that do).

        Level by level; every level is a few array operations whatever its width.
        """
        trie = self.tables.trie
        nodes = np.asarray(place.nodes, np.int32)
        states = np.full(len(nodes), state, np.int32)
        inside: list[Int32] = []
        exits: list[Int32] = []
        while len(nodes):
            start = trie.child_start[nodes]
            count = trie.child_end[nodes] - start
            kids = ranges(start, count)
            reached, done = self.targets(np.repeat(states, count), trie.byte[kids])
            live = reached >= 0
            nodes, states, done = kids[live], reached[live], done[live]
            if done.any():
                exits.append(nodes[done])
                inside.append(nodes[~done])
            else:
                inside.append(nodes)
        none = np.zeros(0, np.int32)
        return np.concatenate(inside or [none]), np.concatenate(exits or [none])

    def targets(self, states: Int32, bytes_: NDArray[np.uint8]) -> tuple[Int32, NDArray[np.bool_]]:
        """For each (state, byte) the state it leads to (-1 = refused) and whether that accepts."""
        with self._lock:
            self._fetch(states)
            reached = self._targets[states, bytes_]
            self._flag(int(reached.max(initial=-1)))
            return reached, self._accepts[reached] & (reached >= 0)

    def measure(self, place: Place, state: int, close: int) -> Measure:
        """The tokens below ``place`` as counted characters of this automaton; memoised."""
        key = (place, state, close)
        found = self._measures.get(key)
        if found is None:
            from sglang_lite.constrained.counted import Measure

            found = self._measures.setdefault(key, Measure(self, place, state, close))
        return found

    def _fetch(self, states: Int32) -> None:
        """Ask the automaton for the rows of ``states`` that were not used before."""
        self._flag(int(states.max(initial=-1)))
        missing = states[~self._known[states]]
        if len(missing):
            for state in np.unique(missing).tolist():
                self._targets[state] = self.dfa.row(state)
                self._known[state] = True

    def _flag(self, top: int) -> None:
        """Make room for the states up to ``top`` and ask which of them accept."""
        if top < self._flagged:
            return
        size = len(self._accepts)
        if top >= size:
            more = max(size, top + 1 - size)
            self._targets = np.concatenate([self._targets, np.full((more, 256), -1, np.int32)])
            self._accepts = np.concatenate([self._accepts, np.zeros(more, np.bool_)])
            self._known = np.concatenate([self._known, np.zeros(more, np.bool_)])
        for state in range(self._flagged, top + 1):
            self._accepts[state] = self.dfa.accepts(state)
        self._flagged = top + 1
