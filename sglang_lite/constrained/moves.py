"""The transitions of a byte DFA as arrays that grow as its states are asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sglang_lite.constrained import budget
from sglang_lite.constrained.dfa import ByteDFA
from sglang_lite.constrained.levels import DEAD, UNKNOWN, ClassTrie, Flags
from sglang_lite.constrained.trie import Int32, distinct

SPLIT = -2
"""In the class table: the automaton tells the bytes of this class apart."""


class ByteMoves:
    """The rows of a DFA as one array, filled as states are asked for."""

    width = 256

    def __init__(self, dfa: ByteDFA) -> None:
        self._dfa = dfa
        self._lock = threading.RLock()
        self._targets = _no_targets(8, 256)
        self._known = np.zeros(10, np.bool_)
        self._known[-2:] = True
        self._flagged = 0
        self.accepts: Flags = np.zeros(10, np.bool_)
        """By state; the last entries, for the indices -1 and -2, are False."""

    def flat(self) -> Int32:
        """See :class:`Moves`."""
        return self._targets

    @property
    def size_bytes(self) -> int:
        """Memory of the arrays."""
        return self._targets.nbytes

    def fetch(self, states: Int32) -> None:
        """Ask the automaton for the rows of ``states`` that were not used before."""
        with self._lock:
            self.flag(int(states.max(initial=DEAD)))
            for state in each(states[~self._known[states]]):
                row = self._dfa.array(state)
                if budget.beyond(int(row.max())):
                    raise budget.OutOfWork
                # Room for the targets first: a state in an array has a row in the others.
                self.flag(int(row.max()))
                self._targets[state * 256 : (state + 1) * 256] = row
                self._known[state] = True

    def flag(self, top: int) -> None:
        """Make room for the states up to ``top`` and ask which of them accept."""
        with self._lock:
            if top < self._flagged:
                return
            size = len(self.accepts) - 2
            if top >= size:
                grown = max(2 * size, top + 1)
                targets = _no_targets(grown, 256)
                targets[: size * 256] = self._targets[: size * 256]
                known = np.zeros(grown + 2, np.bool_)
                known[:size], known[-2:] = self._known[:size], True
                accepts = np.zeros(grown + 2, np.bool_)
                accepts[:size] = self.accepts[:size]
                self._targets, self._known, self.accepts = targets, known, accepts
            for state in range(self._flagged, top + 1):
                self.accepts[state] = self._dfa.accepts(state)
            self._flagged = top + 1


class ClassMoves:
    """The same by symbols of a class trie; SPLIT where the bytes of a class part."""

    width = 512

    def __init__(self, moves: ByteMoves, trie: ClassTrie) -> None:
        self._moves = moves
        self._trie = trie
        self._lock = threading.Lock()
        self._targets = _no_targets(8, 512)

    def flat(self) -> Int32:
        """See :class:`Moves`."""
        return self._targets

    @property
    def size_bytes(self) -> int:
        """Memory of the array."""
        return self._targets.nbytes

    def fetch(self, states: Int32) -> None:
        """Ask for the rows of ``states`` that were not used before."""
        with self._lock:
            self._moves.fetch(states)
            # As many rows as by byte: states in an array have a row in the others.
            room = len(self._moves.accepts) - 2
            size = len(self._targets) // 512 - 2
            if room > size:
                grown = _no_targets(room, 512)
                grown[: size * 512] = self._targets[: size * 512]
                self._targets = grown
            unknown = self._targets.take(states * np.intp(512)) == UNKNOWN
            if unknown.any():
                fresh = np.fromiter(each(states[unknown]), np.intp)
                self._targets.reshape(-1, 512)[fresh] = self._classified(fresh)

    def divides(self, state: int) -> bool:
        """True where ``state``, at which a sweep begins, tells the bytes of some class apart."""
        with budget.granted():
            self.fetch(np.array([state], np.int32))
        return SPLIT in self._targets[state * 512 : (state + 1) * 512]

    def _classified(self, states: NDArray[np.intp]) -> Int32:
        classes, samples = self._trie.classes, self._trie.samples
        targets = self._moves.flat().reshape(-1, 256)[states]
        found = np.full((len(states), 512), DEAD, np.int32)
        found[:, : len(samples)] = targets[:, samples]
        found[:, 256:] = targets
        # One byte that differs spoils its class.
        rows, bytes_ = np.nonzero(found[:, classes] != targets)
        found[rows, classes[bytes_]] = SPLIT
        return found


def each(states: Int32) -> Iterable[int]:
    """The different ones among ``states``."""
    return set(states.tolist()) if len(states) < 1000 else distinct(states).tolist()


def _no_targets(states: int, width: int) -> Int32:
    targets = np.full((states + 2) * width, UNKNOWN, np.int32)
    targets[-2 * width :] = DEAD
    return targets
