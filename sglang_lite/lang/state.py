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
from sglang_lite.lang.chat_template import ChatTemplate
from sglang_lite.lang.events import Event
from sglang_lite.lang.executor import Executor, fresh
from sglang_lite.lang.loop import (
    BODIES,
    aiterate,
    await_on,
    block_on,
    iterate,
    on_background_loop,
)
from sglang_lite.lang.nodes import Expression, as_expression, source_line
from sglang_lite.lang.roles import Appending
from sglang_lite.lang.run import CURRENT_RUN, Run
from sglang_lite.lang.variable import Variable
from sglang_lite.outputs import Usage

if TYPE_CHECKING:
    from sglang_lite.lang.fork import Copy, ProgramStateGroup
    from sglang_lite.lang.scopes import Attempts, Scratch


class ProgramState(Appending):
    """A prompt that grows by ``s += expression``; ``s["x"]`` waits for and gives a value.

    Everything that reads waits until what it reads is there, and raises :class:`ProgramError`
    once the state has failed.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._run: Run = executor.run

    @property
    def ret_value(self) -> Any:
        """What the program's function has returned."""
        return self._run.ret_value

    @property
    def aio(self) -> AsyncProgramState:
        """The awaitable face of the same state: ``await s.aio["x"]``."""
        return AsyncProgramState(self._executor)

    @property
    def template(self) -> ChatTemplate:
        """The chat template that turns roles into text; ``template.name`` says where it is from."""
        return self._run.template()

    # Waiting

    def _wait(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        with self._lent_place():
            return block_on(make)

    def _iterate(self, make: Callable[[], AsyncIterator[Any]]) -> Any:
        return iterate(make)

    def _lent_place(self) -> Any:
        run = self._run
        return BODIES.waiting() if not run.body_done and CURRENT_RUN.get() is not run else _nothing

    def _read(self, name: str, read: Callable[[Variable], Any]) -> Any:
        variable = self._known(name)
        if variable is None or (on_background_loop() and not variable.done.done()):
            return self._wait(lambda: self._read_later(name, read))
        try:
            variable.done.result()
        except Exception as error:
            raise fresh(error) from error.__cause__
        return read(variable)

    async def _read_later(self, name: str, read: Callable[[Variable], Any]) -> Any:
        variable = self._known(name)
        while variable is None:
            await self._executor.changed()
            variable = self._known(name)
        try:
            await asyncio.wrap_future(variable.done)
        except Exception as error:
            raise fresh(error) from error.__cause__
        return read(variable)

    def _known(self, name: str) -> Variable | None:
        """The latest variable of this name; None if it may still be submitted."""
        variables = self._executor.variables.get(name)
        if variables:
            return variables[-1]
        if self._executor.error is not None:
            raise self._executor.failure()
        if self._run.body_done or CURRENT_RUN.get() is self._run:
            known = ", ".join(map(repr, self._executor.variables)) or "none"
            raise KeyError(f"{name!r} (variables of this state: {known})")
        return None

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

    # Reading

    def __getitem__(self, name: str) -> Any:
        return self._read(name, lambda variable: variable.value)

    get_var = __getitem__

    def __contains__(self, name: str) -> bool:
        """True as soon as a variable of this name was submitted."""
        return name in self._executor.variables

    def raw(self, name: str) -> Any:
        """The text of a variable as it was generated; a list for n samples."""
        return self._read(name, lambda variable: variable.text)

    def all(self, name: str) -> Any:
        """The values of every variable that had this name, in order of submission."""
        self._read_now(name)
        executor = self._executor

        async def values() -> list[Any]:
            variables = list(executor.variables[name])
            for variable in variables:
                await asyncio.wrap_future(variable.done)
            return [variable.value for variable in variables]

        return self._wait(values)

    def _read_now(self, name: str) -> None:
        if name not in self._executor.variables:
            self._known(name)

    def get_meta_info(self, name: str) -> Any:
        """SGLang's meta info of a gen or select (a list for n samples)."""
        return self._read(name, lambda variable: variable.per_sample(lambda s: s.meta))

    def finish_reason(self, name: str) -> Any:
        """ "stop" or "length": why a gen ended (a list for n samples)."""
        return self._read(name, lambda v: v.per_sample(lambda s: _finish(s, "type")))

    def stop_reason(self, name: str) -> Any:
        """The stop text or token id that ended a gen; None for the end of its constraint."""
        return self._read(name, lambda v: v.per_sample(lambda s: _finish(s, "matched")))

    def probs(self, name: str) -> dict[str, float]:
        """The distribution over the choices of a select."""
        return self._read(name, lambda variable: variable.per_sample(lambda s: s.probs))

    def usage(self, name: str) -> Usage:
        """What a gen cost (a list for n samples)."""
        return self._read(name, lambda variable: variable.per_sample(lambda s: s.usage))

    def text(self) -> str:
        """The whole text, control tokens included."""
        return self._settled(lambda: self._executor.transcript.text())

    def messages(self) -> list[dict[str, Any]]:
        """The messages; the one whose role is still open has ``partial=True``."""
        return self._settled(
            lambda: [message.to_dict() for message in self._executor.transcript.all_messages()]
        )

    def sync(self) -> None:
        """Wait until everything appended is worked off; outside the program, until its end."""
        return self._settled(lambda: None)

    def _settled(self, read: Callable[[], Any]) -> Any:
        outside = CURRENT_RUN.get() is not self._run

        async def settle() -> Any:
            if outside:  # the body may be about to append more
                await asyncio.wrap_future(self._run.ended)
                streams.raise_failure(self._executor)
            barrier = self._executor.barrier()
            try:
                await asyncio.wrap_future(barrier)
            except Exception as error:
                raise fresh(error) from error.__cause__
            return read()

        return self._wait(settle)

    def error(self) -> BaseException | None:
        """What made this state fail, or None; waits like :meth:`sync`, but not once it failed."""
        if self._executor.error is not None:
            return self._executor.failure()
        own = self._executor.path == ()
        outside = CURRENT_RUN.get() is not self._run

        async def settled_error() -> BaseException | None:
            if outside:
                await asyncio.wrap_future(self._run.ended)
            await self._executor.settled()
            if self._executor.error is not None:
                return self._executor.failure()
            return self._run.error() if own else None

        return self._wait(settled_error)

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

    def total_usage(self) -> Usage:
        """The sum over every gen of this state's run so far, forks included."""
        return self._run.total_usage

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


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *exc_info: object) -> None: ...


_nothing = _Nothing()


def _finish(sample: Any, field: str) -> Any:
    return None if sample.finish_reason is None else getattr(sample.finish_reason, field)
