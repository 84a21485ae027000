"""Walks of one byte DFA over the tries of a vocabulary: which nodes its states lead to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_lite.constrained import budget
from sglang_lite.constrained.ir import ByteDFA
from sglang_lite.constrained.levels import DEAD, ByteTrie, ClassTrie, Flags
from sglang_lite.constrained.moves import SPLIT, ByteMoves, ClassMoves
from sglang_lite.constrained.trie import Int32, Place, ranges

if TYPE_CHECKING:
    from sglang_lite.constrained.tables import Row, Tables

MANY_SPLIT = 2000
"""With more nodes below split classes than this the byte trie is swept as a whole."""

FEW_NODES = 120
"""The walk node by node gives up after so many."""

FEW_HELD = 4000
"""Nodes whose ids are gathered one by one; for more, every id asks for its node."""

MANY_STATES, FEW_ACCEPTING = 4000, 8
"""More states than this are compared with each of so few accepting ones, not looked up."""

NONE = np.zeros(0, np.int32)


class Reach(NamedTuple):
    """Insides as rows and ids, and the byte trie's nodes at which the automaton accepts."""

    rows: tuple[Row, ...]
    tokens: tuple[int, ...]
    exits: Int32


class Walks:
    """What is known of the automaton as arrays, and the ways to read tokens with it."""

    def __init__(self, tables: Tables, dfa: ByteDFA) -> None:
        self.tables = tables
        self.dfa = dfa
        self.by_byte = ByteMoves(dfa)
        self._by_class: ClassMoves | None = None
        self._live: dict[int, tuple[tuple[int, int, bool], ...]] = {}

    @property
    def size_bytes(self) -> int:
        """Memory of the arrays."""
        classes = self._by_class
        return self.by_byte.size_bytes + (classes.size_bytes if classes else 0)

    def node_by_node(self, place: Place, state: int) -> Reach | None:
        """The tokens below ``place`` read from ``state``; None if there are too many nodes."""
        if len(place.nodes) > FEW_NODES:
            return None
        trie, ways = self.tables.trie, self._live_bytes
        inside: list[int] = []
        exits: list[int] = []
        work = [(int(node), state) for node in place.nodes]
        find, first, last = trie.bytes.find, trie.first_child, trie.last_child
        while work:
            if len(inside) + len(exits) + len(work) > FEW_NODES:
                return None
            node, at = work.pop()
            start, end = first[node], last[node]
            if start < end:
                try:
                    following = ways(at)
                except budget.OutOfWork:
                    break
                for byte, target, accepts in following:
                    child = find(byte, start, end)
                    if child >= 0:
                        (exits if accepts else inside).append(child)
                        work.append((child, target))
        return self._reached(np.array(inside, np.int32), np.array(exits, np.int32))

    def _live_bytes(self, state: int) -> tuple[tuple[int, int, bool], ...]:
        """(byte, target, whether it accepts) for the bytes that ``state`` does not refuse."""
        found = self._live.get(state)
        if found is None:
            dfa, row = self.dfa, self.dfa.row(state)
            accepts = {target: dfa.accepts(target) for target in set(row) if target >= 0}
            found = self._live[state] = tuple(
                [(byte, t, accepts[t]) for byte, t in enumerate(row) if t >= 0]
            )
        return found

    def _reached(self, inside: Int32, exits: Int32) -> Reach:
        return Reach(*self.tables.compact(self.tables.trie.tokens_at(inside)), exits)

    def one_byte(self, place: Place, row: Sequence[int]) -> Reach:
        """The tokens of one byte below ``place``, and its exits, of a state with this ``row``."""
        trie, accepts = self.tables.trie, self.dfa.accepts
        children = trie.children(np.asarray(place.nodes, np.int32))
        targets = np.array(row, np.int32)[trie.byte[children]]
        ended = [accepts(target) if target >= 0 else False for target in targets.tolist()]
        exits = children[ended]
        return self._reached(children[(targets >= 0) & ~np.array(ended, np.bool_)], exits)

    def level_by_level(self, nodes: Int32, states: Int32) -> Reach:
        """The same below ``nodes``, each read from its own of ``states``."""
        trie = self.tables.trie
        inside, exits = [NONE], [NONE]
        while len(nodes):
            start = trie.child_start[nodes]
            count = trie.child_end[nodes] - start
            kids = ranges(start, count)
            try:
                reached, done = self.targets(np.repeat(states, count), trie.byte[kids])
            except budget.OutOfWork:
                break
            live = reached >= 0
            nodes, states, done = kids[live], reached[live], done[live]
            exits.append(nodes[done])
            inside.append(nodes[~done])
        return self._reached(np.concatenate(inside), np.concatenate(exits))

    def from_root(self, state: int) -> Reach:
        """All tokens, over the class trie."""
        classes = self.tables.classes
        states = self.swept(classes, state)
        split = np.flatnonzero(states == SPLIT).astype(np.int32)
        if not len(split):
            return self._gather(classes, states)
        nodes, index = classes.members(split)
        if len(nodes) > MANY_SPLIT:
            return self._gather(self.tables.bytes, self.swept(self.tables.bytes, state))
        before = states[classes.levels.parent[split]]
        reached, done = self.targets(before[index], self.tables.trie.byte[nodes])
        live = reached >= 0
        nodes, reached, done = nodes[live], reached[live], done[live]
        above, below = self._gather(classes, states), self.level_by_level(nodes, reached)
        own = self._reached(nodes[~done], nodes[done])
        return Reach(
            above.rows + below.rows + own.rows,
            above.tokens + below.tokens + own.tokens,
            np.concatenate([above.exits, below.exits, own.exits]),
        )

    def swept(self, trie: ClassTrie | ByteTrie, state: int) -> Int32:
        """The state at each node of ``trie`` on the way from ``state`` at the root."""
        states = np.full(trie.count, DEAD, np.int32)
        states[0] = state
        if isinstance(trie, ByteTrie):
            trie.levels.sweep(states, self.by_byte)
        else:
            trie.levels.sweep(states, self._class_moves())
        return states

    def divides(self, state: int) -> bool:
        """True where ``state`` tells the bytes of some class apart."""
        return self._class_moves().divides(state)

    def _class_moves(self) -> ClassMoves:
        if self._by_class is None:
            self._by_class = ClassMoves(self.by_byte, self.tables.classes)
        return self._by_class

    def _gather(self, trie: ClassTrie | ByteTrie, states: Int32) -> Reach:
        ended = self.accepting(states)
        inside = np.append((states >= 0) & ~ended, False)
        inside[0] = ended[0] = False  # the root is where tokens begin; none ends there
        exits = trie.members(np.flatnonzero(ended).astype(np.int32))[0]
        if np.count_nonzero(inside) < FEW_HELD:
            nodes = np.flatnonzero(inside).astype(np.int32)
            if trie.held(nodes) < FEW_HELD:
                return self._reached(trie.members(nodes)[0], exits)
        return Reach((self.tables.pack_flags(inside.take(trie.node_of_id)),), (), exits)

    def targets(self, states: Int32, bytes_: NDArray[np.uint8]) -> tuple[Int32, Flags]:
        """For each (state, byte) the state it leads to (-1 = refused) and whether that accepts."""
        moves = self.by_byte
        moves.fetch(states)
        reached = moves.flat()[states * 256 + bytes_]
        return reached, self.accepting(reached)

    def accepting(self, states: Int32) -> Flags:
        """Which of ``states`` (-1 = none) accept."""
        moves = self.by_byte
        top = int(states.max(initial=DEAD))
        moves.flag(top)
        if len(states) > MANY_STATES:
            accepting = np.flatnonzero(moves.accepts[: top + 1])
            if len(accepting) <= FEW_ACCEPTING:
                found = np.zeros(len(states), np.bool_)
                for state in accepting.tolist():
                    found |= states == state
                return found
        return moves.accepts[states]
