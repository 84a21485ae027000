"""Frames and stacks: what is still to be matched.

* A *frame* is an IR node still to be matched, or the rest of a repeat or an object.
* A *stack* is a frame and the stack below it, or a set of stacks (:class:`Fork`); the bottom, with
  neither, is the end of the text.  Stacks are interned: they compare by identity and are shared.
* The *closure* of a stack is what it comes to before the next byte: cursors in leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_lite.constrained.cursors import Cursor

if TYPE_CHECKING:
    from sglang_lite.constrained.pushdown import Pushdown


class Frame:
    """Base of frames, compared by identity."""

    __slots__ = ()

    def expand(self, automaton: Pushdown, below: Stack, closure: Expansion) -> None:
        """Add what this frame with ``below`` under it comes to, without reading a byte."""
        raise TypeError("a subclass expands")


class Stack:
    """``head`` is matched first, then ``below``."""

    __slots__ = ("below", "closure", "head")

    def __init__(self, head: Frame | None, below: Stack | None) -> None:
        self.head = head
        self.below = below
        self.closure: Closure | None = None


class Fork(Stack):
    """Any of ``parts``, which are not forks themselves."""

    __slots__ = ("parts",)

    def __init__(self, parts: frozenset[Stack]) -> None:
        super().__init__(None, None)
        self.parts = parts


class Expansion:
    """A closure in the making."""

    __slots__ = ("leaves", "work")

    def __init__(self, stack: Stack) -> None:
        self.work = [stack]
        self.leaves: dict[Cursor, list[Stack]] = {}

    def leaf(self, cursor: Cursor, below: Stack) -> None:
        """A cursor is at its place; where its leaf may be empty, what follows begins too."""
        self.leaves.setdefault(cursor, []).append(below)
        if cursor.nullable:
            self.work.append(below)

    def push(self, automaton: Pushdown, frames: tuple[Frame, ...], below: Stack) -> None:
        """One way on is ``frames`` on ``below``; a leaf on top needs no stack of its own."""
        first = frames[0]
        if isinstance(first, LeafFrame):
            self.leaf(first.cursor, automaton.push(frames[1:], below))
        else:
            self.work.append(automaton.push(frames, below))


class Closure:
    """What a stack comes to before the next byte: merged (cursor, stack) pairs, and acceptance."""

    __slots__ = ("accepting", "items")

    def __init__(self, items: tuple[tuple[Cursor, Stack], ...], accepting: bool) -> None:
        self.items = items
        self.accepting = accepting


class LeafFrame(Frame):
    """A leaf of the grammar, at its start."""

    __slots__ = ("cursor",)

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor

    def expand(self, automaton: Pushdown, below: Stack, closure: Expansion) -> None:
        closure.leaf(self.cursor, below)


class EmptyFrame(Frame):
    """Nothing to match."""

    __slots__ = ()

    def expand(self, automaton: Pushdown, below: Stack, closure: Expansion) -> None:
        closure.work.append(below)


class SequenceFrame(Frame):
    """Several frames one after another."""

    __slots__ = ("frames",)

    def __init__(self, frames: tuple[Frame, ...]) -> None:
        self.frames = frames

    def expand(self, automaton: Pushdown, below: Stack, closure: Expansion) -> None:
        closure.push(automaton, self.frames, below)


class UnionFrame(Frame):
    """Any of several frames; none at all is the empty language."""

    __slots__ = ("frames",)

    def __init__(self, frames: tuple[Frame, ...]) -> None:
        self.frames = frames

    def expand(self, automaton: Pushdown, below: Stack, closure: Expansion) -> None:
        for frame in self.frames:
            closure.push(automaton, (frame,), below)


class RefFrame(Frame):
    """A rule, whose frame is made when it is first met."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def expand(self, automaton: Pushdown, below: Stack, closure: Expansion) -> None:
        closure.work.append(automaton.push((automaton.rule(self.name),), below))
