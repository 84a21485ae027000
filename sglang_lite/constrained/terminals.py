"""The token table of one terminal: what the tokens do that are read from a state of its DFA.

A token is *inside* if its bytes keep the automaton alive and it ends in a state that does not
accept; an *exit* is a place where the automaton has accepted.  Three ways to find them, all exact:

* few ways to go on: a walk over the byte trie, node by node;
* from the root: a sweep over the class trie, with the byte trie below the nodes where the
  automaton does tell the bytes of a class apart;
* where the automaton cannot refuse any text yet (``ByteDFA.like``): the insides are those of the
  plain string, and only the tokens that end the string are looked at.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_lite.constrained.ir import ByteDFA
from sglang_lite.constrained.levels import DEAD, Flags, Levels, levels_of
from sglang_lite.constrained.tables import Row, Scan
from sglang_lite.constrained.trie import Int32, Place, ranges

if TYPE_CHECKING:
    from sglang_lite.constrained.counted import Measure
    from sglang_lite.constrained.tables import Tables

SPLIT = -2
"""In the class table: the automaton tells the bytes of this class apart."""

FEW_BYTES = 6
FEW_NODES = 120
"""The walk node by node begins where at most so many bytes go on, and gives up after so many."""

NONE = np.zeros(0, np.int32)


class Reach(NamedTuple):
    """Insides as rows and ids, and the byte trie's nodes at which the automaton accepts."""

    rows: tuple[Row, ...]
    tokens: tuple[int, ...]
    exits: Int32


