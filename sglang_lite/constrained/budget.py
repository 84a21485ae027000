"""Budgets: the time of a compilation, the work of a mask.

A compilation counts the processor time of its thread: on a busy machine the same constraints are
accepted as on an idle one.  A mask counts states, so that it is the same everywhere; loops that may
grow call :func:`check` for the one and :func:`spend` for the other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from sglang_lite.errors import GrammarTooComplex

SEARCH_SECONDS = 0.75
"""What all searches for a text that satisfies a combination may take in one compilation."""

UNCOUNTED = 0.005
"""Seconds at the beginning of a compilation that are not counted."""

MASK_WORK = 10_000
"""States that one mask or step may make and search before its mask is cut short."""

GRAMMAR_WORK = 60_000
"""States that all masks and steps of one grammar may take; then each has ``LEAST_WORK`` only."""

LEAST_WORK = 200
"""What each terminal of a mask is granted, however much the others took."""


AUTOMATON_STATES = 100_000
"""States of one automaton, which grammars may share: beyond it only those that texts come to."""

WALK_WORK = 2_000
"""Places at which one walk over the trie may read a leaf of the grammar."""


class OutOfWork(Exception):
    """Within :func:`cut_short` only: the work of a mask is used up."""


class Meter:
    """What the masks of one grammar may still take: within ``with meter`` :func:`spend` counts.

    Entered for every mask and step that is not remembered, so it does next to nothing there.
    Not to be entered within itself.
    """

    __slots__ = ("bounded", "purse")

    def __init__(self, bounded: bool = True) -> None:
        """Not ``bounded``: nothing is cut short, where single bytes would not stand for tokens."""
        self.bounded = bounded
        self.purse = GRAMMAR_WORK

    def __enter__(self) -> None:
        _work.meter = self

    def __exit__(self, *_: object) -> None:
        _work.meter = None
        if _work.spent:
            # Threads may overwrite each other's count: it is a bound on memory, not a book.
            if self.bounded:
                self.purse -= _work.spent
            _work.spent = 0

    @property
    def allowed(self) -> int:
        """What one mask or step may take."""
        return min(MASK_WORK, max(self.purse, 0))


class _Work(threading.local):
    """The mask or step that this thread makes: whose, and what it took so far.

    Who makes it exceed ``end``, if it is set, is to stop.
    """

    meter: Meter | None = None
    spent = 0
    end: int | None = None


_work = _Work()


class _Ending:
    """Within it the work of a mask ends at ``end``; a generator would cost many a mask a tenth."""

    __slots__ = ("before", "end")

    def __init__(self, end: int | None) -> None:
        self.end = end

    def __enter__(self) -> None:
        self.before, _work.end = _work.end, self.end

    def __exit__(self, *_: object) -> None:
        _work.end = self.before


def cut_short() -> AbstractContextManager[None]:
    """Within it, :func:`spend` raises :class:`OutOfWork` where a mask has used up its work.

    ``LEAST_WORK`` is always granted, so that terminals which all grammars share, and which are
    small, are never cut because of one that is large.
    """
    meter = _work.meter
    if meter is None or not meter.bounded:
        return _Ending(None)
    return _Ending(max(meter.allowed, _work.spent + LEAST_WORK))


def granted() -> AbstractContextManager[None]:
    """Within it, :func:`spend` counts but does not raise: what no mask can do without."""
    return _Ending(None)


def spend(states: int = 1) -> None:
    """Count states that are made or searched for the mask around, if there is one."""
    work = _work
    if work.meter is not None:
        work.spent += states
        if work.end is not None and work.spent > work.end:
            raise OutOfWork


def work_left() -> int | None:
    """What is left to the mask around, perhaps less than nothing; None where nothing bounds it."""
    meter = _work.meter
    return meter.allowed - _work.spent if meter is not None and meter.bounded else None


def overfull(kind: str) -> None:
    """An automaton is to have more than ``AUTOMATON_STATES`` states.

    Compiling raises :class:`GrammarTooComplex`, a mask is cut short.  What a text needs to go on is
    made all the same: no choice of a model is an error.  Its grammar then counts as used up.
    """
    meter = _work.meter
    if meter is None:
        raise GrammarTooComplex(f"{kind} has more than {AUTOMATON_STATES} states")
    meter.purse = min(meter.purse, 0)
    if _work.end is not None:
        raise OutOfWork


def beyond(state: int) -> bool:
    """True for a state that arrays, which grow with its number, are not to be made for."""
    meter = _work.meter
    return state >= AUTOMATON_STATES and (meter is None or meter.bounded)


class _Clock:
    """The end of a compilation's time, and of the search that runs, if one does.

    Processor time is asked for only once enough time has passed in the world: asking takes a system
    call, and most compilations are over before ``UNCOUNTED``.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.end: float | None = None
        self.searched = 0.0
        self.search_end: float | None = None
        self.next_look = time.perf_counter() + min(seconds, UNCOUNTED)

    def look(self) -> None:
        """Raise :class:`GrammarTooComplex` if time is up; else say when to look again."""
        now = time.thread_time()
        if self.end is None:
            self.end = now + self.seconds
        if now > self.end:
            raise GrammarTooComplex(
                f"compiling takes more processor time than the budget of {self.seconds:g} s"
            )
        end = self.end
        if self.search_end is not None:
            if now > self.search_end:
                raise GrammarTooComplex(
                    f"after {SEARCH_SECONDS:g} s of search it is open whether any text satisfies"
                    " the combinations of string and number conditions"
                )
            end = min(end, self.search_end)
        # A thread's processor time never runs faster than the world's.
        self.next_look = time.perf_counter() + end - now


_clock: ContextVar[_Clock | None] = ContextVar("clock", default=None)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Within it, :func:`check` raises :class:`GrammarTooComplex` after ``seconds``."""
    token = _clock.set(_Clock(seconds))
    try:
        yield
    finally:
        _clock.reset(token)


@contextmanager
def searching() -> Iterator[None]:
    """A search: :func:`check` also raises where all of them take more than ``SEARCH_SECONDS``."""
    clock = _clock.get()
    if clock is None or clock.search_end is not None:
        yield
        return
    start = time.thread_time()
    clock.search_end = start + SEARCH_SECONDS - clock.searched
    clock.next_look = 0.0
    try:
        yield
    finally:
        clock.search_end = None
        clock.searched += time.thread_time() - start


def check() -> None:
    """Raise :class:`GrammarTooComplex` if the time of the compilation around is used up."""
    clock = _clock.get()
    if clock is not None and time.perf_counter() > clock.next_look:
        clock.look()
