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

from sglang_lite.constrained import budget
from sglang_lite.constrained.cursors import TerminalCursor
from sglang_lite.constrained.ir import Bound, ByteDFA
from sglang_lite.constrained.levels import DEAD, Levels
from sglang_lite.constrained.profiles import Profile
from sglang_lite.constrained.tables import Scan
from sglang_lite.constrained.trie import Int32, Place, distinct
from sglang_lite.constrained.walks import Reach, Walks

if TYPE_CHECKING:
    from sglang_lite.constrained.counted import Measure
    from sglang_lite.constrained.tables import Tables

FEW_BYTES = 6
"""Where at most so many bytes go on, tokens are first walked node by node."""

CURSOR_BYTES = 700
"""Rough memory of a cursor and what it remembers of its steps."""

LAST_WALKED = 4
"""So many profiles are compared with a new state before it is walked, too."""


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
        self._endings: dict[int, tuple[Levels, Int32]] = {}
        self.walks = Walks(tables, dfa)
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
        arrays = self.walks.size_bytes
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
        self._walked = ()
        # Whoever is reading the arrays has them at hand.
        self.walks, self._charged = Walks(self.tables, self.dfa), 0

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
        row, walks = self.dfa.row(state), self.walks
        if not budget.beyond(max(state, *row)):
            walks.by_byte.flag(state)
            try:
                with budget.cut_short():
                    return self._reach_on(place, state, row, walks)
            except budget.OutOfWork:
                pass  # before the first byte
        return walks.one_byte(place, row)

    def _reach_on(self, place: Place, state: int, row: Sequence[int], walks: Walks) -> Reach:
        """By the way that is cheapest.

        Where the work of the mask is used up, longer tokens are left out: their bytes are still
        allowed one by one, so no text is lost.
        """
        if place is not self.tables.trie.root or 256 - row.count(DEAD) <= FEW_BYTES:
            found = walks.node_by_node(place, state)
            if found is not None:
                return found
        if place is self.tables.trie.root:
            like = self.dfa.like(state)
            if like is not None:
                return self._like(state, self.tables.terminal(like[0]), like[1])
            bound = self.dfa.bound(state)
            if bound is not None:
                return self._bounded(bound)
            return walks.from_root(state)
        nodes = np.asarray(place.nodes, np.int32)
        return walks.level_by_level(nodes, np.full(len(nodes), state, np.int32))

    def _like(self, state: int, plain: TerminalTable, body: int) -> Reach:
        """The insides of the plain string; of its exits, those that this automaton accepts."""
        rows, tokens, _ = plain.reach(self.tables.trie.root, body)
        levels, nodes = plain.endings(body)
        states = np.full(len(nodes), DEAD, np.int32)
        states[0] = state
        walks = self.walks
        levels.sweep(states, walks.by_byte)
        return Reach(rows, tokens, nodes[walks.accepting(states)])

    def _bounded(self, bound: Bound) -> Reach:
        """As the automaton without the bound, less what is too long or too short."""
        if budget.beyond(max(bound.state, *bound.dfa.row(bound.state))):
            raise budget.OutOfWork
        profile = self.tables.terminal(bound.dfa).profile(bound.state, bound.boundary)
        with budget.granted():
            return profile.reach(profile.fitting(bound))

    def profile(self, state: int, boundary: Callable[[int], bool]) -> Profile:
        """State and characters of every node from the root; memoised."""
        found = self._profiles.get(state)
        if found is None:
            twins = (known.twin(self.dfa, state) for known in self._walked)
            with budget.granted():
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
