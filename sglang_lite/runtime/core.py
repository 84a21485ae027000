"""One step of the engine, without threads: admit, compute, sample, hand out.

A failure ends the requests that it concerns; everything else goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from sglang_lite.outputs import FinishReason
from sglang_lite.runtime import progress
from sglang_lite.runtime.config import EngineConfig
from sglang_lite.runtime.host_tier import HostTier
from sglang_lite.runtime.invariants import check_invariants
from sglang_lite.runtime.metrics import Metrics
from sglang_lite.runtime.models.base import Model
from sglang_lite.runtime.request import Request, Status
from sglang_lite.runtime.runner import run_step
from sglang_lite.runtime.scheduler import Scheduler

log = logging.getLogger("sglang_lite")


class EngineCore:
    """Scheduler, model and the requests between them; one thread uses it, in inference mode.

    ``on_finished`` is called for each request when it has given up its resources, before its last
    output is sent.
    """

    def __init__(
        self, model: Model, config: EngineConfig, on_finished: Callable[[Request], None]
    ) -> None:
        self.model = model
        self.scheduler = Scheduler(config, HostTier.of(model.kv_cache, config))
        self.metrics = Metrics(config.decode_log_interval)
        self._on_finished = on_finished
        self._one_by_one = config.deterministic

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.scheduler.running or self.scheduler.waiting)

    def add(self, requests: list[Request]) -> None:
        """Queue the samples of one request."""
        for request in requests:
            self.scheduler.add(request)
            if request.finish_reason is not None:
                # Its grammar left nothing to generate.
                self._finish(request)

    def finish_aborted(self) -> None:
        """End the requests whose ``aborted`` flag is set, in whatever state they are."""
        for request in [*self.scheduler.waiting, *self.scheduler.running]:
            if request.aborted:
                request.finish_reason = FinishReason("abort", message="aborted by the caller")
                self._finish(request)

    def step(self) -> None:
        """Compute one batch and deal with its results."""
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
            results = self._compute(step)
        except Exception as error:
            self._fail_step(error)
            return
        for request in step:
            # A request may have failed with a sibling sample in this very step.
            if request.status is Status.RUNNING:
                self._guard(request, partial(self._apply, request, results.get(request)))
        self.metrics.step_done(started, step, self.scheduler)
        self.scheduler.learn(step, time.perf_counter() - started)

    def _compute(self, step: dict[Request, int]) -> dict[Request, int | Exception]:
        if not self._one_by_one:
            return run_step(self.model, step)
        # Deterministic: a row's results must not depend on how many others there are.
        results: dict[Request, int | Exception] = {}
        for request, count in step.items():
            results |= run_step(self.model, {request: count})
        return results

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
        self._on_finished(request)
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
        for sibling in list(request.siblings):
            if sibling.status is not Status.FINISHED:
                self.scheduler.finish(sibling, keep=False)
                self._on_finished(sibling)
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

    def flush_cache(self) -> bool:
        """See :meth:`Engine.flush_cache`."""
        return self.scheduler.flush()

    def check(self) -> None:
        """See :meth:`Engine.check`."""
        check_invariants(self.scheduler)

    def snapshot(self, max_nodes: int) -> dict[str, Any]:
        """See :meth:`Engine.snapshot`."""
        return self.metrics.snapshot(self.scheduler, max_nodes)
