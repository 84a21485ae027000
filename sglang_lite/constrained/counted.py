"""Strings with a bound on their length: one automaton for a character, and a number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sglang_lite.constrained.cursors import Arc, Cursor
from sglang_lite.constrained.ir import ByteDFA, Counted
from sglang_lite.constrained.tables import SHORT, Row, Scan
from sglang_lite.constrained.terminals import TerminalTable
from sglang_lite.constrained.trie import Int32, Place, distinct, ranges

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

    The *room* of a token is what it needs if it ends among the characters (a begun one counts).  An
    exit is a node after the closing byte, with the characters before it.  Without a closing byte
    every end of a character is an exit.
    """

    def __init__(self, table: TerminalTable, place: Place, state: int, close: int) -> None:
        self.table, self.tables = table, table.tables
        measured = _from_root if place is self.tables.trie.root else _below
        self._room, exits, chars = measured(table, place, state, close)
        order = np.argsort(chars, kind="stable")
        self._exits, self._chars = exits[order], chars[order]
        inside = self._room[self._room < OUTSIDE]
        self._most = int(max(inside.max(initial=0), chars.max(initial=0)))
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
            self.table.charge(self.tables.weight(found[0], found[1]))
        return found

    @property
    def size_bytes(self) -> int:
        """Approximate memory, without the scans."""
        return self._room.nbytes + self._exits.nbytes + self._chars.nbytes

    def _scan(self, need: int, room: int) -> tuple[tuple[Row, ...], tuple[int, ...], Place | None]:
        trie, tables = self.tables.trie, self.tables
        inside = self._insides.get(room)
        if inside is None:
            flags = self._room <= room
            if np.count_nonzero(flags) > SHORT:
                inside = (tables.pack_flags(flags),), ()
            else:
                inside = (), tuple(np.flatnonzero(flags).tolist())
            self._insides[room] = inside
        start = int(np.searchsorted(self._chars, need, "left"))
        end = int(np.searchsorted(self._chars, room, "right"))
        if start >= end:
            return (*inside, None)
        nodes = distinct(self._exits[start:end])
        rows, tokens = tables.compact(trie.tokens_at(nodes))
        return inside[0] + rows, inside[1] + tokens, trie.place(nodes)


Measured = tuple[Int32, Int32, Int32]
"""The room of every token id (OUTSIDE = not inside), exit nodes, the characters before them."""

OUTSIDE = 1 << 30


class LoopDFA(ByteDFA):
    """Any number of characters of a prefix-free automaton; its states are the other's."""

    def __init__(self, char: ByteDFA) -> None:
        self.char = char
        self.start = char.start

    def step(self, state: int, byte: int) -> int:
        """The state after ``byte``, or -1."""
        target = self.char.step(state, byte)
        return self.start if target >= 0 and self.char.accepts(target) else target

    def row(self, state: int) -> list[int]:
        """The 256 targets of ``state``; -1 is a refusal."""
        accepts, start = self.char.accepts, self.start
        row = self.char.row(state)
        ends = {target for target in set(row) if target >= 0 and accepts(target)}
        return [start if target in ends else target for target in row]

    def accepts(self, state: int) -> bool:
        """Never: where the characters end is not for this automaton to say."""
        return False


def _from_root(table: TerminalTable, place: Place, state: int, close: int) -> Measured:
    """Over the class trie, or the byte trie if the automaton tells bytes of a class apart."""
    loop, trie = table.loop(), table.tables.trie
    start = loop.dfa.start
    profile = loop.profile(state, lambda at: at == start)
    room_at = np.where(profile.states >= 0, profile.chars + ~profile.boundary, OUTSIDE)
    room_at = np.append(room_at, OUTSIDE).astype(np.int32)
    room = room_at.take(profile.trie.node_of_id)
    boundary, chars = profile.boundary, profile.chars
    if close < 0:
        exits, index = profile.trie.members(np.flatnonzero(boundary).astype(np.int32))
        return room, exits, chars[boundary][index]
    # Nodes of the closing byte; it may share its class with others, so the byte trie's own.
    exits = np.flatnonzero(trie.byte == close).astype(np.int32)
    exits = exits[exits > 0]
    above = profile.trie.node_of_member[trie.parent[exits]]
    closing = boundary[above] | ((above == 0) & (state == start))
    return room, exits[closing], chars[above[closing]]


def _below(table: TerminalTable, place: Place, state: int, close: int) -> Measured:
    """Level by level over the nodes that are reached."""
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
        reached, accepting = table.walks.targets(states, trie.byte[kids])
        live = (reached >= 0) & ~closed
        nodes, chars = kids[live], chars[live] + accepting[live]
        states = np.where(accepting, start, reached)[live].astype(np.int32)
        inside.append(nodes)
        room.append(chars + (states != start))
        if close < 0:
            ended = states == start
            exits.append(nodes[ended])
            before.append(chars[ended])
    nodes, rooms = np.concatenate(inside), np.concatenate(room)
    # A node below several of the place's is met several times: what needs least is written last.
    order = np.argsort(-rooms, kind="stable")
    nodes, rooms = nodes[order], rooms[order]
    room_of_id = np.full(table.tables.size, OUTSIDE, np.int32)
    held = trie.token_start[nodes + 1] - trie.token_start[nodes]
    room_of_id[trie.tokens_at(nodes)] = np.repeat(rooms, held)
    return (
        room_of_id,
        np.concatenate(exits).astype(np.int32),
        np.concatenate(before).astype(np.int32),
    )
