"""A trie walked as a whole: a few array operations per level, whatever its width."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sglang_lite.constrained.trie import Int32, Trie, ranges

Flags = NDArray[np.bool_]

DEAD = -1


class Levels:
    """A trie in breadth-first order: bounds of its levels, each node's parent and symbol."""

    def __init__(self, bounds: list[int], parent: Int32, symbol: NDArray[np.uint8]) -> None:
        self.bounds, self.parent, self.symbol = bounds, parent, symbol

    def sweep(
        self,
        states: Int32,
        targets: Callable[[Int32, NDArray[np.uint8]], Int32],
        seeded: bool = False,
    ) -> None:
        """Fill ``states`` (int32[N], negative = not reached) from the nodes that are set.

        ``targets(states, symbols)`` gives the following states; a negative state leads to -1.
        Without ``seeded`` only the root is set.
        """
        bounds, parent, symbol = self.bounds, self.parent, self.symbol
        for start, end in pairwise(bounds[1:]):
            before = states[parent[start:end]]
            alive = np.flatnonzero(before >= 0)
            if not len(alive):
                if seeded:
                    continue
                break
            here = states[start:end]
            if 3 * len(alive) < len(before):
                here[alive] = targets(before[alive], symbol[start:end][alive])
            elif seeded:
                np.copyto(here, targets(before, symbol[start:end]), where=here < 0)
            else:
                here[:] = targets(before, symbol[start:end])


def levels_of(trie: Trie) -> Levels:
    """The levels of the byte trie itself."""
    return Levels(trie.bounds, trie.parent, trie.byte)


class ClassTrie:
    """The byte trie modulo a partition of the bytes, about a tenth of its size.

    Automata that treat the bytes of a class alike are walked on it.  ``members`` of a node are the
    byte trie's nodes (CSR); ``node_of_id`` is the node at which each token id ends.
    """

    def __init__(self, trie: Trie, size: int, classes: NDArray[np.uint8]) -> None:
        self.trie = trie
        self.classes = classes
        self.samples = np.unique(classes, return_index=True)[1]
        count = len(trie.byte)
        node = np.zeros(count, np.int64)
        parents, symbols, bounds = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)], [0, 1]
        for start, end in zip(trie.bounds[1:], trie.bounds[2:], strict=False):
            keys = node[trie.parent[start:end]] * 256 + classes[trie.byte[start:end]]
            unique, inverse = np.unique(keys, return_inverse=True)
            node[start:end] = bounds[-1] + inverse
            parents.append(unique >> 8)
            symbols.append(unique & 255)
            bounds.append(bounds[-1] + len(unique))
        self.count = bounds[-1]
        parent = np.concatenate(parents).astype(np.int32)
        self.levels = Levels(bounds, parent, np.concatenate(symbols).astype(np.uint8))
        self._members = np.argsort(node, kind="stable").astype(np.int32)
        held = np.bincount(node, minlength=self.count)
        self._member_start = np.concatenate([[0], np.cumsum(held)]).astype(np.int32)
        ends = np.repeat(node, np.diff(trie.token_start))
        self.node_of_id = np.full(size, self.count, np.int32)
        self.node_of_id[trie.tokens] = ends

    def members(self, nodes: Int32) -> tuple[Int32, Int32]:
        """(the byte trie's nodes of all ``nodes``, for each the index of its class node)."""
        start = self._member_start[nodes]
        held = self._member_start[nodes + 1] - start
        index = np.repeat(np.arange(len(nodes), dtype=np.int32), held)
        return self._members[ranges(start, held)], index

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the arrays take."""
        arrays = (self.levels.parent, self.levels.symbol, self._members, self._member_start)
        return sum(array.nbytes for array in (*arrays, self.node_of_id))


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
