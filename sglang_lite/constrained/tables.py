"""Token tables of a vocabulary: which tokens stay inside a terminal, and where the others leave it.

They depend on the terminal's automaton only, not on the grammar around it, so all grammars of one
vocabulary share them.  Their memory is bounded: the least recently used forget what they know.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_lite.constrained.ir import ByteDFA
from sglang_lite.constrained.levels import ByteTrie, ClassTrie, Flags, json_classes
from sglang_lite.constrained.trie import Int32, Place, Trie

if TYPE_CHECKING:
    from sglang_lite.constrained.frames import Frame
    from sglang_lite.constrained.ir import Node
    from sglang_lite.constrained.terminals import TerminalTable

Row = NDArray[np.int32]
"""A packed set of token ids: bit ``i % 32`` of word ``i // 32``."""

SHORT = 48
"""Sets of more ids than this are packed rows; shorter ones are cheaper bit by bit."""

BUDGET_BYTES = 128 << 20
"""Memory for the tables of one vocabulary."""

TABLE_BYTES = 32 << 10
"""Rough memory of a table that knows a handful of states, without its scans."""


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
    """The trie of a vocabulary and, for each terminal in use, its scans.

    Terminals come from users without end, so their tables stay below ``budget_bytes``: beyond it
    the least recently used are emptied.  One that a grammar still holds fills again when used.
    """

    def __init__(self, trie: Trie, size: int, budget_bytes: int = BUDGET_BYTES) -> None:
        self.trie = trie
        self.size = size
        self.words = (size + 31) // 32
        self.budget_bytes = budget_bytes
        self.size_bytes = 0
        """Approximate memory of what the tables know."""
        self.layouts: dict[tuple[Node, ...], tuple[tuple[Frame, ...], ...]] = {}
        """The frames of objects' punctuation, see ``Pushdown.layout``."""
        self._lock = threading.Lock()
        self._terminals: weakref.WeakValueDictionary[ByteDFA, TerminalTable]
        self._terminals = weakref.WeakValueDictionary()
        # What each table takes, least recently used first; keeps those in use alive.
        self._weights: OrderedDict[TerminalTable, int] = OrderedDict()

    @cached_property
    def classes(self) -> ClassTrie:
        """The trie modulo the classes of bytes that most automata treat alike."""
        return ClassTrie(self.trie, self.size, json_classes())

    @cached_property
    def bytes(self) -> ByteTrie:
        """The byte trie as levels."""
        return ByteTrie(self.trie, self.size)

    def terminal(self, dfa: ByteDFA) -> TerminalTable:
        """The table of ``dfa``, now the most recently used."""
        from sglang_lite.constrained.terminals import TerminalTable

        with self._lock:
            found = self._terminals.get(dfa)
            if found is None:
                found = self._terminals[dfa] = TerminalTable(self, dfa)
            known = found in self._weights
        self.charge(found, 0 if known else TABLE_BYTES)
        return found

    def charge(self, table: TerminalTable, size: int) -> None:
        """``table`` takes ``size`` bytes more; others make room for it if need be."""
        with self._lock:
            self._weights[table] = self._weights.get(table, 0) + size
            self._weights.move_to_end(table)
            self.size_bytes += size
            while self.size_bytes > self.budget_bytes and self._weights:
                oldest, weight = self._weights.popitem(last=False)
                oldest.clear()
                self.size_bytes -= weight

    def weight(self, rows: Iterable[Row], tokens: tuple[int, ...] = ()) -> int:
        """Approximate memory in bytes of an entry with these rows and ids."""
        return 400 + 40 * len(tokens) + sum(row.nbytes for row in rows)

    def prepare(self) -> None:
        """Make the tables of JSON's own terminals now, not when a text first needs them."""
        from sglang_lite.constrained.json_string import json_char, json_key, json_string
        from sglang_lite.constrained.json_string import whitespace as gap

        for dfa in (json_string(), json_key(), gap(16)):
            table = self.terminal(dfa)
            table.scan(self.trie.root, dfa.start)
            table.scan(self.trie.root, dfa.body)
        table = self.terminal(json_string())
        table.endings(json_string().body)
        char = json_char()
        self.terminal(char).measure(self.trie.root, char.start, ord('"')).scan(0, None)

    def pack(self, tokens: Int32) -> Row:
        """The row with the bits of ``tokens``."""
        flags = np.zeros(self.words * 32, np.bool_)
        flags[tokens] = True
        return np.packbits(flags, bitorder="little").view(np.int32)

    def pack_flags(self, flags: Flags) -> Row:
        """The row of ``flags`` (bool[size])."""
        packed = np.zeros(self.words * 4, np.uint8)
        bits = np.packbits(flags, bitorder="little")
        packed[: len(bits)] = bits
        return packed.view(np.int32)

    def compact(self, tokens: Int32) -> tuple[tuple[Row, ...], tuple[int, ...]]:
        """``tokens`` as (rows, ids): a packed row if there are many, else the ids."""
        if len(tokens) > SHORT:
            return (self.pack(tokens),), ()
        return (), tuple(tokens.tolist())

    def without(self, scan: Scan, cut: Iterable[tuple[Place | None, tuple[int, ...]]]) -> Scan:
        """``scan`` less the tokens and the exit nodes of ``cut``."""
        tokens: set[int] = set()
        nodes: set[int] = set()
        for place, ids in cut:
            tokens.update(ids)
            if place is not None:
                nodes.update(place.nodes)
        rows = scan.rows
        if tokens and rows:
            rows = tuple([self._cleared(row, tokens) for row in rows])
        exits = scan.exits
        if nodes:
            kept = [(frames, self.trie.less(place, nodes)) for frames, place in exits]
            exits = tuple([(frames, place) for frames, place in kept if place is not None])
        return Scan(rows, tuple([t for t in scan.tokens if t not in tokens]), exits)

    def _cleared(self, row: Row, tokens: set[int]) -> Row:
        found = row.copy()
        view = memoryview(found).cast("B")
        for token in tokens:
            view[token >> 3] &= ~(1 << (token & 7))
        return found
