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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sglang_lite.constrained import budget
from sglang_lite.constrained.cursors import TerminalCursor
from sglang_lite.constrained.ir import Bound, ByteDFA
from sglang_lite.constrained.levels import DEAD, ByteTrie, ClassTrie, Flags, Levels
from sglang_lite.constrained.moves import SPLIT, ByteMoves, ClassMoves
from sglang_lite.constrained.profiles import Profile, Reach
from sglang_lite.constrained.tables import Scan
from sglang_lite.constrained.trie import Int32, Place, distinct, ranges

if TYPE_CHECKING:
    from sglang_lite.constrained.counted import Measure
    from sglang_lite.constrained.tables import Tables

MANY_SPLIT = 2000
"""With more nodes below split classes than this the byte trie is swept as a whole."""

FEW_BYTES = 6
FEW_NODES = 120
"""The walk node by node begins where at most so many bytes go on, and gives up after so many."""

FEW_HELD = 4000
"""Nodes whose ids are gathered one by one; for more, every id asks for its node."""

MANY_STATES, FEW_ACCEPTING = 4000, 8
"""More states than this are compared with each of so few accepting ones, not looked up."""

CURSOR_BYTES = 700
"""Rough memory of a cursor and what it remembers of its steps."""

LAST_WALKED = 4
"""So many profiles are compared with a new state before it is walked, too."""

NONE = np.zeros(0, np.int32)


