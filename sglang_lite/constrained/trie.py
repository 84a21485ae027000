"""The vocabulary as a byte trie in flat arrays, and places in it that are sets of trie nodes."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]

FEW = 8
"""Places of at most so many nodes are walked in Python, wider ones with arrays."""


class Trie:
    """A byte trie of all tokens, in breadth-first order: children are neighbours, by byte.

    * ``bounds``: where each level begins, and N
    * ``byte``: uint8[N], the byte on the edge into each node (node 0 is the root)
    * ``parent``: int32[N]; ``child_start``, ``child_end``: int32[N], each node's range of children
    * ``token_start``: int32[N + 1] and ``tokens``: int32[T], the ids that end at each node (CSR)
    """

    def __init__(self, token_bytes: Sequence[bytes], ids: Iterable[int]) -> None:
        """The trie of ``token_bytes[i]`` for i in ``ids``; none of these may be empty."""
        order = np.fromiter(ids, np.int32)
        texts = [token_bytes[i] for i in order.tolist()]
        text = np.frombuffer(b"".join(texts) or b"\0", np.uint8)
        length = np.fromiter((len(t) for t in texts), np.int64, len(texts))
        offset = np.cumsum(length) - length
        levels = self._levels(text, length, offset)
        self.byte: NDArray[np.uint8] = np.concatenate([level[1] for level in levels])
        count = len(self.byte)
        parent = np.concatenate([level[0] for level in levels])
        self.bounds = [0, *np.cumsum([len(level[0]) for level in levels]).tolist()]
        counts = np.bincount(parent[1:], minlength=count)
        self.child_end: Int32 = (1 + np.cumsum(counts)).astype(np.int32)
        self.child_start: Int32 = (self.child_end - counts).astype(np.int32)
        self.parent: Int32 = parent.astype(np.int32)
        by_node = np.argsort(self._end, kind="stable")
        self.tokens: Int32 = order[by_node]
        ends = np.bincount(self._end, minlength=count)
        self.token_start: Int32 = np.concatenate([[0], np.cumsum(ends)]).astype(np.int32)
        del self._end
        self.longest = int(length.max(initial=0))
        self._prepare()

    def _levels(
        self, text: NDArray[np.uint8], length: NDArray[np.int64], offset: NDArray[np.int64]
    ) -> list[tuple[NDArray[np.int64], NDArray[np.uint8]]]:
        """(parent, byte) of each depth's nodes; leaves the node where each token ends."""
        levels = [(np.zeros(1, np.int64), np.zeros(1, np.uint8))]
        at = np.zeros(len(length), np.int64)
        active = np.arange(len(length))
        base, depth = 1, 0
        while len(active := active[length[active] > depth]):
            keys = at[active] * 256 + text[offset[active] + depth]
            unique, inverse = np.unique(keys, return_inverse=True)
            levels.append((unique >> 8, (unique & 255).astype(np.uint8)))
            at[active] = base + inverse
            base += len(unique)
            depth += 1
        self._end = at
        return levels

    def _prepare(self) -> None:
        # The same as Python's own types, whose single items are cheaper to get at.
        self.bytes = self.byte.tobytes()
        self.first_child = memoryview(self.child_start)  # type: ignore[arg-type]
        self.last_child = memoryview(self.child_end)  # type: ignore[arg-type]
        self.first_token = memoryview(self.token_start)  # type: ignore[arg-type]
        self.token = memoryview(self.tokens)  # type: ignore[arg-type]
        self._interned: weakref.WeakValueDictionary[object, Place] = weakref.WeakValueDictionary()
        self.root = Place(self, (0,))

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the arrays take."""
        arrays = (self.byte, self.child_start, self.child_end, self.token_start, self.tokens)
        return sum(array.nbytes for array in (*arrays, self.parent)) + len(self.bytes)

    def place(self, nodes: Int32) -> Place | None:
        """The place of ``nodes`` (sorted, distinct); nodes without children don't matter."""
        nodes = nodes[self.child_start[nodes] < self.child_end[nodes]]
        if len(nodes) <= FEW:
            return self._intern(tuple(nodes.tolist())) if len(nodes) else None
        key = nodes.tobytes()
        found = self._interned.get(key)
        if found is None:
            found = self._interned.setdefault(key, Place(self, nodes))
        return found

    def less(self, place: Place, nodes: set[int]) -> Place | None:
        """``place`` without ``nodes``; itself where it has none of them."""
        if len(place.nodes) <= FEW:
            kept = tuple([node for node in place.nodes if node not in nodes])
            if len(kept) == len(place.nodes):
                return place
            return self._intern(kept) if kept else None
        have = np.asarray(place.nodes, np.int32)
        gone = np.array(sorted(nodes), np.int32)
        at = np.searchsorted(have, gone)
        at = at[have.take(at, mode="clip") == gone]
        if not len(at):
            return place
        left = np.ones(len(have), np.bool_)
        left[at] = False
        return self.place(have[left])

    def union(self, places: Sequence[Place]) -> Place:
        """All nodes of ``places``, of which there is at least one."""
        if len(places) == 1:
            return places[0]
        nodes = np.concatenate([np.asarray(place.nodes, np.int32) for place in places])
        return self.place(distinct(nodes)) or places[0]

    def beyond(self, place: Place, other: Place) -> Place | None:
        """The nodes of ``place`` that ``other`` does not have; None where there are none."""
        if place is other:
            return None
        nodes = np.asarray(place.nodes, np.int32)
        have = np.asarray(other.nodes, np.int32)
        return self.place(np.setdiff1d(nodes, have, assume_unique=True))

    def _intern(self, nodes: tuple[int, ...]) -> Place:
        found = self._interned.get(nodes)
        if found is None:
            found = self._interned.setdefault(nodes, Place(self, nodes))
        return found

    def follow(self, place: Place, text: bytes, start: int) -> Path:
        """The way of ``text[start:]`` (at least one byte) below ``place``."""
        inner: tuple[int, ...] = ()
        last = len(text) - 1
        for at in range(start, len(text)):
            if len(place.nodes) == 1:
                return self._descend(int(place.nodes[0]), text, at, inner)
            hop = place.get(text[at])
            if hop is None:
                break
            if at == last:
                return Path(inner, hop.tokens, hop.place, True)
            inner += hop.tokens
            if hop.place is None:
                break
            place = hop.place
        return Path(inner, (), None, False)

    def _descend(self, node: int, text: bytes, start: int, inner: tuple[int, ...]) -> Path:
        """:meth:`follow` from one node: its places and hops need not be made."""
        find, first, last = self.bytes.find, self.first_child, self.last_child
        first_token, token = self.first_token, self.token
        ids: tuple[int, ...] = ()
        for byte in text[start:]:
            inner += ids
            node = find(byte, first[node], last[node])
            if node < 0:
                return Path(inner, (), None, False) if inner else NOWHERE
            low, high = first_token[node], first_token[node + 1]
            ids = () if low == high else tuple(token[low:high])
        below = self._intern((node,)) if first[node] < last[node] else None
        return Path(inner, ids, below, True)

    def walk(self, text: bytes) -> Place | None:
        """The place after ``text``, None where no token goes on."""
        place: Place | None = self.root
        for byte in text:
            hop = place.get(byte) if place is not None else None
            if hop is None:
                return None
            place = hop.place
        return place

    def text_below(self, place: Place, node: int) -> bytes:
        """The bytes from ``place`` down to ``node``."""
        text = bytearray()
        while node not in place.nodes:
            text.append(self.bytes[node])
            node = int(self.parent[node])
        return bytes(reversed(text))

    def longest_match(self, text: bytes, start: int) -> tuple[int, int]:
        """(id, length) of the longest token at ``text[start:]``; length 0 where there is none."""
        found, length = -1, 0
        place: Place | None = self.root
        for end in range(start, len(text)):
            hop = place.get(text[end]) if place is not None else None
            if hop is None:
                break
            if hop.tokens:
                found, length = hop.tokens[0], end + 1 - start
            place = hop.place
        return found, length

    def tokens_at(self, nodes: Int32) -> Int32:
        """The ids that end at ``nodes``."""
        start = self.token_start[nodes]
        return self.tokens[ranges(start, self.token_start[nodes + 1] - start)]

    def children(self, nodes: Int32) -> Int32:
        """The children of all ``nodes``."""
        start = self.child_start[nodes]
        return ranges(start, self.child_end[nodes] - start)


