"""The byte automaton of a language: a pushdown automaton that is determinised state by state.

* A *configuration* is a cursor in a leaf, and the stack (see :mod:`.frames`) that follows the leaf.
* A *state* is a set of configurations, and whether the text may end here.

Configurations that differ only in their stack are merged into one whose stack is a fork, so what
alternatives have in common is walked once.  Everything is immutable and memoised: rollback, fork
and sharing between requests cost nothing, and threads need no lock: two may make the same thing
twice, which costs time only.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from sglang_lite.constrained import budget
from sglang_lite.constrained.counted import CountedLeaf
from sglang_lite.constrained.cursors import Cursor, LiteralCursor, TerminalCursor, set_cursor
from sglang_lite.constrained.frames import (
    Closure,
    EmptyFrame,
    Expansion,
    Fork,
    Frame,
    LeafFrame,
    RefFrame,
    SequenceFrame,
    Stack,
    UnionFrame,
)
from sglang_lite.constrained.fused import fuse
from sglang_lite.constrained.ir import (
    ByteDFA,
    Counted,
    Empty,
    Language,
    Literal,
    LiteralSet,
    Never,
    Node,
    Object,
    Ref,
    Repeat,
    Sequence,
    Terminal,
    Union,
    literal,
)
from sglang_lite.constrained.objects import ObjectFrame, ObjectPlan
from sglang_lite.constrained.repeats import RepeatFrame, RepeatPlan
from sglang_lite.constrained.states import Configuration, Pairs, State, size_bytes
from sglang_lite.constrained.tables import Tables
from sglang_lite.constrained.terminals import TerminalTable

MAX_LAYOUTS = 64
"""How many different punctuations of objects the grammars of a vocabulary share."""


class Pushdown:
    """The automaton of one language over one vocabulary's tables."""

    def __init__(self, language: Language, tables: Tables) -> None:
        self.language = language
        self.tables = tables
        self.bottom = Stack(None, None)
        self.meter = budget.Meter()
        """Bounds the work of masks and steps."""
        self._frames: dict[Node, Frame] = {}
        self._dfas: set[ByteDFA] = set()
        self._layouts: dict[tuple[Node, ...], tuple[tuple[Frame, ...], ...]] = {}
        self.clear()

    def clear(self) -> None:
        """Forget all states; matchers keep the one they are in and go on from it."""
        for state in getattr(self, "_states", {}).values():
            state.moves, state.tokens, state.mask, state.passed = {}, {}, None, False
        self._stacks: dict[tuple[Frame, Stack], Stack] = {}
        self._forks: dict[frozenset[Stack], Fork] = {}
        self._configurations: dict[tuple[Cursor, Stack], Configuration] = {}
        self._states: dict[Configuration | tuple[frozenset[Configuration], bool], State] = {}
        root = self.push((self.frame(self.language.root),), self.bottom)
        closure = self.closure(root)
        self.start = self._state(closure.items, closure.accepting)

    @property
    def state_count(self) -> int:
        """States made so far."""
        return len(self._states)

    @property
    def size_bytes(self) -> int:
        """Approximate memory of what was made so far: states, masks, rows, states of terminals.

        Rows that the token tables hold too are counted: they live as long as a recipe names them.
        """
        size = size_bytes(list(self._configurations.values()), list(self._states.values()))
        return size + sum(dfa.size_bytes for dfa in list(self._dfas))

    # -- frames ----------------------------------------------------------------------------------

    def frame(self, node: Node) -> Frame:
        """The frame of an IR node; equal nodes share one."""
        found = self._frames.get(node)
        if found is None:
            found = self._frames.setdefault(node, self._frame(node))
        return found

    def _frame(self, node: Node) -> Frame:
        if isinstance(node, Literal):
            return LeafFrame(LiteralCursor(node.text))
        if isinstance(node, Sequence):
            items = fuse(node.items)
            if len(items) == 1:
                return self.frame(items[0])
            return SequenceFrame(self.frames(items))
        if isinstance(node, Terminal):
            return LeafFrame(self.terminal(node.dfa).cursor(node.dfa.start))
        if isinstance(node, Object):
            return ObjectFrame(ObjectPlan(node, self))
        if isinstance(node, Union):
            return UnionFrame(tuple(map(self.frame, node.items)))  # EMPTY is an alternative
        if isinstance(node, Repeat):
            return RepeatFrame.of(RepeatPlan(node, self))
        if isinstance(node, Ref):
            return RefFrame(node.name)
        if isinstance(node, LiteralSet):
            return LeafFrame(set_cursor(node))
        if isinstance(node, Counted):
            leaf = CountedLeaf(
                node, self.tables.terminal(node.char), self.frames((literal(node.close[1:]),))
            )
            body = LeafFrame(leaf.start)
            return SequenceFrame((self.frame(literal(node.open)), body)) if node.open else body
        if isinstance(node, Empty):
            return EmptyFrame()
        if isinstance(node, Never):
            return UnionFrame(())
        raise TypeError(f"no IR node: {node!r}")

    def frames(self, nodes: Iterable[Node]) -> tuple[Frame, ...]:
        """The frames of ``nodes``, without those of ``EMPTY``."""
        return tuple(self.frame(node) for node in nodes if not isinstance(node, Empty))

    def rule(self, name: str) -> Frame:
        """The frame of a rule."""
        return self.frame(self.language.rules[name])

    def layout(self, nodes: tuple[Node, ...]) -> tuple[tuple[Frame, ...], ...]:
        """The frames of each of ``nodes``, an object's punctuation.

        The same in nearly all grammars, which share them where they are leaves alone.
        """
        found = self._layouts.get(nodes)
        if found is None:
            known = self.tables.layouts
            found = known.get(nodes)
            if found is None:
                found = tuple([self.frames((node,)) for node in nodes])
                if all(isinstance(frame, LeafFrame) for frames in found for frame in frames):
                    if len(known) >= MAX_LAYOUTS:
                        known.clear()
                    known[nodes] = found
            for frame in chain.from_iterable(found):
                if isinstance(frame, LeafFrame) and isinstance(frame.cursor, TerminalCursor):
                    self.tables.charge(frame.cursor.table, 0)  # in use again
            self._layouts[nodes] = found
        return found

    def terminal(self, dfa: ByteDFA) -> TerminalTable:
        """The table of a DFA that the language mentions."""
        self._dfas.add(dfa)
        return self.tables.terminal(dfa)

    # -- stacks ----------------------------------------------------------------------------------

    def push(self, frames: tuple[Frame, ...], below: Stack) -> Stack:
        """``frames`` on ``below``, the first of them on top."""
        for frame in reversed(frames):
            key = (frame, below)
            stack = self._stacks.get(key)
            if stack is None:
                stack = self._stacks.setdefault(key, Stack(frame, below))
            below = stack
        return below

    def fork(self, stacks: list[Stack]) -> Stack:
        """Any of ``stacks``."""
        parts: set[Stack] = set()
        for stack in stacks:
            if isinstance(stack, Fork):
                parts |= stack.parts
            else:
                parts.add(stack)
        if len(parts) == 1:
            return parts.pop()
        key = frozenset(parts)
        found = self._forks.get(key)
        if found is None:
            found = self._forks.setdefault(key, Fork(key))
        return found

    def closure(self, stack: Stack) -> Closure:
        """What ``stack`` comes to before the next byte; memoised on the stack."""
        found = stack.closure
        if found is None:
            head, below = stack.head, stack.below
            if isinstance(head, LeafFrame) and below is not None and not head.cursor.nullable:
                found = Closure(((head.cursor, below),), False)
            else:
                found = Expansion(stack).closure(self)
            stack.closure = found
        return found

    # -- states ----------------------------------------------------------------------------------

    def step(self, state: State, byte: int) -> State | None:
        """The state after ``byte``, or None where it is refused; memoised."""
        try:
            return state.moves[byte]
        except KeyError:
            with self.meter:
                pairs, accepting = self._advance(state.pairs(), byte)
            following = self._state(pairs, accepting) if pairs or accepting else None
            state.moves[byte] = following
            return following

    def token(self, state: State, token: int, text: bytes) -> State | None:
        """The state after all bytes of a token, or None where it is refused; kept in the state.

        Makes no states for the bytes in between.
        """
        with self.meter:
            pairs, accepting = self._read(state.pairs(), text)
        following_state = self._state(pairs, accepting) if pairs or accepting else None
        state.tokens[token] = following_state
        return following_state

    def _read(self, pairs: Pairs, text: bytes) -> tuple[Pairs, bool]:
        """:meth:`_advance` by all bytes of ``text``."""
        at, accepting = 0, False
        while at < len(text) and pairs:
            if len(pairs) == 1:
                cursor, below = pairs[0]
                following, after = cursor.leap(text, at)
                if after > at:
                    at, accepting = after, False
                    pairs = ((following, below),) if following is not None else ()
                    continue
            pairs, accepting = self._advance(pairs, text[at])
            at += 1
        # Without pairs nothing follows, even where the text might have ended.
        return pairs, accepting and at == len(text)

    def _advance(self, pairs: Pairs, byte: int) -> tuple[Pairs, bool]:
        """The (cursor, stack) pairs after ``byte``, and whether the text may end there."""
        if len(pairs) == 1:
            cursor, below = pairs[0]
            arcs = cursor.step(byte)
            if len(arcs) == 1:
                following, frames = arcs[0]
                if following is not None and not following.nullable:
                    return ((following, self.push(frames, below) if frames else below),), False
        leaves: dict[Cursor, list[Stack]] = {}
        accepting = False
        for cursor, below in pairs:
            for following, frames in cursor.step(byte):
                stack = self.push(frames, below) if frames else below
                if following is not None:
                    leaves.setdefault(following, []).append(stack)
                    if not following.nullable:
                        continue
                closure = self.closure(stack)
                accepting = accepting or closure.accepting
                for inner, deeper in closure.items:
                    leaves.setdefault(inner, []).append(deeper)
        return (
            tuple(
                [
                    (cursor, stacks[0] if len(stacks) == 1 else self.fork(stacks))
                    for cursor, stacks in leaves.items()
                ]
            ),
            accepting,
        )

    def _state(self, pairs: Pairs, accepting: bool) -> State:
        found = []
        for pair in pairs:
            configuration = self._configurations.get(pair)
            if configuration is None:
                configuration = self._configurations.setdefault(pair, Configuration(*pair))
            found.append(configuration)
        alone = found[0] if len(found) == 1 and not accepting else None
        if alone is not None and alone.alone is not None:
            return alone.alone
        key = alone or (frozenset(found), accepting)
        state = self._states.get(key)
        if state is None:
            state = self._states.setdefault(key, State(tuple(found), accepting))
        if alone is not None:
            alone.alone = state
        return state
