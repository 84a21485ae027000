"""A trie walked as a whole: a few array operations per level, whatever its width."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sglang_lite.constrained.budget import OutOfWork, granted
from sglang_lite.constrained.trie import Int32, Trie, ranges

Flags = NDArray[np.bool_]

DEAD = -1
UNKNOWN = -3
DEEP = 24
"""From this level on a trie is walked node by node."""
BACKSLASH = 0x5C
EXACT = np.zeros(256, np.int8)
"""By lead byte: how many bytes after it are not grouped.  Unicode's whitespace is below these."""
EXACT[[0xC2, 0xE1, 0xE2, 0xE3, 0xEF]] = 1, 2, 2, 2, 2


class Moves(Protocol):
    """An automaton's transitions by symbol, as a flat array that grows."""

    width: int
    """Symbols per state."""

    def flat(self) -> Int32:
        """The target of state s and symbol c at ``s * width + c``.

        UNKNOWN where the state was not asked for yet; the last two states have no targets, so that
        the indices -1 and -2 lead nowhere.
        """

    def fetch(self, states: Int32) -> None:
        """Make the targets of ``states`` known."""


Run = tuple[int, int, int, int]
"""Nodes ``start`` to ``end`` in depth-first order, all with one symbol, each the child of the last.

The first is below the last node of run ``above``, or below node ``-1 - above`` of the trie.
"""


