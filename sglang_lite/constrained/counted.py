"""Strings with a bound on their length: one automaton for a character, and a number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sglang_lite.constrained.cursors import Arc, Cursor
from sglang_lite.constrained.ir import Counted
from sglang_lite.constrained.tables import Row, Scan
from sglang_lite.constrained.terminals import TerminalTable
from sglang_lite.constrained.trie import Int32, Place, ranges

if TYPE_CHECKING:
    from sglang_lite.constrained.frames import Frame


class CountedLeaf:
    """The part of a :class:`Counted` node after ``open``: its cursors, made on demand."""

    def __init__(self, node: Counted, table: TerminalTable, after_close: tuple[Frame, ...]) -> None:
        """``after_close`` matches the bytes of ``node.close`` after the first."""
        self.minimum, self.maximum = node.minimum, node.maximum
        self.close = node.close[0] if node.close else -1
        self.after_close = after_close
        self.table = table
        self._cursors: dict[tuple[int, int], CountedCursor] = {}

    def cursor(self, count: int, state: int) -> CountedCursor:
        """The cursor after ``count`` characters, in ``state`` of the next one."""
        if self.maximum is None:
            count = min(count, self.minimum)
        key = (count, state)
        found = self._cursors.get(key)
        if found is None:
            found = self._cursors.setdefault(key, CountedCursor(self, count, state))
        return found

    @property
    def start(self) -> CountedCursor:
        """The cursor before the first character."""
        return self.cursor(0, self.table.dfa.start)


class CountedCursor(Cursor):
    """After ``count`` whole characters, in ``state`` of the automaton of the next one."""

    __slots__ = ("_arcs", "count", "leaf", "nullable", "state")

    def __init__(self, leaf: CountedLeaf, count: int, state: int) -> None:
        super().__init__()
        self.leaf, self.count, self.state = leaf, count, state
        at_boundary = state == leaf.table.dfa.start
        self.nullable = leaf.close < 0 and at_boundary and count >= leaf.minimum
        self._arcs: dict[int, tuple[Arc, ...]] = {}

    def step(self, byte: int) -> tuple[Arc, ...]:
        found = self._arcs.get(byte)
        if found is None:
            found = self._arcs[byte] = self._step(byte)
        return found

    def _step(self, byte: int) -> tuple[Arc, ...]:
        leaf, dfa = self.leaf, self.leaf.table.dfa
        if self.state == dfa.start:
            if byte == leaf.close:
                return ((None, leaf.after_close),) if self.count >= leaf.minimum else ()
            if leaf.maximum is not None and self.count >= leaf.maximum:
                return ()
        target = dfa.step(self.state, byte)
        if target < 0:
            return ()
        if dfa.accepts(target):
            return ((leaf.cursor(self.count + 1, dfa.start), ()),)
        return ((leaf.cursor(self.count, target), ()),)

    def _scan(self, place: Place) -> Scan:
        leaf = self.leaf
        need = max(leaf.minimum - self.count, 0)
        room = None if leaf.maximum is None else leaf.maximum - self.count
        rows, tokens, after = leaf.table.measure(place, self.state, leaf.close).scan(need, room)
        return Scan(rows, tokens, ((leaf.after_close, after),) if after else ())


class Measure:
    """The tokens below a place, read as characters of one automaton, with how many they hold.

    ``inside``: nodes whose text ends among the characters, and the room that they need (a begun
    character counts); ``exits``: nodes after the closing byte, and the characters before it.
    Without a closing byte every end of a character is an exit.
    """

    def __init__(self, table: TerminalTable, place: Place, state: int, close: int) -> None:
        self.table = table
        inside, room, exits, chars = _measure(table, place, state, close)
        trie = table.tables.trie
        count = trie.token_start[inside + 1] - trie.token_start[inside]
        room = np.repeat(room, count)
        order = np.argsort(room, kind="stable")
        self._tokens = trie.tokens_at(inside)[order]
        self._room = room[order]
        order = np.argsort(chars, kind="stable")
        self._exits, self._chars = exits[order], chars[order]
        self._most = int(max(room.max(initial=0), chars.max(initial=0)))
        self._scans: dict[tuple[int, int], tuple[tuple[Row, ...], tuple[int, ...], Place | None]]
        self._scans = {}
        self._insides: dict[int, tuple[tuple[Row, ...], tuple[int, ...]]] = {}

    def scan(
        self, need: int, room: int | None
    ) -> tuple[tuple[Row, ...], tuple[int, ...], Place | None]:
        """(rows, ids, place after the close) with ``need`` to ``room`` characters still to come."""
        room = self._most if room is None else min(room, self._most)
        key = (min(need, self._most + 1), room)
        found = self._scans.get(key)
        if found is None:
            found = self._scans.setdefault(key, self._scan(*key))
        return found

    def _scan(self, need: int, room: int) -> tuple[tuple[Row, ...], tuple[int, ...], Place | None]:
        trie, tables = self.table.tables.trie, self.table.tables
        inside = self._insides.get(room)
        if inside is None:
            end = int(np.searchsorted(self._room, room, "right"))
            inside = self._insides.setdefault(room, tables.compact(self._tokens[:end]))
        start = int(np.searchsorted(self._chars, need, "left"))
        end = int(np.searchsorted(self._chars, room, "right"))
        if start >= end:
            return (*inside, None)
        nodes = self._exits[start:end]
        rows, tokens = tables.compact(trie.tokens_at(nodes))
        return inside[0] + rows, inside[1] + tokens, trie.place(np.sort(nodes))


def _measure(
    table: TerminalTable, place: Place, state: int, close: int
) -> tuple[Int32, Int32, Int32, Int32]:
    """(inside nodes, the room they need, exit nodes, the characters before them)."""
    trie, start = table.tables.trie, table.dfa.start
    nodes = np.asarray(place.nodes, np.int32)
    states = np.full(len(nodes), state, np.int32)
    chars = np.zeros(len(nodes), np.int32)
    none = np.zeros(0, np.int32)
    inside, room, exits, before = [none], [none], [none], [none]
    while len(nodes):
        first = trie.child_start[nodes]
        count = trie.child_end[nodes] - first
        kids, states, chars = (
            ranges(first, count),
            np.repeat(states, count),
            np.repeat(chars, count),
        )
        closed = (trie.byte[kids] == close) & (states == start)
        if close >= 0 and closed.any():
            exits.append(kids[closed])
            before.append(chars[closed])
        reached, accepting = table.targets(states, trie.byte[kids])
        live = (reached >= 0) & ~closed
        nodes, chars = kids[live], chars[live] + accepting[live]
        states = np.where(accepting, start, reached)[live].astype(np.int32)
        inside.append(nodes)
        room.append(chars + (states != start))
        if close < 0:
            ended = states == start
            exits.append(nodes[ended])
            before.append(chars[ended])
    joined = [np.concatenate(part).astype(np.int32) for part in (inside, room, exits, before)]
    return joined[0], joined[1], joined[2], joined[3]