class TerminalTable:
    """The scans of one byte DFA, by place and state."""

    def __init__(self, tables: Tables, dfa: ByteDFA) -> None:
        self.tables = tables
        self.dfa = dfa
        self._lock = threading.Lock()
        self._longest = len(tables.trie.bounds)  # no token has so many bytes
        self._scans: dict[int, dict[Place, Scan]] = {}
        self._cursors: dict[int, TerminalCursor] = {}
        self._reaches: dict[tuple[Place, int], Reach] = {}
        self._measures: dict[tuple[Place, int, int], Measure] = {}
        self._loop: TerminalTable | None = None
        self._profiles: dict[int, Profile] = {}
        self._walked: tuple[Profile, ...] = ()
        self._live: dict[int, tuple[tuple[int, int, bool], ...]] = {}
        self._endings: dict[int, tuple[Levels, Int32]] = {}
        self.by_byte = ByteMoves(dfa)
        self._by_class: ClassMoves | None = None
        self._charged = 0

    def cursor(self, state: int) -> TerminalCursor:
        """The cursor in ``state``, or in the state of another DFA that it is an alias of."""
        found = self._cursors.get(state)
        if found is None:
            alias = self.dfa.alias(state)
            if alias is not None:
                found = self.tables.terminal(alias[0]).cursor(alias[1])
            else:
                found = TerminalCursor(self, state)
                self.tables.charge(self, CURSOR_BYTES)
            found = self._cursors.setdefault(state, found)
        return found

    def scans(self, state: int) -> dict[Place, Scan]:
        """What is known of ``state``, by place."""
        found = self._scans.get(state)
        return self._scans.setdefault(state, {}) if found is None else found

    def scan(self, place: Place, state: int) -> Scan:
        """The tokens below ``place`` read from ``state``; memoised."""
        known = self.scans(state)
        found = known.get(place)
        if found is None:
            near = self.dfa.near(state, self.tables.trie.longest)
            if near != state:
                return known.setdefault(place, self.scan(place, near))
            found = known.setdefault(place, self._scan(place, state))
            self.charge(self.tables.weight(found.rows, found.tokens))
        return found

    def charge(self, size: int) -> None:
        """This table takes ``size`` bytes more, and what its arrays have grown."""
        classes = self._by_class
        arrays = self.by_byte.size_bytes + (classes.size_bytes if classes else 0)
        grown, self._charged = arrays - self._charged, arrays
        self.tables.charge(self, size + grown)

    def clear(self) -> None:
        """Forget what was found so far, to give its memory back; any thread may go on using it.

        Cursors stay: the grammars that hold them tell their states apart by them.
        """
        for scans in list(self._scans.values()):
            scans.clear()
        for memo in (self._reaches, self._measures, self._profiles, self._endings):
            memo.clear()
        self._live.clear()
        self._walked = ()
        # Whoever is reading the arrays has them at hand.
        self.by_byte, self._by_class, self._charged = ByteMoves(self.dfa), None, 0

    def measure(self, place: Place, state: int, close: int) -> Measure:
        """The tokens below ``place`` as counted characters of this automaton; memoised."""
        key = (place, state, close)
        found = self._measures.get(key)
        if found is None:
            from sglang_lite.constrained.counted import Measure

            found = self._measures.setdefault(key, Measure(self, place, state, close))
            self.charge(found.size_bytes)
        return found

    def loop(self) -> TerminalTable:
        """The table of any number of texts of this automaton, one after another."""
        if self._loop is None:
            from sglang_lite.constrained.counted import LoopDFA

            self._loop = TerminalTable(self.tables, LoopDFA(self.dfa))
        return self._loop

    def _scan(self, place: Place, state: int) -> Scan:
        rows, tokens, exits = self.reach(place, state)
        if not len(exits):
            return Scan(rows, tokens, ())
        trie = self.tables.trie
        more_rows, more_tokens = self.tables.compact(trie.tokens_at(exits))
        after = trie.place(distinct(exits))
        return Scan(rows + more_rows, tokens + more_tokens, (((), after),) if after else ())

    # -- reach -----------------------------------------------------------------------------------

    def reach(self, place: Place, state: int) -> Reach:
        """Insides and exits of the tokens below ``place`` read from ``state``; memoised."""
        key = (place, self.dfa.near(state, self._longest))
        found = self._reaches.get(key)
        if found is None:
            found = self._reaches.setdefault(key, self._reach(*key))
            self.charge(self.tables.weight((*found.rows, found.exits), found.tokens))
        return found

    def _reach(self, place: Place, state: int) -> Reach:
        row = self.dfa.row(state)
        self.by_byte.flag(state)
        with budget.cut_short():
            return self._reach_on(place, state, row)

    def _reach_on(self, place: Place, state: int, row: Sequence[int]) -> Reach:
        """By the way that is cheapest.

        Where the work of the mask is used up, longer tokens are left out: their bytes are still
        allowed one by one, so no text is lost.
        """
        if place is not self.tables.trie.root or 256 - row.count(DEAD) <= FEW_BYTES:
            found = self._walk(place, state)
            if found is not None:
                return found
        if place is self.tables.trie.root:
            like = self.dfa.like(state)
            if like is not None:
                return self._like(state, self.tables.terminal(like[0]), like[1])
            bound = self.dfa.bound(state)
            if bound is not None:
                return self._bounded(bound)
            return self._sweep(state)
        nodes = np.asarray(place.nodes, np.int32)
        return self._frontier(nodes, np.full(len(nodes), state, np.int32))

    def _walk(self, place: Place, state: int) -> Reach | None:
        """Node by node; None if there are too many."""
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

    def _frontier(self, nodes: Int32, states: Int32) -> Reach:
        """Level by level over the nodes that are reached."""
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

    def _sweep(self, state: int) -> Reach:
        """From the root over the class trie."""
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
        above, below = self._gather(classes, states), self._frontier(nodes, reached)
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
        moves = self._by_class  # another thread may empty the table
        if moves is None:
            moves = self._by_class = ClassMoves(self.by_byte, self.tables.classes)
        return moves

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

    def _like(self, state: int, plain: TerminalTable, body: int) -> Reach:
        """The insides of the plain string; of its exits, those that this automaton accepts."""
        rows, tokens, _ = plain.reach(self.tables.trie.root, body)
        levels, nodes = plain.endings(body)
        states = np.full(len(nodes), DEAD, np.int32)
        states[0] = state
        levels.sweep(states, self.by_byte)
        return Reach(rows, tokens, nodes[self.accepting(states)])

    def _bounded(self, bound: Bound) -> Reach:
        """As the automaton without the bound, less what is too long or too short."""
        profile = self.tables.terminal(bound.dfa).profile(bound.state, bound.boundary)
        return profile.reach(profile.fitting(bound))

    def profile(self, state: int, boundary: Callable[[int], bool]) -> Profile:
        """State and characters of every node from the root; memoised."""
        found = self._profiles.get(state)
        if found is None:
            twins = (known.twin(self.dfa, state) for known in self._walked)
            found = next((twin for twin in twins if twin is not None), None)
            if found is None:
                found = Profile(self, state, boundary)
                self._walked = (found, *self._walked[: LAST_WALKED - 1])
            found = self._profiles.setdefault(state, found)
            self.charge(found.size_bytes)
        return found

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
                nodes = distinct(trie.parent[nodes])
                nodes = nodes[~marked[nodes]]
            marked[0] = True
            kept = np.flatnonzero(marked).astype(np.int32)
            bounds = np.searchsorted(kept, trie.bounds).tolist()
            depth = next((i for i, b in enumerate(bounds) if b == len(kept)), len(bounds) - 1)
            parent = np.searchsorted(kept, trie.parent[kept]).astype(np.int32)
            levels = Levels(bounds[: depth + 1], parent, trie.byte[kept])
            found = self._endings.setdefault(state, (levels, kept))
            self.charge(self.tables.weight((kept, kept, kept)))
        return found

    # -- the automaton as arrays -----------------------------------------------------------------

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
