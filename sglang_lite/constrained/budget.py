"""Time budget of a compilation: loops that may grow call :func:`check`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sglang_lite.errors import GrammarTooComplex

_deadline: ContextVar[tuple[float, float] | None] = ContextVar("deadline", default=None)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Within it, :func:`check` raises :class:`GrammarTooComplex` after ``seconds``."""
    token = _deadline.set((time.monotonic() + seconds, seconds))
    try:
        yield
    finally:
        _deadline.reset(token)


def check() -> None:
    """Raise :class:`GrammarTooComplex` if the time of the compilation around is used up."""
    limit = _deadline.get()
    if limit is not None and time.monotonic() > limit[0]:
        raise GrammarTooComplex(f"compiling takes longer than the budget of {limit[1]:g} s")
