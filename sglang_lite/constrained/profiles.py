"""Walks over all tokens that also count characters: states and counts of the trie's nodes."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from sglang_lite.constrained.ir import Bound, ByteDFA
from sglang_lite.constrained.levels import ByteTrie, ClassTrie, Flags
from sglang_lite.constrained.walks import Reach

if TYPE_CHECKING:
    from sglang_lite.constrained.terminals import TerminalTable


class Profile:
    """All tokens read from one state: at each node the state, and the whole characters so far.

    ``pairs`` are the different (state, characters); a bound on the length is a choice among them.
    """

    def __init__(self, table: TerminalTable, state: int, boundary: Callable[[int], bool]) -> None:
        self.tables = table.tables
        self.trie: ClassTrie | ByteTrie = self.tables.classes
        walks = table.walks
        states = None if walks.divides(state) else walks.swept(self.trie, state)
        if states is None or (states < -1).any():
            self.trie = self.tables.bytes
            states = walks.swept(self.trie, state)
        self.states = states
        self._reaches: dict[bytes, Reach] = {}
        # Index -1, the last, stands for nodes that are not reached.
        count = int(states.max()) + 2
        flags = np.array([*map(boundary, range(count - 1)), False], np.bool_)
        self.boundary: Flags = flags[states]
        self.boundary[0] = False
        self.chars = self.trie.levels.chars(self.boundary)
        self.accepts = walks.accepting(states)
        self.accepts[0] = False
        width = int(self.chars.max()) + 1
        keys = (states + 1) * width + self.chars
        keys[0] = 0  # as nodes that are not reached
        used = np.zeros(count * width, np.bool_)
        used[keys] = True
        used[:width] = False
        self.pairs = [(key // width - 1, key % width) for key in np.flatnonzero(used).tolist()]
        met = np.flatnonzero(used.reshape(count, width).any(axis=1)) - 1
        self._met: list[int] = list({int(states[0]), *met.tolist()})
        numbers = np.cumsum(used, dtype=np.int32) - 1
        numbers[:width] = len(self.pairs)
        self._index = numbers[keys]  # of each node's pair, or their number where there is none
        arrays = (states, self.boundary, self.chars, self.accepts, self._index)
        self.size_bytes = sum(array.nbytes for array in arrays) + 100 * len(self.pairs)
        """Approximate memory."""

    def twin(self, dfa: ByteDFA, state: int) -> Profile | None:
        """The profile of ``state``, if no token tells it from the state that was walked.

        A count far from its bounds makes a state of its own, but changes only the names of those
        that follow.
        """
        images = dfa.twins(int(self.states[0]), state, self._met)
        if images is None:
            return None
        found, image = copy(self), dict(zip(self._met, images, strict=True))
        found.pairs = [(image[at], chars) for at, chars in self.pairs]
        found.size_bytes = 400 + 100 * len(self.pairs)
        return found

    def fitting(self, bound: Bound) -> Flags:
        """Which of :attr:`pairs` fit into ``bound``."""
        if not bound.monotone:
            return np.array([bound.fits(*pair) for pair in self.pairs], np.bool_)
        fits = np.zeros(len(self.pairs), np.bool_)
        state, reached = -1, False
        # Backwards, so the longest of each state comes first: most often all of them fit.
        for index in range(len(self.pairs) - 1, -1, -1):
            at, chars = self.pairs[index]
            if at != state:
                state, reached = at, False
            reached = reached or bound.fits(at, chars)
            fits[index] = reached
        return fits

    def reach(self, fits: Flags) -> Reach:
        """Insides and exits if only those of :attr:`pairs` count that are set in ``fits``.

        Mostly all are, so it is remembered, for all twins.
        """
        key = fits.tobytes()
        found = self._reaches.get(key)
        if found is None:
            found = self._reaches.setdefault(key, self._reach(fits))
        return found

    def _reach(self, fits: Flags) -> Reach:
        kept = np.append(np.append(fits, False)[self._index], False)
        exits = np.flatnonzero(kept[:-1] & self.accepts).astype(np.int32)
        kept[:-1] &= ~self.accepts
        row = self.tables.pack_flags(kept.take(self.trie.node_of_id))
        return Reach((row,), (), self.trie.members(exits)[0])
