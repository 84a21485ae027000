"""The object ``s`` of a program: a face of an executor, blocking or awaitable.

Both faces are one class: what waits goes through ``_wait``, which blocks in :class:`ProgramState`
and returns an awaitable in :class:`AsyncProgramState` (``await s["x"]``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any

from sglang_lite.errors import InvalidRequest, NotSupported
from sglang_lite.lang import streams
from sglang_lite.lang.events import Event
from sglang_lite.lang.loop import aiterate, await_on, iterate
from sglang_lite.lang.nodes import Expression, as_expression, source_line
from sglang_lite.lang.reading import Reading
from sglang_lite.lang.variable import Variable

if TYPE_CHECKING:
    from sglang_lite.lang.fork import Copy, ProgramStateGroup
    from sglang_lite.lang.scopes import Attempts, Scratch


class ProgramState(Reading):
    """A prompt that grows by ``s += expression``; ``s["x"]`` waits for and gives a value.

    Everything that reads waits until what it reads is there, and raises :class:`ProgramError`
    once the state has failed.
    """

    @property
    def aio(self) -> AsyncProgramState:
        """The awaitable face of the same state: ``await s.aio["x"]``."""
        return AsyncProgramState(self._executor)

    # Appending

    def __iadd__(self, other: Any) -> ProgramState:
        self._append(as_expression(other))
        return self

    def _append(self, expression: Expression) -> None:
        self._executor.submit(expression)
        if self._run.eager:
            self.sync()

    def _close(self, end: Expression) -> None:
        if self._executor.error is None:
            self._append(end)

    def set_var(self, name: str, value: Any) -> None:
        """Set a variable; later reads give ``value`` until the name is generated again."""
        if not isinstance(name, str):
            raise InvalidRequest("name", name, "a str")
        self._executor.publish(Variable.holding(name, value))

    __setitem__ = set_var

    # The run

    def done(self) -> bool:
        """True when the run this state belongs to has ended; never waits."""
        return self._run.ended.done()

    def __await__(self) -> Generator[Any, None, ProgramState]:
        return self._awaited().__await__()

    async def _awaited(self) -> ProgramState:
        await asyncio.wrap_future(self._run.ended)
        error = self._run.error()
        if error is not None:
            raise error
        return self

    def cancel(self) -> None:
        """Stop the run; requests in flight are aborted, waiters get :class:`ProgramCancelled`."""
        self._run.request_cancel()

    def __repr__(self) -> str:
        executor = self._executor
        state = "failed" if executor.error is not None else "ok"
        names = ", ".join(executor.variables)
        return f"<{type(self).__name__} of {self._run.program!r}, {state}, variables: {names}>"

    # Forking

    def fork(self, size: int = 1, position_ids_offset: Any = None) -> ProgramStateGroup:
        """``size`` states that go on from here, each on its own."""
        from sglang_lite.lang.fork import ProgramStateGroup

        if position_ids_offset is not None:
            raise NotSupported("fork(position_ids_offset=...): positions follow the text here")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InvalidRequest("size", size, "an integer, at least 1")
        where = source_line()
        children = [type(self)(self._executor.fork(where)) for _ in range(size)]
        return ProgramStateGroup(self, children)

    def copy(self) -> Copy:
        """Context manager: a fork whose new variables come back, as values, at the end."""
        from sglang_lite.lang.fork import Copy

        return Copy(self)

    def scratch(self) -> Scratch:
        """Context manager: the text appended inside vanishes at the end, the values stay."""
        from sglang_lite.lang.scopes import Scratch

        return Scratch(self)

    def attempt(self, retries: int = 1, *, keep_feedback: bool = False) -> Attempts:
        """Try a block again while its checks fail, each time from the same text::

            for attempt in s.attempt(retries=2):
                with attempt:
                    s += sgl.gen("x", type=int)
                    attempt.check(s["x"] % 2 == 0, feedback="It must be even. ")

        A failed check (or an :class:`Incomplete` value) takes text, variables and roles back; the
        feedback is seen by the next attempt only, unless ``keep_feedback``.  The last attempt
        raises :class:`CheckFailed`.
        """
        from sglang_lite.lang.scopes import Attempts

        return Attempts(self, retries, keep_feedback)

    # Streaming

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text as it grows, or that of one variable; ends when all was delivered.

        Without ``stream=True`` everything comes at once.  Raises after the last delta if the
        state failed.
        """
        return iterate(lambda: streams.texts(self, var_name))

    def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """:meth:`text_iter` for coroutines.

        ``return_meta_data`` gives pairs (text, meta info); the info comes with the last pair, the
        others have None.
        """
        return aiterate(lambda: streams.texts(self, var_name, return_meta_data))

    def events(self) -> AsyncIterator[Event]:
        """All events of the run from its start, forks included; raises at the end if it failed."""
        return aiterate(lambda: streams.events(self._run))


class AsyncProgramState(ProgramState):
    """The ``s`` of an ``async def`` program: everything that waits returns an awaitable."""

    def _wait(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await_on(make)

    def _iterate(self, make: Callable[[], AsyncIterator[Any]]) -> Any:
        return aiterate(make)

    def _read(self, name: str, read: Callable[[Variable], Any]) -> Awaitable[Any]:
        self._known(name)
        return await_on(lambda: self._read_later(name, read))

    get_var = __getitem__ = lambda self, name: self._read(name, lambda variable: variable.value)
