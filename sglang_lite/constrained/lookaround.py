"""Regular expressions with look-around: anchors in the middle, word boundaries, ``(?=...)``.

An automaton with look-ahead is an alternating one.  A *thread* is a frame with obligations: sets of
threads that run beside it and must (or must not) accept as well.  Look-behind is decided when it is
met: for each one a *tracker*, a set of threads that began at the start of the text, knows whether
the text so far ends with a match.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from sglang_lite.constrained.algebra import trimmed
from sglang_lite.constrained.automaton import Automaton
from sglang_lite.constrained.charset import CharSet
from sglang_lite.constrained.regex_ast import ANY_TEXT, Alt, Chars, Look, Node, Repeat, Seq, seq
from sglang_lite.constrained.regex_frames import END, FrameTable
from sglang_lite.errors import GrammarTooComplex

MAX_THREADS = 2_000


class Thread(NamedTuple):
    """``frame`` is what this thread still has to match, under all its obligations."""

    frame: int
    obligations: frozenset[Obligation]


class Obligation(NamedTuple):
    """The text from here on must (not, if ``negative``) be matched by one of ``threads``."""

    negative: bool
    threads: frozenset[Thread]


NOTHING_OWED: frozenset[Obligation] = frozenset()
Threads = frozenset[Thread]
Trackers = tuple[Threads, ...]
Key = tuple[Trackers, Threads]


class Closure(NamedTuple):
    """What a frame comes to before the next character.

    ``ends``: what is owed if the text ends here, once for each way to the end.  ``moves``: the next
    characters, the frames after them, what is owed on the way there.
    """

    ends: list[frozenset[Obligation]]
    moves: list[tuple[CharSet, int, frozenset[Obligation]]]


class Step(NamedTuple):
    """One character: those of the sets in ``mask``; ``after`` remembers where threads get."""

    trackers: Trackers
    sets: dict[CharSet, int]
    mask: int
    after: dict[Threads, Threads]


def look_automaton(node: Node) -> Automaton:
    """The language of a tree in which look-around is left."""
    return trimmed(_LookAutomaton(node))


class _LookAutomaton(Automaton):
    """A key is (one set of threads for each look-behind, the set of threads of the text)."""

    def __init__(self, node: Node) -> None:
        self._frames = FrameTable()
        self._universal = Thread(self._frames.number(ANY_TEXT, 0, END), NOTHING_OWED)
        self._behinds: list[Look] = []
        _collect_behinds(node, self._behinds)
        self._ahead: dict[int, Threads] = {}
        self._closures: dict[int, Closure] = {}
        self._closed_at: Trackers = ()
        trackers = tuple(self._started(seq((ANY_TEXT, look.item))) for look in self._behinds)
        super().__init__((trackers, self._started(node)))

    def hint(self, state: int) -> int:
        """The length of the shortest text that is left, look-around aside."""
        return min(self._frames.shortest(thread.frame) for thread in self._keys[state][1])

    def _started(self, node: Node) -> Threads:
        return frozenset((Thread(self._frames.number(node, 0, END), NOTHING_OWED),))

    def _accepting(self, key: Key) -> bool:
        trackers, threads = key
        return self._met(trackers, threads)

    def _moves(self, key: Key) -> tuple[tuple[CharSet, ...], Callable[[int], Hashable | None]]:
        trackers, threads = key
        sets: dict[CharSet, int] = {}
        for group in (*trackers, threads):
            self._collect_sets(trackers, group, sets)

        def advance(mask: int) -> Hashable | None:
            step = Step(trackers, sets, mask, {})
            after = self._advanced(step, threads)
            if not after:
                return None
            return tuple(self._advanced(step, tracker) for tracker in trackers), after

        return tuple(sets), advance

    def _collect_sets(self, trackers: Trackers, threads: Threads, sets: dict[CharSet, int]) -> None:
        """Number the sets of characters that any of ``threads``, or what they owe, may read."""
        todo, seen = [threads], {threads}

        def owe(obligations: frozenset[Obligation]) -> None:
            for owed in obligations:
                if owed.threads not in seen:
                    seen.add(owed.threads)
                    todo.append(owed.threads)

        while todo:
            for thread in todo.pop():
                owe(thread.obligations)
                for members, _, looks in self._closure(trackers, thread.frame).moves:
                    sets.setdefault(members, len(sets))
                    owe(looks)

    def _advanced(self, step: Step, threads: Threads) -> Threads:
        """The threads after a character."""
        known = step.after.get(threads)
        if known is None:
            known = step.after[threads] = self._find_advanced(step, threads)
        return known

    def _find_advanced(self, step: Step, threads: Threads) -> Threads:
        moved: set[Thread] = set()
        for thread in threads:
            for members, frame, looks in self._closure(step.trackers, thread.frame).moves:
                if not step.mask >> step.sets[members] & 1:
                    continue
                owed = self._discharged(step, thread.obligations | looks)
                if owed is not None:
                    moved.add(Thread(frame, owed))
        if len(moved) > MAX_THREADS:
            raise GrammarTooComplex(f"look-around with more than {MAX_THREADS} threads at once")
        return frozenset((self._universal,)) if self._universal in moved else frozenset(moved)

    def _discharged(
        self, step: Step, obligations: frozenset[Obligation]
    ) -> frozenset[Obligation] | None:
        """What is still owed after a character; None if something owed has failed."""
        left = set()
        for negative, threads in obligations:
            after = self._advanced(step, threads)
            if not after:
                if not negative:
                    return None
            elif self._universal in after:
                if negative:
                    return None
            else:
                left.add(Obligation(negative, after))
        return frozenset(left)

    def _met(self, trackers: Trackers, threads: Threads) -> bool:
        """True where the text may end here for one of the threads."""
        return any(
            all(self._met(trackers, o.threads) != o.negative for o in thread.obligations | looks)
            for thread in threads
            for looks in self._closure(trackers, thread.frame).ends
        )

    def _closure(self, trackers: Trackers, frame: int) -> Closure:
        """The closure of a frame; look-behind makes it depend on the text so far."""
        if trackers is not self._closed_at:
            self._closed_at = trackers
            if self._behinds:
                self._closures = {}
        known = self._closures.get(frame)
        if known is None:
            known = self._closures[frame] = self._find_closure(trackers, frame)
        return known

    def _find_closure(self, trackers: Trackers, frame: int) -> Closure:
        accepts: list[frozenset[Obligation]] = []
        moves: list[tuple[CharSet, int, frozenset[Obligation]]] = []
        todo = [(frame, NOTHING_OWED)]
        seen = set(todo)

        def push(following: int, owed: frozenset[Obligation]) -> None:
            if (following, owed) not in seen:
                seen.add((following, owed))
                todo.append((following, owed))

        while todo:
            here, owed = todo.pop()
            if here == END:
                accepts.append(owed)
                continue
            node, index, rest = self._frames[here]
            if isinstance(node, Chars):
                moves.append((node.members, rest, owed))
            elif isinstance(node, Look):
                for added in self._look(trackers, node):
                    push(rest, owed | added)
            else:
                for following in self._frames.expand(node, index, rest):
                    push(following, owed)
        return Closure(accepts, moves)

    def _look(self, trackers: Trackers, look: Look) -> list[frozenset[Obligation]]:
        """The ways in which the look-around may hold here, each with what it owes."""
        if look.ahead:
            if id(look) not in self._ahead:
                self._ahead[id(look)] = self._started(seq((look.item, ANY_TEXT)))
            return [frozenset((Obligation(look.negative, self._ahead[id(look)]),))]
        tracker = trackers[self._behinds.index(look)]
        ways = [
            thread.obligations | looks
            for thread in tracker
            for looks in self._closure(trackers, thread.frame).ends
        ]
        if not look.negative:
            return ways
        refused = [NOTHING_OWED]  # of each way, something that it owes must fail
        for way in ways:
            refused = [r | {Obligation(not o.negative, o.threads)} for r in refused for o in way]
        return refused


def _collect_behinds(node: Node, found: list[Look]) -> None:
    """The look-behinds of the tree, inner ones first."""
    if isinstance(node, (Seq, Alt)):
        for item in node.items:
            _collect_behinds(item, found)
    elif isinstance(node, (Repeat, Look)):
        _collect_behinds(node.item, found)
        if isinstance(node, Look) and not node.ahead and node not in found:
            found.append(node)
