"""Frames and stacks: what is still to be matched.

* A *frame* is an IR node still to be matched, or the rest of a repeat or an object.
* A *stack* is a frame and the stack below it, or a set of stacks (:class:`Fork`); the bottom, with
  neither, is the end of the text.  Stacks are interned: they compare by identity and are shared.
* The *closure* of a stack is what it comes to before the next byte: cursors in leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_lite.constrained.cursors import Cursor
from sglang_lite.errors import GrammarTooComplex

if TYPE_CHECKING:
    from sglang_lite.constrained.pushdown import Pushdown

MAX_CLOSURE = 100_000
"""Stacks that one closure may visit; more is a grammar with absurd ambiguity."""


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

    def closure(self, automaton: Pushdown) -> Closure:
        """What the stack comes to; raises :class:`GrammarTooComplex` if it has no end of ways."""
        seen: set[Stack] = set()
        accepting = False
        while self.work:
            here = self.work.pop()
            if here in seen:
                continue
            seen.add(here)
            if len(seen) > MAX_CLOSURE:
                raise GrammarTooComplex(f"one text has more than {MAX_CLOSURE} ways to go on")
            if here.head is not None and here.below is not None:
                here.head.expand(automaton, here.below, self)
            elif isinstance(here, Fork):
                self.work += _by_head(automaton, here)
            else:
                accepting = True
        items = tuple(
            (cursor, belows[0] if len(belows) == 1 else automaton.fork(belows))
            for cursor, belows in self.leaves.items()
        )
        return Closure(items, accepting)


def _by_head(automaton: Pushdown, fork: Fork) -> list[Stack]:
    """The parts of ``fork``, those with the same head merged: h·a or h·b is h·(a or b).

    Without it an ambiguous grammar doubles its stacks at each level.
    """
    belows: dict[Frame, list[Stack]] = {}
    found: list[Stack] = []
    for part in fork.parts:
        if part.head is None or part.below is None:
            found.append(part)
        else:
            belows.setdefault(part.head, []).append(part.below)
    found += [automaton.push((head,), automaton.fork(rests)) for head, rests in belows.items()]
    return found


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
