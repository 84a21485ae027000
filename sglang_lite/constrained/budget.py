"""Time budget of a compilation: loops that may grow call :func:`check`.

What counts is the processor time of the thread that compiles: on a busy machine the same
constraints are accepted as on an idle one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sglang_lite.errors import GrammarTooComplex

SEARCH_SECONDS = 0.75
"""What all searches for a text that satisfies a combination may take in one compilation."""


class _Clock:
    """The end of a compilation's time, and of the search that runs, if one does."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.end = time.thread_time() + seconds
        self.searched = 0.0
        self.search_end: float | None = None


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
    try:
        yield
    finally:
        clock.search_end = None
        clock.searched += time.thread_time() - start


def check() -> None:
    """Raise :class:`GrammarTooComplex` if the time of the compilation around is used up."""
    clock = _clock.get()
    if clock is None:
        return
    now = time.thread_time()
    if now > clock.end:
        raise GrammarTooComplex(
            f"compiling takes more processor time than the budget of {clock.seconds:g} s"
        )
    if clock.search_end is not None and now > clock.search_end:
        raise GrammarTooComplex(
            f"after {SEARCH_SECONDS:g} s of search it is open whether any text satisfies the"
            " combinations of string and number conditions"
        )
