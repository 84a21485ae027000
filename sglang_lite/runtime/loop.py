"""The engine's thread: take in what arrived, run one step, hand out what it produced; repeat.

Everything below runs on that one thread, except :meth:`EngineLoop.submit`, :meth:`abort`,
:meth:`call`, :meth:`stats` and :meth:`shutdown`, which put a message into the inbox or read
counters.  A failure ends the requests that it concerns; the loop goes on.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from sglang_lite.errors import EngineError, InvalidRequest, QueueFull
from sglang_lite.outputs import FinishReason
from sglang_lite.runtime import progress
from sglang_lite.runtime.config import EngineConfig
from sglang_lite.runtime.detokenizer import IncrementalDetokenizer, StopScanner
from sglang_lite.runtime.invariants import check_invariants
from sglang_lite.runtime.messages import GenerateRequest
from sglang_lite.runtime.metrics import Metrics
from sglang_lite.runtime.models.base import Model
from sglang_lite.runtime.output_stream import OutputStream
from sglang_lite.runtime.request import Request, Status
from sglang_lite.runtime.runner import run_step
from sglang_lite.runtime.sampler import derived_seed
from sglang_lite.runtime.scheduler import Scheduler
from sglang_lite.runtime.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sglang_lite.constrained import CompiledGrammar

log = logging.getLogger("sglang_lite")

T = TypeVar("T")
STOP = "stop"


class EngineLoop:
    """The scheduler, the model and the thread that drives them."""

    def __init__(self, model: Model, tokenizer: Tokenizer, config: EngineConfig) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.config = config
        self.scheduler = Scheduler(config)
        self.metrics = Metrics(config.decode_log_interval)
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._live: dict[str, list[Request]] = {}
        self._live_samples = 0
        self._abort_wanted = False
        self._arrivals = itertools.count()
        self._dead: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="sglang-lite-engine", daemon=True)
        self._thread.start()

    # Any thread

    def submit(
        self, source: GenerateRequest, grammar: CompiledGrammar | None, submitted_at: float
    ) -> OutputStream:
        """Queue one request, which came at ``submitted_at`` and has been compiled since.

        Raises :class:`QueueFull`, :class:`EngineError`, :class:`InvalidRequest` for a used rid.
        """
        compile_s = time.perf_counter() - submitted_at
        rid = source.rid or uuid.uuid4().hex
        stream = OutputStream(rid, source.sampling_params.n, lambda: self.abort(rid))
        with self._lock:
            if self._dead is not None:
                raise EngineError(f"the engine is not running: {self._dead}") from self._dead
            if rid in self._live:
                raise InvalidRequest("rid", rid, "a name that no unfinished request has")
            samples = source.sampling_params.n
            queued, limit = self._queued(), self.config.max_queued_requests
            if queued + samples > limit:
                self.metrics.rejected += 1
                raise QueueFull(f"{queued} samples are waiting, and {limit} is the limit")
            requests = [self._sample(source, rid, index, stream) for index in range(samples)]
            for request in requests:
                request.submitted_at = submitted_at
                request.usage.compile_s = compile_s if grammar is not None else 0.0
            self._live[rid] = requests
            self._live_samples += samples
            self._inbox.put((requests, grammar))
        return stream

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

    def stats(self) -> dict[str, Any]:
        """Counters and gauges; never waits for the loop."""
        return self.metrics.numbers(self.scheduler, self._queued())

    def _queued(self) -> int:
        return max(self._live_samples - len(self.scheduler.running), 0)

    # The engine's thread

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while self._take_in():
                    self._finish_aborted()
                    self._step()
            self._die(EngineError("it was shut down"))
        except BaseException as error:
            log.exception("the engine's loop failed")
            self._die(error)

    def _take_in(self) -> bool:
        """Handle the inbox; waits for a message if there is nothing to do.  False: stop."""
        idle = not self.scheduler.running and not self.scheduler.waiting
        self.metrics.idle = idle
        while True:
            try:
                message = self._inbox.get(block=idle)
            except queue.Empty:
                return True
            idle = False
            if message is STOP:
                return False
            if message is None:
                continue
            subject, detail = message
            if callable(subject):
                _answer(subject, detail)
            else:
                self._add(subject, detail)

    def _sample(
        self, source: GenerateRequest, rid: str, index: int, stream: OutputStream
    ) -> Request:
        params = source.sampling_params
        number = next(self._arrivals)
        eos = frozenset(self.tokenizer.eos_token_ids)
        ends_at_eos = params.constraint is not None or not params.ignore_eos
        limit = self.config.context_length
        if params.max_new_tokens is not None:
            limit = min(limit, len(source.input_ids) + params.max_new_tokens)

        seed = params.seed
        if seed is None:
            seed = derived_seed(self.config.random_seed, number - index)

        def piece_bytes(token: int) -> bytes:
            return self.tokenizer.piece_bytes(token, skip_special_tokens=params.skip_special_tokens)

        return Request(
            source=source,
            rid=rid,
            index=index,
            stream=stream,
            seed=seed,
            arrival=number,
            length_limit=limit,
            stop_ids=frozenset(params.stop_token_ids) | (eos if ends_at_eos else frozenset()),
            eos_ids=eos,
            detokenizer=IncrementalDetokenizer(piece_bytes),
            stops=StopScanner(params.stop, params.stop_regex, params.no_stop_trim),
        )

    def _add(self, requests: list[Request], grammar: CompiledGrammar | None) -> None:
        for request in requests:
            if request.status is Status.FINISHED:
                continue
            self.scheduler.add(request)
            self._abort_wanted |= request.aborted
            if grammar is not None:
                self._guard(request, partial(self._start_grammar, request, grammar))
            if request.finish_reason is not None and request.status is Status.WAITING:
                self._finish(request)

    def _start_grammar(self, request: Request, grammar: CompiledGrammar) -> None:
        from sglang_lite.constrained import GrammarMatcher, allocate_token_bitmask

        request.matcher = GrammarMatcher(grammar)
        request.mask = allocate_token_bitmask(1, self.model.config.vocab_size)
        progress.start(request)

    def _finish_aborted(self) -> None:
        if not self._abort_wanted:
            return
        self._abort_wanted = False
        for request in [*self.scheduler.waiting, *self.scheduler.running]:
            if request.aborted:
                request.finish_reason = FinishReason("abort", message="aborted by the caller")
                self._finish(request)

    def _step(self) -> None:
        started = time.perf_counter()
        step: dict[Request, int] = {}
        try:
            step = self.scheduler.schedule()
            for request in self.scheduler.ended:
                self._finish(request)
            self.scheduler.ended.clear()
            if not step:
                return
            for request in step:
                request.started_at = request.started_at or started
            results = run_step(self.model, step)
        except Exception as error:
            self._fail_step(error)
            return
        for request in step:
            # A request may have failed with a sibling sample in this very step.
            if request.status is Status.RUNNING:
                self._guard(request, partial(self._apply, request, results.get(request)))
        self.metrics.step_done(started, step, self.scheduler)

    def _apply(self, request: Request, result: int | Exception | None) -> None:
        """Take in what a step produced for one request."""
        if isinstance(result, Exception):
            raise result
        if request.prefilling or request.protected < request.prompt_len:
            self.scheduler.checkpoint(request)
        if result is not None:
            request.first_token_at = request.first_token_at or time.perf_counter()
            progress.accept(request, result)
        elif request.pending == 0:
            request.finish_reason = FinishReason("length")
        if request.finish_reason is not None:
            self._finish(request)
        elif (output := progress.news(request)) is not None:
            self.metrics.produced(len(output.token_ids))
            request.stream.put(output)

    def _finish(self, request: Request) -> None:
        """Release a request's resources and send its last output."""
        self.scheduler.finish(request)
        progress.flush_text(request)
        self.metrics.request_done(request)
        output = progress.news(request)
        assert output is not None
        self.metrics.produced(len(output.token_ids))
        self._forget(request)
        request.stream.put(output)

    def _guard(self, request: Request, action: Callable[[], None]) -> None:
        """Do something for one request; if it fails, that request ends with the error."""
        try:
            action()
        except Exception as error:
            log.warning("request %s failed: %s", request.rid, error)
            self._fail(request, error)

    def _fail(self, request: Request, error: BaseException) -> None:
        """End a request and its sibling samples, which share its stream."""
        for sibling in self._live.get(request.rid, [request]):
            if sibling.status is not Status.FINISHED:
                self.scheduler.finish(sibling, keep=False)
                self._forget(sibling)
        self.metrics.failed += 1
        request.stream.fail(error)

    def _fail_step(self, error: Exception) -> None:
        """A whole step failed: its requests end with the cause, those still waiting go on."""
        log.exception("a step of the engine failed")
        # If nothing runs, the first of the queue is to blame: left there, it would fail every step.
        for request in list(self.scheduler.running) or self.scheduler.waiting[:1]:
            self._fail(request, error)
        self.scheduler.ended.clear()
        try:
            self.check()
        except AssertionError:
            # The failure left the books in disorder: start with new ones, nothing runs now.
            log.exception("the KV pool is rebuilt")
            self.scheduler.reset()

    def _forget(self, request: Request) -> None:
        """A request's name is free again once all of its samples are done."""
        with self._lock:
            self._live_samples -= 1
            siblings = self._live.get(request.rid, [])
            if all(sibling.status is Status.FINISHED for sibling in siblings):
                self._live.pop(request.rid, None)

    def _die(self, error: BaseException) -> None:
        """Nothing runs any more: every present and future waiter gets an error."""
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

    def flush_cache(self) -> bool:
        """See :meth:`Engine.flush_cache`."""
        return self.scheduler.flush()

    def check(self) -> None:
        """See :meth:`Engine.check`."""
        check_invariants(self.scheduler)

    def snapshot(self, max_nodes: int) -> dict[str, Any]:
        """See :meth:`Engine.snapshot`."""
        return self.metrics.snapshot(self.scheduler, max_nodes)


def _answer(function: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
