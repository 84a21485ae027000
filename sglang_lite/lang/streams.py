"""Reading a run while it goes on: its events, or the text of one state or variable."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from sglang_lite.errors import InvalidRequest
from sglang_lite.lang.events import Event, TextEvent, VariableDelta, VariableEnd

if TYPE_CHECKING:
    from sglang_lite.lang.executor import Executor
    from sglang_lite.lang.run import Run
    from sglang_lite.lang.state import ProgramState


async def events(run: Run) -> AsyncIterator[Event]:
    """All events of a run; raises at the end if it failed."""
    if run.log is None:
        raise InvalidRequest("stream", False, "a run with stream=True to iterate over events")
    async for event in run.log.read():
        yield event
    raise_failure(run.root)


async def texts(state: ProgramState, name: str | None, meta: bool = False) -> AsyncIterator[Any]:
    """The text of a state, or of one of its variables, as it grows.

    With ``meta`` pairs (text, meta info); the info comes with the last one.
    """
    executor = state._executor
    if executor.run.log is None:
        whole: Any = state.aio.text() if name is None else state.aio.raw(name)
        yield await whole
        return
    delivered = False
    async for event in executor.run.log.read(executor.path):
        if name is None:
            if isinstance(event, TextEvent):
                yield (event.text, None) if meta else event.text
        elif isinstance(event, VariableDelta) and event.name == name and event.index == 0:
            delivered = True
            yield (event.text, None) if meta else event.text
        elif isinstance(event, VariableEnd) and event.name == name:
            if not delivered:  # a scope, whose text came as that of the state
                yield (str(event.value), None) if meta else str(event.value)
            if meta:
                info: Any = state.aio.get_meta_info(name)
                yield "", await info
            return
    raise_failure(executor)
    if name is not None:
        state._known(name)


def raise_failure(executor: Executor) -> None:
    """Raise what made this state fail; for the program's own state, also what its forks or the
    body did."""
    if executor.error is not None:
        raise executor.failure()
    error = executor.run.error() if executor.path == () else None
    if error is not None:
        raise error
