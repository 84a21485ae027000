"""The prefix cache: a radix tree from token sequences to KV slots (RadixAttention).

Pure Python and integers.  A node holds a run of tokens and the slots of their keys and values;
a path from a root spells a prefix whose attention state exists.  The tree *owns* the slots in its
nodes.  Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", 2024.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from sglang_lite.runtime.radix_node import Match, Node, Root

TOKEN_BYTES = 4
"""Tokens are compared as bytes, four each: the C library compares a thousand in microseconds."""


class RadixTree:
    """Token-granular radix tree with reference counts and least-recently-used eviction.

    A *namespace* is a tree of its own: prefixes are shared within one only.  ``evictable`` and
    ``protected`` count the tokens in unlocked and in locked nodes.
    """

    def __init__(self) -> None:
        self.evictable = 0
        self.protected = 0
        self.evicted_total = 0
        self._roots: dict[str, Root] = {}
        self._clock = 0
        self._sequence = itertools.count()
        # Every unlocked leaf has an entry (is_prompt, time, number, node); an entry that is out
        # of date is corrected when it is popped, so that a touch costs nothing.
        self._leaves: list[tuple[bool, int, int, Node]] = []

    def match(self, tokens: array[int], limit: int, namespace: str = "") -> Match:
        """The longest cached prefix of ``tokens[:limit]``; marks it as used now.

        A node that agrees in part only is split.  The result is not protected until :meth:`lock`.
        """
        self._clock += 1
        node: Node = self._root(namespace)
        node.time = self._clock
        pieces = []
        for child, common in self._walk(tokens[:limit].tobytes(), node):
            node = child if common == len(child) else self._split(child, common)
            node.time = self._clock
            pieces.append(node.slots)
        return Match(node, np.concatenate(pieces) if pieces else np.empty(0, np.int64))

    def peek(self, tokens: array[int], limit: int, namespace: str = "") -> tuple[int, Node | None]:
        """Length and last node of what :meth:`match` would find; changes nothing."""
        node: Node | None = self._roots.get(namespace)
        length = 0
        if node is not None:
            for child, common in self._walk(tokens[:limit].tobytes(), node):
                node = child
                length += common
        return length, node

    def insert(
        self,
        tokens: array[int],
        slots: np.ndarray,
        prompt_len: int,
        namespace: str = "",
        *,
        oldest: bool = False,
    ) -> tuple[Node, int]:
        """Make ``tokens`` a cached prefix; returns its last node and how many were there before.

        Where tokens are there already, ``slots`` is rewritten in place with the tree's own slots;
        the caller still owns what it had there.  The rest of ``slots`` now belongs to the tree.
        Tokens from ``prompt_len`` on are outputs: they are kept apart, to be evicted first.
        ``oldest``: new nodes count as never used.
        """
        self._clock += 1
        node: Node = self._root(namespace)
        node.time = self._clock
        key = tokens.tobytes()
        present = 0
        for child, common in self._walk(key, node):
            slots[present : present + common] = child.slots[:common]
            node = child if common == len(child) else self._split(child, common)
            node.time = self._clock
            prompt_part = prompt_len - present
            if prompt_part > 0 and not node.is_prompt:
                upper = node if prompt_part >= common else self._split(node, prompt_part)
                upper.is_prompt = True
            present += common
        time = 0 if oldest else self._clock
        start = present
        for end, is_prompt in ((min(prompt_len, len(tokens)), True), (len(tokens), False)):
            if start < end:
                leaf = self._add_leaf(node, key, slots, start, end, time, is_prompt)
                node, start = leaf, end
        return node, present

    def lock(self, node: Node) -> None:
        """Protect the path to ``node`` from eviction until :meth:`unlock`."""
        while node.parent is not None:
            if node.locks == 0:
                self.evictable -= len(node)
                self.protected += len(node)
            node.locks += 1
            node = node.parent
        node.locks += 1

    def unlock(self, node: Node) -> None:
        """Undo one :meth:`lock` of the same node."""
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                self.evictable += len(node)
                self.protected -= len(node)
                self._queue(node)
            node = node.parent
        node.locks -= 1
        self._drop_empty(node)

    def evict(self, count: int, leaving: Callable[[Node], None] | None = None) -> np.ndarray:
        """Forget at least ``count`` tokens if so many are evictable; returns the freed slots.

        Leaves go first: outputs before prompts, then the least recently used.  ``leaving`` is
        called with each of them while it still hangs on its path.
        """
        freed: list[np.ndarray] = []
        done = 0
        while done < count and self._leaves:
            is_prompt, time, _, node = heapq.heappop(self._leaves)
            node.queued = False
            if node.locks or node.children or node.parent is None:
                continue
            if (is_prompt, time) != (node.is_prompt, node.time):
                self._queue(node)
                continue
            if leaving is not None:
                leaving(node)
            parent = node.parent
            del parent.children[node.key[:TOKEN_BYTES]]
            node.parent = None
            freed.append(node.slots)
            done += len(node)
            self._queue(parent)
            self._drop_empty(parent)
        self.evictable -= done
        self.evicted_total += done
        return np.concatenate(freed) if freed else np.empty(0, np.int64)

    def nodes(self) -> Iterator[tuple[str, Node]]:
        """Every node but the roots, with its namespace, parents first."""
        for namespace, root in self._roots.items():
            pending: list[Node] = [root]
            while pending:
                node = pending.pop()
                pending.extend(node.children.values())
                if node.parent is not None:
                    yield namespace, node

    def snapshot(self, max_nodes: int = 1000) -> dict[str, Any]:
        """The top of the tree as JSON-ready values; ``truncated`` says if nodes are missing."""
        numbers: dict[int, int] = {}
        rows: list[dict[str, Any]] = []
        truncated = False
        for namespace, node in self.nodes():
            if len(rows) == max_nodes:
                truncated = True
                break
            numbers[id(node)] = len(rows)
            rows.append(
                {
                    "id": len(rows),
                    "parent": numbers.get(id(node.parent)),
                    "namespace": namespace,
                    "tokens": np.frombuffer(node.key, np.int32)[:32].tolist(),
                    "length": len(node),
                    "locks": node.locks,
                    "is_prompt": node.is_prompt,
                    "age": self._clock - node.time,
                }
            )
        return {
            "nodes": rows,
            "truncated": truncated,
            "evictable": self.evictable,
            "protected": self.protected,
        }

    def check(self, handles: Iterable[Node]) -> None:
        """Verify the tree's invariants; ``handles`` are all nodes that somebody has locked."""
        locks: Counter[int] = Counter()
        for handle in handles:
            node: Node | None = handle
            while node is not None:
                locks[id(node)] += 1
                node = node.parent
        evictable = protected = 0
        for _, node in self.nodes():
            parent = node.parent
            assert parent is not None
            assert parent.children.get(node.key[:TOKEN_BYTES]) is node, "a child under a wrong key"
            assert len(node.key) == TOKEN_BYTES * len(node) > 0, "key and slots differ in length"
            assert node.locks == locks[id(node)], "locks differ from the live handles"
            assert parent.time >= node.time, "a child was used later than its parent"
            if node.locks:
                protected += len(node)
            else:
                evictable += len(node)
                assert node.children or node.queued, "an unlocked leaf that eviction cannot see"
        assert (evictable, protected) == (self.evictable, self.protected), "token counts are wrong"
        for root in self._roots.values():
            assert root.locks == locks[id(root)], "locks of a root differ from the live handles"

    def _root(self, namespace: str) -> Root:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Root(namespace)
        return root

    def _drop_empty(self, node: Node) -> None:
        """Forget a namespace that holds nothing; salts of passing users must not pile up."""
        if isinstance(node, Root) and not node.children and not node.locks:
            self._roots.pop(node.namespace, None)

    def _walk(self, key: bytes, node: Node) -> Iterator[tuple[Node, int]]:
        """The nodes below ``node`` that ``key`` leads through, each with its agreeing tokens.

        Only the last one may agree in part.  The walk goes on from the child it gave out, so a
        caller may split that child above, but not below, its agreeing part.
        """
        at = 0
        while at < len(key):
            child = node.children.get(key[at : at + TOKEN_BYTES])
            if child is None:
                return
            if key.startswith(child.key, at):
                at += len(child.key)
                node = child
                yield child, len(child)
            else:
                yield child, _common_tokens(key, at, child.key)
                return

    def _split(self, node: Node, length: int) -> Node:
        """Cut ``node`` after ``length`` tokens; returns the new upper part, its parent."""
        parent = node.parent
        assert parent is not None
        cut = length * TOKEN_BYTES
        upper = Node(node.key[:cut], node.slots[:length], parent, node.time, node.is_prompt)
        upper.locks = node.locks
        parent.children[node.key[:TOKEN_BYTES]] = upper
        node.key, node.slots, node.parent = node.key[cut:], node.slots[length:], upper
        upper.children[node.key[:TOKEN_BYTES]] = node
        return upper

    def _add_leaf(
        self,
        parent: Node,
        key: bytes,
        slots: np.ndarray,
        start: int,
        end: int,
        time: int,
        is_prompt: bool,
    ) -> Node:
        part = key[start * TOKEN_BYTES : end * TOKEN_BYTES]
        # A copy: the slots come from a request's row, which is reused when the request is gone.
        leaf = Node(part, slots[start:end].copy(), parent, time, is_prompt)
        parent.children[part[:TOKEN_BYTES]] = leaf
        self.evictable += end - start
        self._queue(leaf)
        return leaf

    def _queue(self, node: Node) -> None:
        if not (node.locks or node.children or node.queued or node.parent is None):
            node.queued = True
            entry = (node.is_prompt, node.time, next(self._sequence), node)
            heapq.heappush(self._leaves, entry)


def _common_tokens(key: bytes, at: int, other: bytes) -> int:
    """How many tokens ``key`` from byte ``at`` on and ``other`` have in common at their start."""
    low, high = 0, min(len(key) - at, len(other)) // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        cut = slice(low * TOKEN_BYTES, middle * TOKEN_BYTES)
        if key[at + cut.start : at + cut.stop] == other[cut]:
            low = middle
        else:
            high = middle - 1
    return low
