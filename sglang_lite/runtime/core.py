"""One step of the engine, without threads: admit, compute, sample, hand out.

With *overlap* a step's tokens are handed out while the next forward is already under way, so that
a GPU never waits for the host; a request that turns out to have ended gives its row of that
forward up.  Without, they are handed out at once.

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
from sglang_lite.runtime.cuda.graphs import with_decode_graphs
from sglang_lite.runtime.cuda.sampling import sampler_for
from sglang_lite.runtime.host_tier import HostTier
from sglang_lite.runtime.invariants import check_invariants
from sglang_lite.runtime.metrics import Metrics
from sglang_lite.runtime.models.base import Model
from sglang_lite.runtime.request import Request, Status
from sglang_lite.runtime.runner import Launched, StepRunner
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
        self.model = model = with_decode_graphs(model, config)
        self.scheduler = Scheduler(config, HostTier.of(model.kv_cache, config))
        self.metrics = Metrics(config.decode_log_interval)
        self.runner = StepRunner(
            model, sampler=sampler_for(model.device), one_by_one=config.deterministic
        )
        self._overlap = not config.disable_overlap_schedule
        self._on_finished = on_finished

    def let_go(self) -> None:
        """Nothing more is computed: whoever still holds the engine holds no weights and no keys."""
        del self.model, self.runner
        self.scheduler.host = None

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.scheduler.running or self.scheduler.waiting or self.runner.flying)

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
        """Compute one batch and deal with the results that are there."""
        started = time.perf_counter()
        step: dict[Request, int] = {}
        try:
            launched = self._launch(step, started)
            self._collect()
            if launched is not None:
                self._sample(step, launched)
            if not self._overlap:
                self._collect()
        except Exception as error:
            self._fail_step(error)
            return
        if step:
            self.metrics.step_done(started, step, self.scheduler)
            self.scheduler.learn(step, time.perf_counter() - started)

    def _launch(self, step: dict[Request, int], started: float) -> Launched | None:
        """Fill ``step`` and set its forward going; None if there is nothing to compute."""
        step |= self.scheduler.schedule()
        for request in self.scheduler.ended:
            self._finish(request)
        self.scheduler.ended.clear()
        if not step:
            return None
        for request in step:
            request.started_at = request.started_at or started
        launched = self.runner.launch(step)
        self.metrics.launched(step)
        for request in step:
            if request.prefilling or request.protected < request.prompt_len:
                self.scheduler.checkpoint(request)
        return launched

    def _collect(self) -> None:
        """Receive sampled tokens; a request that was aborted or has failed since gets none."""
        for request, result in self.runner.collect():
            if request.status is not Status.FINISHED:
                self._guard(request, partial(self._apply, request, result))

    def _sample(self, step: dict[Request, int], launched: Launched) -> None:
        """Choose the next tokens where all that is known of a request has been computed.

        Not so: prompts under way, rows whose request has ended with the token that it was launched
        for, and those to which the grammar has added forced tokens since.
        """
        ready = []
        for request in step:
            if request.status is Status.RUNNING and not request.pending:
                if request.remaining:
                    ready.append(request)
                else:
                    request.finish_reason = FinishReason("length")
                    self._finish(request)
            elif request.status is Status.RUNNING:
                # Forced tokens that it starts with.
                self._deliver(request)
        if ready:
            self.runner.sample(launched, ready)

    def _apply(self, request: Request, result: int | Exception) -> None:
        """Take in a request's new token."""
        if isinstance(result, Exception):
            raise result
        request.first_token_at = request.first_token_at or time.perf_counter()
        progress.accept(request, result)
        if request.finish_reason is not None:
            self._finish(request)
        else:
            self._deliver(request)

    def _deliver(self, request: Request) -> None:
        """Send a request's news, if there are any."""
        if (output := progress.news(request)) is not None:
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
        self._collect_what_is_left()
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

    def _collect_what_is_left(self) -> None:
        """Hand out tokens that were sampled before a failure, if they can still be had."""
        try:
            self._collect()
        except Exception:
            self.runner.forget()

    def flush_cache(self) -> bool:
        """See :meth:`Engine.flush_cache`."""
        return self.scheduler.flush()

    def check(self) -> None:
        """See :meth:`Engine.check`."""
        check_invariants(self.scheduler)

    def snapshot(self, max_nodes: int) -> dict[str, Any]:
        """See :meth:`Engine.snapshot`."""
        return self.metrics.snapshot(self.scheduler, max_nodes)
