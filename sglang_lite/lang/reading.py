"""What can be read of a state: its variables, its text, and what they cost.

What waits goes through ``_wait``, which blocks in :class:`~sglang_lite.lang.state.ProgramState`
and returns an awaitable in its ``async`` twin.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from sglang_lite.lang import streams
from sglang_lite.lang.chat_template import ChatTemplate
from sglang_lite.lang.executor import Executor
from sglang_lite.lang.loop import BODIES, block_on, iterate, on_background_loop
from sglang_lite.lang.roles import Appending
from sglang_lite.lang.run import CURRENT_RUN, Run
from sglang_lite.lang.variable import Variable
from sglang_lite.lang.work_queue import fresh
from sglang_lite.outputs import Usage


class Reading(Appending):
    """The reading half of a state.

    Everything waits until what it reads is there, and raises :class:`ProgramError` once the state
    has failed.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._run: Run = executor.run

    @property
    def ret_value(self) -> Any:
        """What the program's function has returned."""
        return self._run.ret_value

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

    def total_usage(self) -> Usage:
        """The sum over every gen of this state's run so far, forks included."""
        return self._run.total_usage


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *exc_info: object) -> None: ...


_nothing = _Nothing()


def _finish(sample: Any, field: str) -> Any:
    return None if sample.finish_reason is None else getattr(sample.finish_reason, field)