class Levels:
    """A trie in breadth-first order: bounds of its levels, each node's parent and symbol."""

    def __init__(self, bounds: list[int], parent: Int32, symbol: NDArray[Any]) -> None:
        self.bounds = bounds
        # The type of indices, or numpy would convert them at each use.
        self.parent, self.symbol = parent.astype(np.intp), symbol.astype(np.intp)
        self._deep = bounds[min(DEEP, len(bounds) - 1)]
        self._deep_nodes, self._runs = self._find_runs()
        self._run_lengths = np.array([end - start for _, _, start, end in self._runs], np.intp)
        tops = [number for number, run in enumerate(self._runs) if run[0] < 0]
        self._trees = list(pairwise([*tops, len(self._runs)]))
        self._above_trees = np.array([-1 - self._runs[top][0] for top in tops], np.intp)

    def _find_runs(self) -> tuple[Int32, list[Run]]:
        """The nodes from level DEEP on, depth first, as runs of one symbol."""
        deep, symbol = self._deep, self.symbol[self._deep :].tolist()
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parent[deep:].tolist(), deep):
            children.setdefault(parent, []).append(node)
        nodes: list[int] = []
        runs: list[Run] = []
        work = [(node, -1 - p) for p, kids in children.items() if p < deep for node in kids]
        while work:
            node, above = work.pop()
            start = len(nodes)
            nodes.append(node)
            kids = children.get(node, [])
            while len(kids) == 1 and symbol[kids[0] - deep] == symbol[node - deep]:
                nodes.append(kids[0])
                kids = children.get(kids[0], [])
            work += [(kid, len(runs)) for kid in kids]
            runs.append((above, symbol[node - deep], start, len(nodes)))
        return np.array(nodes, np.int32), runs

    @cached_property
    def _ancestors(self) -> list[NDArray[np.intp]]:
        """For the nodes from level DEEP on: the one 1, 2, 4, 8... levels up, or their number."""
        deep = self._deep
        above = np.append(self.parent[deep:] - deep, -1)
        above[above < 0] = len(above) - 1
        found = []
        while (above < len(above) - 1).any():
            found.append(above)
            above = above[above]
        return found

    def sweep(self, states: Int32, moves: Moves) -> None:
        """Fill ``states`` (int32[N]) from that of the root; negative = not reached.

        Where the work of the mask is used up, all that is below counts as not reached; never the
        first level.
        """
        width = moves.width
        with granted():
            moves.fetch(states[:1])
        start = 1
        try:
            for start, end in pairwise(self.bounds[1 : DEEP + 1]):
                before = states.take(self.parent[start:end])
                live = int(np.count_nonzero(before >= 0))
                if not live:
                    states[start:] = DEAD
                    return
                here, symbol = states[start:end], self.symbol[start:end]
                if 4 * live < end - start:
                    alive = np.flatnonzero(before >= 0)
                    here.fill(DEAD)
                    here[alive] = _targets(before[alive], symbol[alive], moves, width)
                else:
                    here[:] = _targets(before, symbol, moves, width)
            if self._runs:
                start = self._deep
                self._sweep_deep(states, moves)
        except OutOfWork:
            states[start:] = DEAD

    def _sweep_deep(self, states: Int32, moves: Moves) -> None:
        """Few nodes on many levels, mostly runs of one character: run by run."""
        width, target_of = moves.width, moves.flat().item
        last = [DEAD] * len(self._runs)
        odd: list[tuple[int, int]] = []
        entered = np.flatnonzero(states.take(self._above_trees) >= 0)
        for number in (n for tree in entered.tolist() for n in range(*self._trees[tree])):
            above, symbol, start, end = self._runs[number]
            state = last[above] if above >= 0 else states.item(-1 - above)
            for at in range(start, end):
                if state < 0:
                    state = DEAD  # below a split class, too
                    break
                target = target_of(state * width + symbol)
                if target == UNKNOWN:
                    moves.fetch(np.array([state], np.int32))
                    target_of = moves.flat().item
                    target = target_of(state * width + symbol)
                if target == state:
                    break
                state = target
                if at < end - 1:
                    odd.append((at, state))
            last[number] = state
        # Nearly all runs are one node, or stay in one state.
        found = np.array(last, np.int32).repeat(self._run_lengths)
        for at, state in odd:
            found[at] = state
        states[self._deep_nodes] = found

    def chars(self, ends: Flags) -> Int32:
        """For each node how many nodes on the way to it, itself included, are set in ``ends``."""
        found = ends.astype(np.int32)
        found[0] = 0
        for start, end in pairwise(self.bounds[1 : DEEP + 1]):
            found[start:end] += found[self.parent[start:end]]
        deep = self._deep
        if deep < len(found):
            # Below, sums over 1, 2, 4, 8... levels: far fewer operations than levels.
            first = found[deep : self.bounds[DEEP + 1]]
            first += found[self.parent[deep : self.bounds[DEEP + 1]]]
            below = np.append(found[deep:], 0).astype(np.int32)
            for above in self._ancestors:
                below += below[above]
            found[deep:] = below[:-1]
        return found


def _targets(states: Int32, symbols: NDArray[np.intp], moves: Moves, width: int) -> Int32:
    index = states * np.intp(width) + symbols
    reached: Int32 = moves.flat().take(index)
    if int(reached.min()) == UNKNOWN:
        moves.fetch(states)
        reached = moves.flat().take(index)
    return reached


class ByteTrie:
    """The byte trie with the interface of :class:`ClassTrie`: each node is its only member."""

    def __init__(self, trie: Trie, size: int) -> None:
        self.count = len(trie.byte)
        self.node_of_member = np.arange(self.count, dtype=np.int32)
        self.levels = Levels(trie.bounds, trie.parent, trie.byte)
        # The type of indices, or numpy would convert them at each use.
        self.node_of_id = np.full(size, self.count, np.intp)
        ends = np.repeat(np.arange(self.count, dtype=np.int32), np.diff(trie.token_start))
        self.node_of_id[trie.tokens] = ends

    def held(self, nodes: Int32) -> int:
        """How many nodes :meth:`members` gives."""
        return len(nodes)

    def members(self, nodes: Int32) -> tuple[Int32, Int32]:
        """(``nodes``, their indices)."""
        return nodes, np.arange(len(nodes), dtype=np.int32)


