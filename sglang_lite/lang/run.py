"""One run of a program: what all its states share."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from sglang_lite.errors import ProgramCancelled, ProgramError
from sglang_lite.lang.backends.base import Backend
from sglang_lite.lang.chat_template import ChatTemplate
from sglang_lite.lang.events import EventLog
from sglang_lite.lang.executor import Executor
from sglang_lite.lang.loop import background_loop
from sglang_lite.lang.transcript import Piece
from sglang_lite.lang.work_queue import fresh
from sglang_lite.outputs import Usage
from sglang_lite.sampling_params import SamplingParams

CURRENT_RUN: contextvars.ContextVar[Run | None] = contextvars.ContextVar(
    "sglang_lite_run", default=None
)
"""The run whose body the calling code belongs to."""


class Run:
    """Backend, parameters, executors and the event log of one run.

    ``logprob_fields`` are the run-level defaults of ``LogprobOptions``.  ``log`` is None unless
    somebody streams.  ``eager``: every ``s +=`` waits until it is done.  ``warned``: places of the
    program that were warned about already; None switches warnings off.  ``ahead``: so many tokens
    are asked of an API that is paid by the prompt, see :mod:`~sglang_lite.lang.speculation`.
    """

    def __init__(
        self,
        program: str,
        backend: Backend,
        params: SamplingParams,
        logprob_fields: Mapping[str, Any],
        *,
        stream: bool = False,
        eager: bool = False,
        warned: set[str] | None = None,
        ahead: int | None = None,
    ) -> None:
        self.program = program
        self.backend = backend
        self.params = params
        self.logprob_fields = logprob_fields
        self.eager = eager
        self.ahead = ahead if backend.paid_by_prompt else None
        self.log = EventLog() if stream else None
        self.context = contextvars.copy_context()
        self.executors: list[Executor] = []
        self.body_done = False
        self.body_task: asyncio.Task[Any] | None = None
        self.body_error: BaseException | None = None
        self.ended: Future[None] = Future()
        self._warned = warned
        self._turn_end: tuple[int, ...] | None = None
        self._lock = threading.Lock()
        self.root = Executor(self)
        self.ret_value: Any = None
        self.total_usage = Usage()

    def template(self) -> ChatTemplate:
        """The backend's chat template."""
        return self.backend.template()

    async def turn_end_ids(self) -> tuple[int, ...]:
        """Ids of the control token that ends a message; a ``gen`` inside one stops there."""
        if self._turn_end is None:
            suffix = self.template().suffix(("user", "assistant"))
            ids = await self.backend.encode([Piece(suffix, trusted=True)], start=False)
            control = self.backend.control_ids()
            self._turn_end = tuple(token for token in (ids or ())[:1] if token in control)
        return self._turn_end

    def count(self, usage: Usage) -> None:
        """Add what one sample cost (loop thread)."""
        self.total_usage = self.total_usage + usage

    def warn_once(self, where: str) -> bool:
        """True the first time for one place of the program, unless nobody wants warnings."""
        with self._lock:
            if self._warned is None or where in self._warned:
                return False
            self._warned.add(where)
            return True

    def body_ended(self, error: BaseException | None = None) -> None:
        """The body has returned or raised (any thread)."""
        self.body_error = error
        self.body_done = True
        background_loop().call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for executor in self.executors:
            executor.wake_watchers()

    async def finish(self) -> None:
        """Wait until every state has worked off its queue; raise the first failure nobody saw.

        Must be called once, after the body has ended.
        """
        if self.body_error is not None:
            self.cancel()
        position = 0
        while position < len(self.executors):
            executor = self.executors[position]
            position += 1
            await executor.settled()
            if self.log is not None:
                self.log.end(executor.path)
        if self.log is not None:
            self.log.close()
        if not self.ended.done():
            self.ended.set_result(None)
        error = self.error()
        if error is not None:
            raise error

    def error(self) -> BaseException | None:
        """What failed and was not handled: the body, or a state that no join took care of."""
        if self.body_error is not None:
            return self.stop_reason()
        for executor in self.executors:
            if executor.error is not None and not executor.handled:
                return executor.failure()
        return None

    def stop_reason(self) -> BaseException:
        """Why all states are stopped: the body has failed, or somebody cancelled."""
        cause = self.body_error
        if cause is None or isinstance(cause, asyncio.CancelledError):
            return ProgramCancelled(f"program {self.program!r} was cancelled")
        if isinstance(cause, ProgramError):
            return fresh(cause)
        return ProgramError(self.program, "the program's body", None, _line(cause), cause)

    def request_cancel(self) -> None:
        """:meth:`cancel` from any thread."""
        background_loop().call_soon_threadsafe(self.cancel)

    def cancel(self) -> None:
        """Stop every state (loop thread); requests in flight are aborted."""
        if self.body_task is not None:
            self.body_task.cancel()
        for executor in self.executors:
            executor.cancel()


def _line(error: BaseException) -> str:
    """Where ``error`` was raised, "file.py:12"."""
    frames = error.__traceback__
    where = "-"
    while frames is not None:
        where = f"{frames.tb_frame.f_code.co_filename}:{frames.tb_lineno}"
        frames = frames.tb_next
    return where
