"""One event loop on one background thread per process, and the ways in and out of it.

The interpreter is written once, as coroutines on this loop.  Threads block on it with
:func:`block_on`, coroutines of any other loop (Jupyter's, a server's) await it with
:func:`await_on`; both carry the caller's context variables.  Bodies of programs, which may block,
run in a :class:`BodyPool`.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_loop_pid = -1


def background_loop() -> asyncio.AbstractEventLoop:
    """The process's loop, started on first use (again in a forked child process)."""
    global _loop, _loop_pid
    if _loop is not None and _loop_pid == os.getpid():
        return _loop
    with _lock:
        if _loop is None or _loop_pid != os.getpid():
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="sglang-lite-loop", daemon=True).start()
            _loop, _loop_pid = loop, os.getpid()
    return _loop


def on_background_loop() -> bool:
    """True for code that runs on the background loop itself: blocking there would hang."""
    try:
        return asyncio.get_running_loop() is _loop
    except RuntimeError:
        return False


def forbid_blocking() -> None:
    """Raise where waiting would stop the loop that everything waits for."""
    if on_background_loop():
        raise RuntimeError("a blocking call inside an async program: use its awaitable twin")


def spawn(make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
    """Start ``make()`` on the background loop, in a copy of the caller's context."""
    context = contextvars.copy_context()
    loop = background_loop()
    outcome: Future[T] = Future()
    started: list[asyncio.Task[T]] = []

    def start() -> None:
        if outcome.cancelled():
            return
        task = context.run(loop.create_task, make())
        started.append(task)
        task.add_done_callback(finish)

    def finish(task: asyncio.Task[T]) -> None:
        if task.cancelled():
            outcome.cancel()
        elif not outcome.cancelled():
            error = task.exception()
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(task.result())

    def cancelled(future: Future[T]) -> None:
        if future.cancelled() and started and not started[0].done():
            loop.call_soon_threadsafe(started[0].cancel)

    outcome.add_done_callback(cancelled)
    loop.call_soon_threadsafe(start)
    return outcome


def block_on(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run ``make()`` on the background loop and wait for it; an interrupt cancels it."""
    forbid_blocking()
    future = spawn(make)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def await_on(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Await ``make()``, which runs on the background loop; cancelling this cancels that."""
    if on_background_loop():
        return await make()
    return await asyncio.wrap_future(spawn(make))


def iterate(make: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
    """Iterate over an async iterator of the background loop from a thread."""
    source = _Source(make)
    try:
        while True:
            more, item = block_on(source.following)
            if not more:
                return
            yield item
    finally:
        block_on(source.close)


async def aiterate(make: Callable[[], AsyncIterator[T]]) -> AsyncIterator[T]:
    """Iterate over an async iterator of the background loop from any other loop."""
    source = _Source(make)
    try:
        while True:
            more, item = await await_on(source.following)
            if not more:
                return
            yield item
    finally:
        await await_on(source.close)


class _Source:
    """An async iterator that is made, asked and closed on the background loop."""

    def __init__(self, make: Callable[[], AsyncIterator[Any]]) -> None:
        self._make = make
        self._items: AsyncIterator[Any] | None = None

    async def following(self) -> tuple[bool, Any]:
        """(True, the next item), or (False, None) at the end."""
        if self._items is None:
            self._items = self._make()
        try:
            return True, await self._items.__anext__()
        except StopAsyncIteration:
            return False, None

    async def close(self) -> None:
        """Close the iterator, if it was made and can be closed."""
        close = getattr(self._items, "aclose", None)
        if close is not None:
            await close()


class BodyPool:
    """At most ``limit`` running threads for blocking user code, made when needed.

    A body that waits for other bodies (a nested batch) steps aside meanwhile, see
    :meth:`waiting`, so that nested use cannot deadlock even at a limit of 1.
    """

    def __init__(self, limit: int, idle_s: float = 5.0) -> None:
        self.limit = limit
        self._idle_s = idle_s
        self._condition = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        self._running = 0
        self._idle = 0
        self._local = threading.local()

    def submit(self, job: Callable[[], None]) -> None:
        """Queue ``job``, which must not raise."""
        with self._condition:
            self._jobs.append(job)
            self._hire()

    def _hire(self) -> None:
        if self._idle >= len(self._jobs):
            self._condition.notify()
        elif self._running < self.limit:
            self._running += 1
            threading.Thread(target=self._work, name="sglang-lite-body", daemon=True).start()

    def _work(self) -> None:
        self._local.worker = True
        while True:
            with self._condition:
                while not self._jobs:
                    self._idle += 1
                    woken = self._condition.wait(self._idle_s)
                    self._idle -= 1
                    if not woken and not self._jobs:
                        self._running -= 1
                        return
                if self._running > self.limit:  # lent places came back: one thread too many
                    self._running -= 1
                    return
                job = self._jobs.popleft()
            job()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a wait for other bodies: lends this thread's place to another one."""
        if not getattr(self._local, "worker", False):
            yield
            return
        with self._condition:
            self._running -= 1
            if self._jobs:
                self._hire()
        try:
            yield
        finally:
            with self._condition:
                self._running += 1


BODIES = BodyPool(limit=64)
"""The process's threads for bodies of programs that are plain functions."""