class ClassTrie:
    """The byte trie modulo a partition of the bytes, about a tenth of its size.

    Automata that treat the bytes of a class alike are walked on it.  A symbol is a class, or 256
    and the byte itself: below a backslash, where JSON has hexadecimal digits, and in characters
    some of whose neighbours are whitespace.
    ``members`` of a node are the byte trie's nodes (CSR), ``node_of_member`` is the way back;
    ``node_of_id`` is the node at which each token id ends.
    """

    def __init__(self, trie: Trie, size: int, classes: NDArray[np.uint8]) -> None:
        self.trie = trie
        self.classes = classes
        self.samples = np.unique(classes, return_index=True)[1]
        count = len(trie.byte)
        node = np.zeros(count, np.int64)
        escape, exact = np.zeros(count, np.bool_), np.zeros(count, np.int8)
        parents, symbols, bounds = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)], [0, 1]
        for start, end in zip(trie.bounds[1:], trie.bounds[2:], strict=False):
            above, byte = trie.parent[start:end], trie.byte[start:end]
            escape[start:end] = escape[above] | (byte == BACKSLASH)
            # A lead of three bytes makes two more exact, one of two bytes one.
            exact[start:end] = np.where(EXACT[byte], EXACT[byte], np.maximum(exact[above], 1) - 1)
            own = escape[start:end] | (exact[above] > 0)
            symbol = np.where(own, 256 + byte.astype(np.int64), classes[byte])
            unique, inverse = np.unique(node[above] * 512 + symbol, return_inverse=True)
            node[start:end] = bounds[-1] + inverse
            parents.append(unique >> 9)
            symbols.append(unique & 511)
            bounds.append(bounds[-1] + len(unique))
        self.count = bounds[-1]
        parent = np.concatenate(parents).astype(np.int32)
        self.levels = Levels(bounds, parent, np.concatenate(symbols).astype(np.int16))
        self.node_of_member = node.astype(np.int32)
        self._members = np.argsort(node, kind="stable").astype(np.int32)
        held = np.bincount(node, minlength=self.count)
        self._member_start = np.concatenate([[0], np.cumsum(held)]).astype(np.int32)
        ends = np.repeat(node, np.diff(trie.token_start))
        # The type of indices, or numpy would convert them at each use.
        self.node_of_id = np.full(size, self.count, np.intp)
        self.node_of_id[trie.tokens] = ends

    def held(self, nodes: Int32) -> int:
        """How many nodes :meth:`members` gives."""
        return int((self._member_start[nodes + 1] - self._member_start[nodes]).sum())

    def members(self, nodes: Int32) -> tuple[Int32, Int32]:
        """(the byte trie's nodes of all ``nodes``, for each the index of its class node)."""
        start = self._member_start[nodes]
        held = self._member_start[nodes + 1] - start
        index = np.repeat(np.arange(len(nodes), dtype=np.int32), held)
        return self._members[ranges(start, held)], index

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the arrays take."""
        levels = self.levels.parent.nbytes + self.levels.symbol.nbytes
        members = self._members.nbytes + self._member_start.nbytes + self.node_of_member.nbytes
        return levels + members + self.node_of_id.nbytes


def json_classes() -> NDArray[np.uint8]:
    """Letters of either case, digits, other ASCII alone, and the lead and continuation bytes.

    Leads with many boundary cases stand alone: Unicode's ``\\s`` and ``.`` split them.
    """
    groups: list[range | list[int]] = [range(97, 123), range(65, 91), range(48, 58)]
    groups += [range(0xC3, 0xE0), range(0xE4, 0xED), [0xEE], range(0xF1, 0xF4)]
    groups += [range(0x80, 0x90), range(0x90, 0xA0), range(0xA0, 0xC0)]
    classes = np.zeros(256, np.uint8)
    grouped = {byte for group in groups for byte in group}
    groups += [[byte] for byte in range(256) if byte not in grouped]
    for number, group in enumerate(groups):
        classes[list(group)] = number
    return classes