class Path(NamedTuple):
    """The way of a text through the trie: ids that end within it, ids that end with it.

    ``place`` is where longer tokens go on; ``whole`` says that the text was read to its end.
    """

    inner: tuple[int, ...]
    last: tuple[int, ...]
    place: Place | None
    whole: bool


NOWHERE = Path((), (), None, False)


class Hop:
    """What one byte leads to: ids of the tokens that end there, and the place they go on from."""

    __slots__ = ("place", "tokens")

    def __init__(self, tokens: tuple[int, ...], place: Place | None) -> None:
        self.tokens = tokens
        self.place = place


UNKNOWN = Hop((), None)


class Place:
    """A set of trie nodes: where the vocabulary may stand after some text was consumed.

    The root is one; "all nodes at which a terminal has accepted" is another.  Merging the nodes
    walks the different tokens with a common remainder only once.
    """

    __slots__ = ("__weakref__", "_hops", "nodes", "trie")

    def __init__(self, trie: Trie, nodes: tuple[int, ...] | Int32) -> None:
        self.trie = trie
        self.nodes = nodes
        self._hops: dict[int, Hop | None] = {}

    def get(self, byte: int) -> Hop | None:
        """Where ``byte`` leads, or None where no token goes on with it."""
        hop = self._hops.get(byte, UNKNOWN)
        return self._hops.setdefault(byte, self._find(byte)) if hop is UNKNOWN else hop

    def _find(self, byte: int) -> Hop | None:
        trie = self.trie
        if len(self.nodes) == 1:
            node = self.nodes[0]
            found = trie.bytes.find(byte, trie.first_child[node], trie.last_child[node])
            if found < 0:
                return None
            return self._hop([found])
        if len(self.nodes) <= FEW:
            nodes = []
            for node in self.nodes:
                found = trie.bytes.find(byte, trie.first_child[node], trie.last_child[node])
                if found >= 0:
                    nodes.append(found)
            return self._hop(nodes) if nodes else None
        self._fill()
        return self._hops.get(byte)

    def _hop(self, nodes: list[int]) -> Hop:
        trie = self.trie
        tokens: list[int] = []
        inner = []
        for node in nodes:
            start, end = trie.first_token[node], trie.first_token[node + 1]
            if start < end:
                tokens += trie.token[start:end]
            if trie.first_child[node] < trie.last_child[node]:
                inner.append(node)
        return Hop(tuple(tokens), trie._intern(tuple(inner)) if inner else None)

    def _fill(self) -> None:
        """Group the children of a wide place by byte, all at once."""
        trie = self.trie
        nodes = trie.children(np.asarray(self.nodes, np.int32))
        order = np.argsort(trie.byte[nodes], kind="stable")
        nodes = nodes[order]
        values, starts = np.unique(trie.byte[nodes], return_index=True)
        hops: dict[int, Hop | None] = {}
        for value, group in zip(values.tolist(), np.split(nodes, starts[1:]), strict=True):
            hops[value] = Hop(tuple(trie.tokens_at(group).tolist()), trie.place(np.sort(group)))
        for byte in range(256):
            self._hops.setdefault(byte, hops.get(byte))


def distinct(values: Int32) -> Int32:
    """``values`` sorted, each once; numpy's own ``unique`` hashes, ten times slower here."""
    values = np.sort(values)
    kept = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=kept[1:])
    return values[kept]


def ranges(start: Int32, count: Int32) -> Int32:
    """The concatenation of ``arange(start[i], start[i] + count[i])``."""
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(start - (ends - count), count) + np.arange(total, dtype=np.int32)
