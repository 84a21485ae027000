"""Frames: what a regular expression still has to match, as interned stacks of tree nodes."""

from __future__ import annotations

from sglang_lite.constrained.regex_ast import ANY_TEXT, EMPTY, Alt, Node, Repeat, Seq

END = 0
"""The frame of the empty remainder."""


class FrameTable:
    """Frames as integers: (node, index, rest) says that ``node`` is next and ``rest`` after it.

    The index is a position in a sequence, or how often a repeat has gone round.
    """

    def __init__(self) -> None:
        self._frames: list[tuple[Node, int, int]] = [(EMPTY, 0, END)]
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._absorbs: dict[int, bool] = {END: False}
        self._shapes: dict[tuple[int, int, int], int] = {}
        self._counted: dict[int, tuple[int, tuple[int, ...]]] = {}

    def __getitem__(self, frame: int) -> tuple[Node, int, int]:
        return self._frames[frame]

    def number(self, node: Node, index: int, rest: int) -> int:
        """The frame with these fields."""
        key = (id(node), index, rest)
        frame = self._numbers.get(key)
        if frame is None:
            frame = self._numbers[key] = len(self._frames)
            self._frames.append((node, index, rest))
        return frame

    def expand(self, node: Node, index: int, rest: int) -> list[int]:
        """The frames that a sequence, alternative or repeat may become without a character."""
        if isinstance(node, Seq):
            if not node.items:
                return [rest]
            left = len(node.items) - index - 1
            if left == 0:
                after = rest
            elif left == 1:
                after = self.number(node.items[-1], 0, rest)
            else:
                after = self.number(node, index + 1, rest)
            return [self.number(node.items[index], 0, after)]
        if isinstance(node, Alt):
            return [self.number(item, 0, rest) for item in node.items]
        if not isinstance(node, Repeat):
            raise TypeError(f"{type(node).__name__} cannot be expanded")
        ways = [rest] if index >= node.minimum else []
        if index != node.maximum:
            following = index + 1 if node.maximum is not None else min(index + 1, node.minimum)
            ways.append(self.number(node.item, 0, self.number(node, following, rest)))
        return ways

    def near(self, frame: int, horizon: int) -> int:
        """The frame with every counter set back that is more than ``horizon`` from its bounds."""
        if frame == END:
            return END
        node, index, rest = self._frames[frame]
        if isinstance(node, Repeat) and node.maximum is not None:
            rounds = horizon // max(1, node.item.facts.least)
            if node.minimum - index > rounds + 1:
                index = 0
            elif index >= node.minimum and node.maximum - index > rounds + 1:
                index = node.minimum
        return self.number(node, index, self.near(rest, horizon))

    def absorbs(self, frame: int) -> bool:
        """True where nothing more is needed and any text may follow."""
        known = self._absorbs.get(frame)
        if known is None:
            node, index, rest = self._frames[frame]
            if isinstance(node, Seq):
                empty = all(item.facts.nullable for item in node.items[index:])
            else:
                empty = node.facts.nullable or (isinstance(node, Repeat) and index >= node.minimum)
            ends = node is ANY_TEXT and rest == END
            known = ends or (frame != END and empty and self.absorbs(rest))
            self._absorbs[frame] = known
        return known

    def counted(self, frame: int) -> tuple[int, tuple[int, ...]]:
        """Its shape, and the counts of the repeats in it that have reached their minimum.

        Of two frames of one shape, the one that has nowhere counted more contains the language of
        the other.  Before any text may follow it is the one that has counted more.
        """
        known = self._counted.get(frame)
        if known is None:
            node, index, rest = self._frames[frame]
            counts: tuple[int, ...] = ()
            shape = END
            if frame != END:
                place, absorbed = index, self.absorbs(rest)
                shape, counts = (-1, ()) if absorbed else self.counted(rest)
                if isinstance(node, Repeat) and index >= node.minimum:
                    place, counts = -1, (index, *counts)
                elif isinstance(node, Repeat) and absorbed:
                    place, counts = -2, (-index,)
                shape = self._shapes.setdefault((id(node), place, shape), len(self._shapes) + 1)
            known = self._counted[frame] = shape, counts
        return known

    def shortest(self, frame: int) -> int:
        """The length of its shortest text, look-around aside."""
        total = 0
        while frame != END:
            node, index, rest = self._frames[frame]
            if isinstance(node, Seq):
                total += sum(item.facts.least for item in node.items[index:])
            elif isinstance(node, Repeat):
                total += max(0, node.minimum - index) * node.item.facts.least
            else:
                total += node.facts.least
            frame = rest
        return total
