"""What the prefix cache is made of: nodes that own runs of tokens and their KV slots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


class Node:
    """A run of tokens below ``parent``.

    * ``key``: the tokens as int32 bytes.  ``slots``: int64, one per token.
    * ``children``: by the first token of their key.
    * ``locks``: number of live handles at this node or below; locked nodes are never evicted.
    * ``time``: when a match or insert last passed.  ``is_prompt``: part of some request's prompt.
    """

    __slots__ = ("children", "is_prompt", "key", "locks", "parent", "queued", "slots", "time")

    def __init__(
        self, key: bytes, slots: np.ndarray, parent: Node | None, time: int, is_prompt: bool
    ) -> None:
        self.key = key
        self.slots = slots
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.locks = 0
        self.time = time
        self.is_prompt = is_prompt
        self.queued = False

    def __len__(self) -> int:
        return len(self.slots)

    def path(self) -> list[Node]:
        """The nodes from just below the root down to this one."""
        nodes = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class Root(Node):
    """The empty prefix of a namespace."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: str) -> None:
        super().__init__(b"", np.empty(0, np.int64), None, 0, True)
        self.namespace = namespace


@dataclass(frozen=True)
class Match:
    """The longest cached prefix: its last node and the slot of each of its tokens."""

    node: Node
    slots: np.ndarray

    def __len__(self) -> int:
        return len(self.slots)
