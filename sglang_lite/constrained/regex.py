"""Regular expressions as automata, made state by state.

:func:`full_match` reads Python's syntax, :func:`search` the dialect of JSON Schema.  A state is a
set of *frames*: what is still to be matched, a stack of tree nodes that is interned as an integer.
A repeat counts in its frame, so ``a{1000000}`` costs nothing until it is walked, and sets stay
small: a frame whose language is contained in another's is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from operator import le
from typing import Any

from sglang_lite.constrained import budget, ir
from sglang_lite.constrained.automaton import DEAD, Automaton, EmptyLanguage, Remainder, repeated
from sglang_lite.constrained.byte_dfa import text_dfa
from sglang_lite.constrained.charset import CharSet
from sglang_lite.constrained.lookaround import look_automaton
from sglang_lite.constrained.regex_ast import (
    ANY_TEXT,
    NEVER,
    Alt,
    Chars,
    Node,
    Repeat,
    Seq,
    alt,
    seq,
    split_end,
    split_start,
)
from sglang_lite.constrained.regex_frames import END, FrameTable
from sglang_lite.constrained.regex_parser import parse
from sglang_lite.errors import GrammarTooComplex, InvalidRegex

MAX_FRAMES = 1_000
MAX_GROWTH = 100
PROBED_SIZE = 300
"""Limits of the positions in one state and of how often they may become more, which is looked for
in patterns from a certain size on."""

LEAST_NEAR = 32
"""Smaller patterns have no counter that could be far from its bounds."""

FEW = 8
"""Up to so many characters of a set, the states of a DFA cost less than tables for counting."""

Closure = tuple[bool, tuple[tuple[CharSet, int], ...]]


class RegexAutomaton(Automaton):
    """The language of a tree without look-around; a key is a frozenset of frames."""

    def __init__(self, node: Node) -> None:
        self._frames = FrameTable()
        self._closures: dict[int, Closure] = {}
        self._universal = self._frames.number(ANY_TEXT, 0, END)
        super().__init__(self._reduced(self._unfolded(node)))
        self.farthest = node.facts.farthest
        self._counts = node.facts.size > LEAST_NEAR
        if node.facts.size > PROBED_SIZE and self.remainder(0) is None:
            self._probe()

    def _unfolded(self, node: Node) -> set[int]:
        """The frames of its branches, each with its first item on top, for :meth:`total`."""
        todo, frames = [self._frames.number(node, 0, END)], set()
        while todo:
            frame = todo.pop()
            top, index, rest = self._frames[frame]
            if isinstance(top, (Seq, Alt)) and top.items:
                todo += self._frames.expand(top, index, rest)
            else:
                frames.add(frame)
        return frames

    def _accepting(self, key: Any) -> bool:
        return any(self._closure(frame)[0] for frame in key)

    def _moves(self, key: Any) -> tuple[tuple[CharSet, ...], Callable[[int], Hashable | None]]:
        by_set: dict[CharSet, set[int]] = {}
        for frame in key:
            for members, following in self._closure(frame)[1]:
                by_set.setdefault(members, set()).add(following)
        followings = list(by_set.values())

        def advance(mask: int) -> Hashable:
            chosen = [f for i, f in enumerate(followings) if mask >> i & 1]
            return self._reduced(chosen[0].union(*chosen[1:]))

        return tuple(by_set), advance

    def _closure(self, frame: int) -> Closure:
        """Whether ``frame`` may end here, and its next characters with the frames after them."""
        known = self._closures.get(frame)
        if known is not None:
            return known
        accepting = False
        moves: dict[tuple[CharSet, int], None] = {}
        todo, seen = [frame], {frame}

        while todo:
            here = todo.pop()
            if here == END:
                accepting = True
                continue
            node, index, rest = self._frames[here]
            if isinstance(node, Chars):
                moves[node.members, rest] = None
                continue
            for following in self._frames.expand(node, index, rest):
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
        closure = self._closures[frame] = accepting, tuple(moves)
        return closure

    def _reduced(self, frames: set[int]) -> frozenset[int]:
        """The frames without those whose language another one is known to contain."""
        if any(map(self._frames.absorbs, frames)):
            return frozenset((self._universal,))
        if len(frames) == 1:
            return frozenset(frames)
        by_shape: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        for frame in frames:
            shape, counts = self._frames.counted(frame)
            by_shape.setdefault(shape, []).append((counts, frame))
        kept: list[int] = []
        for group in by_shape.values():
            least: list[tuple[int, ...]] = []
            for counts, frame in sorted(group):
                if not any(all(map(le, other, counts)) for other in least):
                    least.append(counts)
                    kept.append(frame)
        if len(kept) > MAX_FRAMES:
            raise GrammarTooComplex(f"a state of a regex has more than {MAX_FRAMES} positions")
        return frozenset(kept)

    def _probe(self) -> None:
        """Refuse a pattern whose states grow: follow the largest one for some steps.

        ``(a|b)*a(a|b){5000}`` is small, but must remember the last 5000 characters.
        """
        state, size, grown, steps = 0, 0, 0, 0
        while steps <= 2 * grown + 32:
            budget.check()
            targets = [t for t in self.arcs(state).targets if t != DEAD]
            if not targets:
                return
            state = max(targets, key=lambda t: len(self._keys[t]))
            grown += len(self._keys[state]) > size
            size = len(self._keys[state])
            steps += 1
            if grown > MAX_GROWTH:
                raise GrammarTooComplex(
                    f"after {steps} characters a state of the regex has {size} positions, and more"
                    " after each one"
                )

    def shortest(self, state: int) -> int:
        known = self._shortest.get(state)
        if known is None:
            known = self._shortest[state] = min(map(self._frames.shortest, self._keys[state]))
        return known

    def remainder(self, state: int) -> Remainder | None:
        key = self._keys[state]
        if len(key) > 1:
            return None
        node, index, rest = self._frames[next(iter(key))]
        if rest != END or not isinstance(node, Repeat) or not isinstance(node.item, Chars):
            return None
        maximum = None if node.maximum is None else node.maximum - index
        return Remainder(node.item.members, max(0, node.minimum - index), maximum)

    def near(self, state: int, horizon: int) -> int:
        if not self._counts:
            return state
        with self._lock:
            key = self._keys[state]
            return self._number(frozenset(self._frames.near(f, horizon) for f in key))

    def total(self, state: int) -> bool:
        nodes = (self._frames[frame][0] for frame in self._keys[state])
        return any(node is ANY_TEXT for node in nodes)


def tree_automaton(node: Node) -> Automaton:
    """The automaton of a tree that must match a whole text."""
    node = _without_outer_anchors(node)
    if node is NEVER:
        raise EmptyLanguage("no text matches")
    return look_automaton(node) if node.facts.look else RegexAutomaton(node)


def _without_outer_anchors(node: Node) -> Node:
    """Both ends of the text are the ends of a full match, so anchors there say nothing."""
    return alt(split_end(alt(split_start(node))))


def searching(node: Node) -> Node:
    """The tree that matches a whole text in which ``node`` matches somewhere."""
    branches: list[Node] = []
    for start, before in zip(split_start(node), ((), (ANY_TEXT,)), strict=True):
        for middle, after in zip(split_end(start), ((), (ANY_TEXT,)), strict=True):
            branches.append(seq((*before, middle, *after)))
    return alt(branches)


@lru_cache(maxsize=512)
def full_match(pattern: str, flags: str = "") -> Automaton:
    """The texts that ``pattern`` matches as a whole: Python's ``re.fullmatch``.

    ``flags`` are letters of "aimsx" as in ``(?aimsx)``.  Raises :class:`InvalidRegex` for what is
    malformed, is not regular, or matches no text.
    """
    try:
        automaton = tree_automaton(parse(pattern, flags, "python"))
    except EmptyLanguage:
        raise InvalidRegex(pattern, "it matches no text at all") from None
    automaton._source = (full_match, (pattern, flags))
    return automaton


@lru_cache(maxsize=512)
def search(pattern: str) -> Automaton:
    """The texts in which ``pattern`` matches somewhere, in the dialect of JSON Schema.

    That is ECMA-262 with the ``u`` flag: ``\\d`` and ``\\w`` are ASCII, ``$`` is the very end.
    Raises :class:`InvalidRegex`, and :class:`EmptyLanguage` where it matches no text.
    """
    automaton = tree_automaton(searching(parse(pattern, "", "ecma")))
    automaton._source = (search, (pattern,))
    return automaton


def lower_regex(pattern: str) -> ir.Language:
    """The constraint "the whole text matches ``pattern``"."""
    automaton = full_match(pattern)
    rest = automaton.remainder(0)
    if rest is not None and rest.maximum is not None and rest.maximum > FEW:
        char = text_dfa(repeated(rest.members, 1, 1), "utf8", False)
        return ir.Language(ir.counted(char, rest.minimum, rest.maximum, open=b"", close=b""))
    return ir.Language(ir.terminal(text_dfa(automaton, "utf8", False)))
