"""What happens during a run, as one append-only log of typed events.

Readers keep a position of their own, so a slow one loses nothing; they end when the run is over
*and* they have read everything, and raise what the run raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from sglang_lite.outputs import Usage

Path = tuple[int, ...]
"""Where in the tree of forks: () is the program's own state, (1, 0) the first child of fork 1."""


@dataclass(frozen=True)
class Event:
    """Base class; ``path`` names the state that it happened in."""

    path: Path


@dataclass(frozen=True)
class TextEvent(Event):
    """Text was appended, by a literal, a template or a model."""

    text: str


@dataclass(frozen=True)
class VariableBegin(Event):
    """A ``gen`` or ``select`` for variable ``name`` starts."""

    name: str | None


@dataclass(frozen=True)
class VariableDelta(Event):
    """More text of a variable; ``index`` is the sample's number where n > 1."""

    name: str | None
    text: str
    index: int = 0


@dataclass(frozen=True)
class VariableEnd(Event):
    """The variable is there; ``value`` as ``s[name]`` gives it, or its text where that raises."""

    name: str | None
    value: Any


@dataclass(frozen=True)
class RoleEvent(Event):
    """A message of ``role`` was opened or closed."""

    role: str
    begin: bool


@dataclass(frozen=True)
class ForkEvent(Event):
    """The state was forked; ``children`` are the paths of the new ones."""

    children: tuple[Path, ...]


@dataclass(frozen=True)
class UsageEvent(Event):
    """What one ``gen`` cost."""

    name: str | None
    usage: Usage


@dataclass(frozen=True)
class RetractEvent(Event):
    """The state was rolled back: its text now has ``length`` characters."""

    length: int


@dataclass(frozen=True)
class ErrorEvent(Event):
    """The state failed."""

    error: BaseException


class EventLog:
    """The log of one run; everything but reading happens on the background loop."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._ended: set[Path] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self._over = False

    def append(self, event: Event) -> None:
        """Add one event and wake the readers."""
        self._events.append(event)
        self._wake()

    def end(self, path: Path) -> None:
        """Nothing more will happen in the state at ``path``."""
        self._ended.add(path)
        self._wake()

    def close(self) -> None:
        """The run is over."""
        self._over = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def read(self, path: Path | None = None) -> AsyncIterator[Event]:
        """All events from the first one on; with ``path`` until that state has ended."""
        position = 0
        while True:
            while position < len(self._events):
                event = self._events[position]
                position += 1
                if path is None or event.path == path:
                    yield event
            if self._over or (path is not None and path in self._ended):
                return
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
