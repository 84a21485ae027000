"""What one state has to do, in order, and the task that works it off.

A program only queues nodes (it runs ahead of the model); the task lives on the background loop
while there is something to do, so a state costs no thread.  Once a node fails, the state has
failed: everything queued and every later access raises the same :class:`ProgramError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang_lite.errors import ProgramCancelled, ProgramError
from sglang_lite.lang import nodes
from sglang_lite.lang.events import ErrorEvent, Event, Path
from sglang_lite.lang.loop import background_loop
from sglang_lite.lang.variable import Variable

if TYPE_CHECKING:
    from sglang_lite.lang.run import Run


@dataclass(frozen=True)
class Operation:
    """Something that the language itself queues between nodes; ``label`` is for messages."""

    label: str
    work: Callable[[], Awaitable[None] | None]
    fail: Callable[[BaseException], None] | None = None
    where: str = "-"


Queued = tuple["nodes.Expression | Operation", tuple[Variable, ...]]


class WorkQueue(ABC):
    """The queue of one state of a run; ``path`` says which fork it is."""

    def __init__(self, run: Run, path: Path) -> None:
        self.run = run
        self.path = path
        self.error: BaseException | None = None
        self._queue: deque[Queued] = deque()
        self._lock = threading.Lock()
        self._draining = False
        self._task: asyncio.Task[None] | None = None
        self._watchers: list[asyncio.Future[None]] = []

    @abstractmethod
    def _execute(self, node: Any, variables: tuple[Variable, ...]) -> Awaitable[None] | None:
        """Do what a node or an operation says, or return what is to be awaited for it."""

    @abstractmethod
    def _unfinished(self) -> list[Variable]:
        """Variables that are not queued any more, but would have been filled by what follows."""

    # Queuing: from any thread.

    def submit_operation(self, operation: Operation) -> None:
        """Queue an operation in order with the nodes."""
        self._enqueue([(operation, ())])

    def _enqueue(self, items: list[Queued]) -> None:
        with self._lock:
            if self.error is None:
                self._queue.extend(items)
                start = not self._draining
                self._draining = True
        if self.error is not None:
            self._fail_items(items)
            raise self.failure()
        if start:
            background_loop().call_soon_threadsafe(self._start)

    def barrier(self) -> Future[None]:
        """Done when everything queued so far is done; raises what failed."""
        done: Future[None] = Future()

        def fail(error: BaseException) -> None:
            if not done.done():
                done.set_exception(error)

        def succeed() -> None:
            if not done.done():
                done.set_result(None)

        operation = Operation("sync", succeed, fail)
        try:
            self.submit_operation(operation)
        except (ProgramError, ProgramCancelled) as error:
            fail(error)
        return done

    async def settled(self) -> None:
        """Wait until everything queued is done or has failed; the error is in ``error``."""
        with contextlib.suppress(ProgramError, ProgramCancelled):
            await asyncio.wrap_future(self.barrier())

    # Working: on the background loop.

    def _start(self) -> None:
        loop = background_loop()
        self._task = self.run.context.copy().run(loop.create_task, self._drain())
        self.wake_watchers()

    async def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._draining = False
                    return
                item = self._queue.popleft()
            node, variables = item
            try:
                pending = self._execute(node, variables)
                if pending is not None:
                    await pending
            except asyncio.CancelledError:
                self.fail(self.run.stop_reason(), item)
                raise
            except Exception as error:
                self.fail(self._program_error(node, error), item)
                return

    def emit(self, event: Event) -> None:
        """Tell the readers of the run's stream, if there is one."""
        if self.run.log is not None:
            self.run.log.append(event)

    # Failing and ending.

    def _program_error(self, node: Any, error: Exception) -> BaseException:
        if isinstance(error, (ProgramError, ProgramCancelled)):
            return error
        label = getattr(node, "label", None) or nodes.pretty(node).strip()
        name = getattr(node, "name", None)
        return ProgramError(
            self.run.program, label, name, getattr(node, "where", "-") or "-", error
        )

    def fail(self, error: BaseException, current: Queued | None = None) -> None:
        """Mark the state as failed; everything queued fails with it.  The first error stays."""
        with self._lock:
            if self.error is None:
                self.error = error
            queue = [*([current] if current else []), *self._queue]
            self._queue.clear()
            self._draining = False
        self.emit(ErrorEvent(self.path, self.error))
        self._fail_items(queue)
        for variable in self._unfinished():
            variable.fail(self.error)
        self.wake_watchers()

    def _fail_items(self, items: list[Queued]) -> None:
        error = self.error
        assert error is not None  # the callers have just seen it
        for node, variables in items:
            for variable in variables:
                variable.fail(error)
            if isinstance(node, Operation) and node.fail is not None:
                node.fail(error)

    def failure(self) -> BaseException:
        """A fresh exception for one waiter, so that tracebacks do not pile up in one object."""
        return fresh(self.error)

    def cancel(self) -> None:
        """Stop working (loop thread); the request in flight is aborted."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
        elif self.error is None:
            self.fail(self.run.stop_reason())

    def cancel_work(self) -> None:
        """:meth:`cancel`, but a state that has worked off its queue stays as it is."""
        if self._draining:
            self.cancel()

    def wake_watchers(self) -> None:
        """Wake those who wait for a variable to be submitted (loop thread)."""
        watchers, self._watchers = self._watchers, []
        for future in watchers:
            if not future.done():
                future.set_result(None)

    async def changed(self) -> None:
        """Wait until more was submitted, or the state or the body ended (loop thread)."""
        future = asyncio.get_running_loop().create_future()
        self._watchers.append(future)
        await future


def fresh(error: BaseException | None) -> BaseException:
    """A copy of a :class:`ProgramError` with the same cause; other errors as they are."""
    if isinstance(error, ProgramError) and error.__cause__ is not None:
        return ProgramError(error.program, error.node, error.variable, error.where, error.__cause__)
    if isinstance(error, ProgramCancelled):
        return ProgramCancelled(*error.args)
    return error if error is not None else RuntimeError("the state has not failed")