class TerminalTable:
    """The scans of one byte DFA, by place and state."""

    def __init__(self, tables: Tables, dfa: ByteDFA) -> None:
        self.tables = tables
        self.dfa = dfa
        self._lock = threading.Lock()
        self._scans: dict[tuple[Place, int], Scan] = {}
        self._reaches: dict[tuple[Place, int], Reach] = {}
        self._measures: dict[tuple[Place, int, int], Measure] = {}
        self._endings: dict[int, tuple[Levels, Int32]] = {}
        # Two more rows than states, so that the targets of -1 and -2 are -1.
        self._targets = np.full((10, 256), DEAD, np.int32)
        self._class_targets: Int32 | None = None
        self._accepts = np.zeros(10, np.bool_)
        self._known = np.ones(10, np.bool_)
        self._known[:8] = False
        self._flagged = 0

    def scan(self, place: Place, state: int) -> Scan:
        """The tokens below ``place`` read from ``state``; memoised."""
        key = (place, state)
        found = self._scans.get(key)
        if found is None:
            found = self._scans.setdefault(key, self._scan(place, state))
        return found

    def measure(self, place: Place, state: int, close: int) -> Measure:
        """The tokens below ``place`` as counted characters of this automaton; memoised."""
        key = (place, state, close)
        found = self._measures.get(key)
        if found is None:
            from sglang_lite.constrained.counted import Measure

            found = self._measures.setdefault(key, Measure(self, place, state, close))
        return found

    def _scan(self, place: Place, state: int) -> Scan:
        rows, tokens, exits = self.reach(place, state)
        if not len(exits):
            return Scan(rows, tokens, ())
        trie = self.tables.trie
        more_rows, more_tokens = self.tables.compact(trie.tokens_at(exits))
        after = trie.place(np.unique(exits))
        return Scan(rows + more_rows, tokens + more_tokens, (((), after),) if after else ())

    # -- reach -----------------------------------------------------------------------------------

    def reach(self, place: Place, state: int) -> Reach:
        """Insides and exits of the tokens below ``place`` read from ``state``; memoised."""
        key = (place, state)
        found = self._reaches.get(key)
        if found is None:
            found = self._reaches.setdefault(key, self._reach(place, state))
        return found

    def _reach(self, place: Place, state: int) -> Reach:
        row = self.dfa.row(state)
        with self._lock:
            self._flag(state)
        if 256 - row.count(DEAD) <= FEW_BYTES:
            found = self._walk(place, state)
            if found is not None:
                return found
        if place is self.tables.trie.root:
            like = self.dfa.like(state)
            if like is not None:
                return self._like(state, self.tables.terminal(like[0]), like[1])
            return self._sweep(state)
        nodes = np.asarray(place.nodes, np.int32)
        return self._frontier(nodes, np.full(len(nodes), state, np.int32))

    def _walk(self, place: Place, state: int) -> Reach | None:
        """Node by node; None if there are too many."""
        trie, rows = self.tables.trie, self.dfa.row
        inside: list[int] = []
        exits: list[int] = []
        work = [(int(node), state) for node in place.nodes]
        text, first, last = trie.bytes, trie.first_child, trie.last_child
        while work:
            if len(inside) + len(exits) + len(work) > FEW_NODES:
                return None
            node, at = work.pop()
            start, end = first[node], last[node]
            row = rows(at)
            for child in range(start, end):
                target = row[text[child]]
                if target >= 0:
                    (exits if self.dfa.accepts(target) else inside).append(child)
                    work.append((child, target))
        return self._reached(np.array(inside, np.int32), np.array(exits, np.int32))

    def _reached(self, inside: Int32, exits: Int32) -> Reach:
        return Reach(*self.tables.compact(self.tables.trie.tokens_at(inside)), exits)

    def _frontier(self, nodes: Int32, states: Int32) -> Reach:
        """Level by level over the nodes that are reached."""
        trie = self.tables.trie
        inside, exits = [NONE], [NONE]
        while len(nodes):
            start = trie.child_start[nodes]
            count = trie.child_end[nodes] - start
            kids = ranges(start, count)
            reached, done = self.targets(np.repeat(states, count), trie.byte[kids])
            live = reached >= 0
            nodes, states, done = kids[live], reached[live], done[live]
            exits.append(nodes[done])
            inside.append(nodes[~done])
        return self._reached(np.concatenate(inside), np.concatenate(exits))

    def _sweep(self, state: int) -> Reach:
        """From the root over the class trie."""
        classes = self.tables.classes
        states = np.full(classes.count + 1, DEAD, np.int32)
        states[0] = state
        classes.levels.sweep(states[:-1], self._class_step)
        split = np.flatnonzero(states == SPLIT).astype(np.int32)
        states[0] = DEAD
        accepts = self._accepts[states] & (states >= 0)
        inside = (states >= 0) & ~accepts
        rows: tuple[Row, ...] = (self.tables.pack_flags(inside[classes.node_of_id]),)
        exits = classes.members(np.flatnonzero(accepts).astype(np.int32))[0]
        tokens: tuple[int, ...] = ()
        if len(split):
            below = self._below_split(split, states, state)
            rows, tokens, exits = (
                rows + below.rows,
                below.tokens,
                np.concatenate([exits, below.exits]),
            )
        return Reach(rows, tokens, exits)

    def _below_split(self, split: Int32, states: Int32, root: int) -> Reach:
        """The byte trie below the class nodes ``split``, whose parents' states are known."""
        trie, classes = self.tables.trie, self.tables.classes
        parents = classes.levels.parent[split]
        before = np.where(parents == 0, root, states[parents]).astype(np.int32)
        nodes, index = classes.members(split)
        reached, done = self.targets(before[index], trie.byte[nodes])
        live = reached >= 0
        nodes, reached, done = nodes[live], reached[live], done[live]
        if len(nodes) > FEW_NODES:
            full = np.full(len(trie.byte), DEAD, np.int32)
            full[nodes] = reached
            levels_of(trie).sweep(full, self._step, seeded=True)
            accepts = self._accepts[full] & (full >= 0)
            inside = np.flatnonzero((full >= 0) & ~accepts).astype(np.int32)
            return self._reached(inside, np.flatnonzero(accepts).astype(np.int32))
        rows, tokens, exits = self._frontier(nodes, reached)
        own = self.tables.compact(trie.tokens_at(nodes[~done]))
        return Reach(rows + own[0], tokens + own[1], np.concatenate([exits, nodes[done]]))

    def _like(self, state: int, plain: TerminalTable, body: int) -> Reach:
        """The insides of the plain string; of its exits, those that this automaton accepts."""
        rows, tokens, _ = plain.reach(self.tables.trie.root, body)
        levels, nodes = plain.endings(body)
        states = np.full(len(nodes), DEAD, np.int32)
        states[0] = state
        levels.sweep(states, self._step)
        accepts = self._accepts[states] & (states >= 0)
        return Reach(rows, tokens, nodes[accepts])

    def endings(self, state: int) -> tuple[Levels, Int32]:
        """The part of the trie that leads from the root, read from ``state``, to an exit.

        As levels, and for each of its nodes the one of the byte trie.
        """
        found = self._endings.get(state)
        if found is None:
            trie = self.tables.trie
            marked = np.zeros(len(trie.byte), np.bool_)
            nodes = self.reach(trie.root, state).exits
            while len(nodes):
                marked[nodes] = True
                nodes = np.unique(trie.parent[nodes])
                nodes = nodes[~marked[nodes]]
            marked[0] = True
            kept = np.flatnonzero(marked).astype(np.int32)
            bounds = np.searchsorted(kept, trie.bounds).tolist()
            depth = next((i for i, b in enumerate(bounds) if b == len(kept)), len(bounds) - 1)
            parent = np.searchsorted(kept, trie.parent[kept]).astype(np.int32)
            levels = Levels(bounds[: depth + 1], parent, trie.byte[kept])
            found = self._endings.setdefault(state, (levels, kept))
        return found

    # -- the automaton as arrays -----------------------------------------------------------------

    def targets(self, states: Int32, bytes_: NDArray[np.uint8]) -> tuple[Int32, Flags]:
        """For each (state, byte) the state it leads to (-1 = refused) and whether that accepts."""
        reached = self._step(states, bytes_)
        return reached, self._accepts[reached] & (reached >= 0)

    def _step(self, states: Int32, bytes_: NDArray[np.uint8]) -> Int32:
        with self._lock:
            self._fetch(states)
            return self._targets[states, bytes_]

    def _class_step(self, states: Int32, classes: NDArray[np.uint8]) -> Int32:
        """As :meth:`_step` for classes of bytes; SPLIT where these part."""
        with self._lock:
            self._fetch(states)
            if self._class_targets is None:
                self._class_targets = self._classified(self._targets)
            return self._class_targets[states, classes]

    def _classified(self, targets: Int32) -> Int32:
        classes = self.tables.classes
        found = targets[:, classes.samples]
        # One wrong byte spoils its class.
        rows, bytes_ = np.nonzero(found[:, classes.classes] != targets)
        found[rows, classes.classes[bytes_]] = SPLIT
        return found

    def _fetch(self, states: Int32) -> None:
        """Ask the automaton for the rows of ``states`` that were not used before."""
        known = self._known[states]
        if known.all():
            return
        found = np.unique(states[~known])
        for state in found.tolist():
            row = self.dfa.row(state)
            # Makes room for the targets first, so that a state in an array has a row in them.
            self._flag(max(row))
            self._targets[state] = row
            self._known[state] = True
        if self._class_targets is not None:
            self._class_targets[found] = self._classified(self._targets[found])

    def _flag(self, top: int) -> None:
        """Make room for the states up to ``top`` and ask which of them accept."""
        if top < self._flagged:
            return
        size = len(self._accepts)
        if top + 2 >= size:
            more = max(size, top + 3 - size)
            dead = np.full((more, 256), DEAD, np.int32)
            self._targets = np.concatenate([self._targets, dead])
            self._class_targets = None
            self._accepts = np.concatenate([self._accepts, np.zeros(more, np.bool_)])
            self._known = np.concatenate([self._known[:-2], np.zeros(more, np.bool_), [True, True]])
        for state in range(self._flagged, top + 1):
            self._accepts[state] = self.dfa.accepts(state)
        self._flagged = top + 1
