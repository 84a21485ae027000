"""Time budget of a compilation: loops that may grow call :func:`check`.

What counts is the processor time of the thread that compiles: on a busy machine the same constraints
are accepted as on an idle one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sglang_lite.errors import GrammarTooComplex

_deadline: ContextVar[tuple[float, float] | None] = ContextVar("deadline", default=None)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Within it, :func:`check` raises :class:`GrammarTooComplex` after ``seconds`` of this thread."""
    token = _deadline.set((time.thread_time() + seconds, seconds))
    try:
        yield
    finally:
        _deadline.reset(token)


def check() -> None:
    """Raise :class:`GrammarTooComplex` if the time of the compilation around is used up."""
    limit = _deadline.get()
    if limit is not None and time.thread_time() > limit[0]:
        raise GrammarTooComplex(
            f"compiling takes more processor time than the budget of {limit[1]:g} s"
        )
