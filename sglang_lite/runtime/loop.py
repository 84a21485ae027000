"""The engine's thread: take in what arrived, run one step, repeat.

Callers' threads only put messages into the inbox, set flags, and read counters.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from sglang_lite.errors import EngineError, InvalidRequest, QueueFull
from sglang_lite.runtime import progress
from sglang_lite.runtime.config import EngineConfig
from sglang_lite.runtime.core import EngineCore
from sglang_lite.runtime.device import on
from sglang_lite.runtime.messages import GenerateRequest
from sglang_lite.runtime.models.base import Model
from sglang_lite.runtime.models.kernels import give_back_freed_memory
from sglang_lite.runtime.output_stream import OutputStream
from sglang_lite.runtime.request import Request, Status
from sglang_lite.runtime.samples import new_samples
from sglang_lite.runtime.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sglang_lite.constrained import CompiledGrammar

log = logging.getLogger("sglang_lite")

T = TypeVar("T")
STOP = "stop"

QUIET_SECONDS = 1.0
"""After so long without work, memory that is free but held by the allocator is given back."""

WATCH_SECONDS = 60.0
"""A step that takes longer is logged, with the place where it is."""


class EngineLoop:
    """An :class:`EngineCore` and the thread that drives it.

    The thread makes the model too; what ``load`` raises is raised here.  OpenMP's helpers belong to
    the thread that first computed with them, and where several threads have some, together more
    than there are processors, they sleep between operators: a step takes half as long again.
    """

    core: EngineCore

    def __init__(
        self, load: Callable[[], Model], tokenizer: Tokenizer, config: EngineConfig
    ) -> None:
        self.tokenizer = tokenizer
        self.config = config
        # A list of requests, a (function, future) to answer, None to wake up, or STOP.
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # Reentrant: the garbage collector may end a dropped stream, which aborts, anywhere.
        self._lock = threading.RLock()
        self._live: dict[str, list[Request]] = {}
        self._live_samples = 0
        self._abort_wanted = False
        self._arrivals = itertools.count()
        self._dead: BaseException | None = None
        self._stopped = threading.Event()
        loaded: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(load, loaded), name="sglang-lite-engine", daemon=True
        )
        self._thread.start()
        loaded.result()
        watch = threading.Thread(target=self._watch, name="sglang-lite-watchdog", daemon=True)
        watch.start()

    # Any thread

    def submit(
        self, source: GenerateRequest, grammar: CompiledGrammar | None, submitted_at: float
    ) -> OutputStream:
        """Queue one request, which came at ``submitted_at`` and has been compiled since.

        Raises :class:`QueueFull`, :class:`EngineError`, :class:`InvalidRequest` for a used rid.
        """
        compile_s = 0.0 if grammar is None else time.perf_counter() - submitted_at
        rid = source.rid or uuid.uuid4().hex
        stream = OutputStream(rid, source.sampling_params.n, lambda: self.abort(rid))
        requests = self._register(source, rid, stream)
        try:
            for request in requests:
                request.submitted_at = submitted_at
                request.usage.compile_s = compile_s
                # In the caller's thread: the first mask of a new grammar takes its time.
                if grammar is not None:
                    progress.start(request, grammar)
        except BaseException:
            for request in requests:
                request.status = Status.FINISHED
                self._forget(request)
            raise
        self._inbox.put(requests)
        return stream

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Count a request among those whose constraint is being compiled."""
        metrics = self.core.metrics
        with self._lock:
            metrics.compiling += 1
        try:
            yield
        finally:
            with self._lock:
                metrics.compiling -= 1

    def _register(self, source: GenerateRequest, rid: str, stream: OutputStream) -> list[Request]:
        """Make the samples and note their name, if there is room for them."""
        samples, limit = source.sampling_params.n, self.config.max_queued_requests
        with self._lock:
            if self._dead is not None:
                raise EngineError(f"the engine is not running: {self._dead}") from self._dead
            if rid in self._live:
                raise InvalidRequest("rid", rid, "a name that no unfinished request has")
            queued = self._queued()
            if queued + samples > limit:
                self.core.metrics.rejected += 1
                raise QueueFull(f"{queued} samples are waiting, and {limit} is the limit")
            numbers = list(itertools.islice(self._arrivals, samples))
            requests = new_samples(source, rid, stream, numbers, self.tokenizer, self.config)
            self._live[rid] = requests
            self._live_samples += samples
        return requests

    def abort(self, rid: str | None) -> None:
        """Give up one request, or all of them (None)."""
        with self._lock:
            rids = list(self._live) if rid is None else [rid]
            for each in rids:
                for request in self._live.get(each, ()):
                    request.aborted = self._abort_wanted = True
        # Wakes the loop if it is idle; a busy one looks at the flags before its next step.
        self._inbox.put(None)

    def call(self, function: Callable[[], T]) -> T:
        """Run ``function`` on the engine's thread between two steps and return its result."""
        future: Future[T] = Future()
        with self._lock:
            if self._dead is not None:
                raise EngineError(f"the engine is not running: {self._dead}") from self._dead
            self._inbox.put((function, future))
        return future.result()

    def shutdown(self) -> None:
        """Stop the thread; what is unfinished fails with :class:`EngineError`.  Idempotent."""
        self._inbox.put(STOP)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _watch(self) -> None:
        """Log where the engine's thread is, once for each step that takes too long."""
        reported = -1
        while not self._stopped.wait(WATCH_SECONDS / 4):
            metrics = self.core.metrics
            if metrics.seconds_since_step > WATCH_SECONDS and reported != metrics.steps:
                reported = metrics.steps
                log.error(
                    "step %d has not ended for %d s:\n%s",
                    reported + 1,
                    metrics.seconds_since_step,
                    self.where(),
                )

    def where(self) -> str:
        """What the engine's thread is doing now, as a stack of calls."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else "the thread has ended"

    def stats(self) -> dict[str, Any]:
        """Counters and gauges; never waits for the loop."""
        return self.core.metrics.numbers(self.core.scheduler, self._queued())

    def _queued(self) -> int:
        return max(self._live_samples - len(self.core.scheduler.running), 0)

    # The engine's thread

    def _run(self, load: Callable[[], Model], loaded: Future[None]) -> None:
        try:
            self.core = EngineCore(load(), self.config, self._forget)
        except BaseException as error:
            loaded.set_exception(error)
            return
        loaded.set_result(None)
        try:
            with torch.inference_mode(), on(self.core.model.device):
                while self._take_in():
                    if self._abort_wanted:
                        self._abort_wanted = False
                        self.core.finish_aborted()
                    self.core.step()
            self._die(EngineError("it was shut down"))
        except BaseException as error:
            log.exception("the engine's loop failed")
            self._die(error)
        self.core.let_go()
        give_back_freed_memory()

    def _take_in(self) -> bool:
        """Handle the inbox; waits for a message if there is nothing to do.  False: stop."""
        idle = self.core.metrics.idle = not self.core.busy
        while True:
            try:
                message = self._wait() if idle else self._inbox.get(block=False)
            except queue.Empty:
                return True
            if idle:
                self.core.metrics.begin()
            idle = False
            if message is STOP:
                return False
            if isinstance(message, list):
                self.core.add(message)
                # Its abort may have come before it did.
                self._abort_wanted |= any(request.aborted for request in message)
            elif message is not None:
                _answer(*message)

    def _wait(self) -> Any:
        """The next message, whenever it comes; a chunk of a prompt leaves 10 MB of free pages."""
        try:
            return self._inbox.get(timeout=QUIET_SECONDS)
        except queue.Empty:
            give_back_freed_memory()
            return self._inbox.get()

    def _forget(self, request: Request) -> None:
        """A request's name is free again once all of its samples are done."""
        with self._lock:
            self._live_samples -= 1
            siblings = self._live.get(request.rid, [])
            if all(sibling.status is Status.FINISHED for sibling in siblings):
                self._live.pop(request.rid, None)
                # Without this cycle they, their stream and its engine are freed at once.
                siblings.clear()

    def _die(self, error: BaseException) -> None:
        """Nothing runs any more: every present and future waiter gets an error."""
        self._stopped.set()
        with self._lock:
            self._dead = error
            live = list(self._live.values())
            self._live.clear()
        for requests in live:
            requests[0].stream.fail(EngineError(f"the engine stopped: {error}"))
        while True:
            try:
                message = self._inbox.get(block=False)
            except queue.Empty:
                return
            if isinstance(message, tuple) and isinstance(message[1], Future):
                message[1].set_exception(EngineError(f"the engine stopped: {error}"))


def _answer(function: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
