"""The order in which waiting requests are admitted: pure functions of the queue and the tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_lite.runtime.radix_node import Node
    from sglang_lite.runtime.radix_tree import RadixTree
    from sglang_lite.runtime.request import Request

WINDOW = 128
"""Only so many requests at the head of the queue are looked at in a step."""

PATIENCE = 8
"""A request that later ones have overtaken so often goes first, so that none starves."""


def fcfs(head: Sequence[Request], tree: RadixTree) -> list[Request]:
    """First come, first served; the queue is kept in this order, higher priorities first."""
    return list(head)


def lpm(head: Sequence[Request], tree: RadixTree) -> list[Request]:
    """Longest cached prefix first: it needs the least work, and its prefix may be evicted soon."""
    cached = {request: _peek(request, tree)[0] for request in head}
    return sorted(head, key=lambda request: (*_urgency(request), -cached[request]))


def dfs_weight(head: Sequence[Request], tree: RadixTree) -> list[Request]:
    """Depth first through the tree, branches with more waiting requests first.

    Requests below the same node run together while it is cached.
    """
    paths = {request: _path(_peek(request, tree)[1]) for request in head}
    weights = Counter(id(node) for path in paths.values() for node in path)

    def key(request: Request) -> tuple[object, ...]:
        path = [(-weights[id(node)], id(node)) for node in paths[request]]
        # A node's own requests come after those of its branches, as in a depth-first walk.
        return (*_urgency(request), [*path, (0, 0)])

    return sorted(head, key=key)


POLICIES: dict[str, Callable[[Sequence[Request], RadixTree], list[Request]]] = {
    "fcfs": fcfs,
    "lpm": lpm,
    "dfs-weight": dfs_weight,
}


def _urgency(request: Request) -> tuple[int, bool, int]:
    """Priority, then the overtaken ones by age."""
    overtaken = request.overtaken >= PATIENCE
    return (-request.priority, not overtaken, request.arrival if overtaken else 0)


def _peek(request: Request, tree: RadixTree) -> tuple[int, Node | None]:
    return tree.peek(request.tokens, request.match_limit, request.namespace)


def _path(node: Node | None) -> list[Node]:
    return node.path() if node is not None else []
