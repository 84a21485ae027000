"""The reading end of a request: an iterator, sync or async, over its outputs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

from sglang_lite.errors import EngineError
from sglang_lite.outputs import RequestOutput


def call_in(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Have an event loop run ``callback`` soon, from any thread; a closed loop has no readers."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


class OutputStream:
    """The outputs of one request, in order, until every one of its ``samples`` has finished.

    Read it once, either with ``for`` or with ``async for``.  What was produced before a failure is
    delivered first, then :class:`EngineError` is raised, at every further read too.  It keeps its
    ``owner``, the engine, alive.  Leaving an
    ``async for`` early aborts the request; with a plain ``for``, call :meth:`abort`.
    """

    def __init__(self, rid: str, samples: int, abort: Callable[[], None]) -> None:
        self.rid = rid
        self.samples = samples
        self.owner: object = None
        self._abort = abort
        self._unfinished = samples
        self._outputs: deque[RequestOutput] = deque()
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._listener: Callable[[], None] | None = None

    # The engine's thread writes.

    def put(self, output: RequestOutput) -> None:
        """Append one output and wake the reader."""
        with self._changed:
            self._outputs.append(output)
            if output.finish_reason is not None:
                self._unfinished -= 1
            if len(self._outputs) == 1:  # else the reader knows already
                self._wake()

    def fail(self, error: BaseException) -> None:
        """End the stream: after the outputs so far, every read raises an error with this cause."""
        with self._changed:
            if self._error is None and self._unfinished:
                self._error = error
                self._wake()

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._listener is not None:
            self._listener()

    # The caller reads.

    def abort(self) -> None:
        """Give the request up; its unfinished samples end with ``finish_reason`` "abort"."""
        if not self.finished:
            self._abort()

    @property
    def finished(self) -> bool:
        """True once the engine will add nothing more (there may be outputs left to read)."""
        return self._unfinished == 0 or self._error is not None

    def subscribe(self, listener: Callable[[], None] | None) -> None:
        """Have ``listener`` called, on the engine's thread, once there is something to take.

        After each call it must take everything; until then there are no more calls.
        """
        with self._changed:
            self._listener = listener
            if listener is not None and (self._outputs or self.finished):
                listener()

    def take(self) -> tuple[list[RequestOutput], bool]:
        """The outputs not yet read, without waiting, and whether they are the last ones.

        Raises :class:`EngineError` of a failed request once its outputs have been taken.
        """
        with self._changed:
            outputs = list(self._outputs)
            self._outputs.clear()
            if not outputs:
                self._raise_error()
            elif self._error is not None:
                self._wake()  # what remains to be taken is the error
            return outputs, self._unfinished == 0

    def __iter__(self) -> Iterator[RequestOutput]:
        return self

    def __next__(self) -> RequestOutput:
        with self._changed:
            while not self._outputs:
                self._raise_error()
                if self._unfinished == 0:
                    raise StopIteration
                self._changed.wait()
            return self._outputs.popleft()

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        loop = asyncio.get_running_loop()
        news = asyncio.Event()
        self.subscribe(partial(call_in, loop, news.set))
        try:
            finished = False
            while not finished:
                await news.wait()
                news.clear()
                outputs, finished = self.take()
                for output in outputs:
                    yield output
        finally:
            self.subscribe(None)
            self.abort()

    def _raise_error(self) -> None:
        if self._error is None:
            return
        # A fresh exception for each reader: a shared one would collect all their tracebacks.
        if isinstance(self._error, EngineError):
            raise type(self._error)(*self._error.args) from self._error.__cause__
        raise EngineError(f"request {self.rid}: {self._error}") from self._error
