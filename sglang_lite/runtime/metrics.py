"""Counters, gauges, a log line each so many steps, and the last steps for those who watch."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_lite.runtime.request import Request
    from sglang_lite.runtime.scheduler import Scheduler

log = logging.getLogger("sglang_lite")

EVENTS = 1000
"""So many step records are kept."""

RATE_SECONDS = 10.0
"""Throughput is that of the last so many seconds."""


class Metrics:
    """Written by the engine's thread, read by any."""

    def __init__(self, log_interval: int) -> None:
        self._log_interval = log_interval
        self.steps = 0
        self.idle = True
        self.last_step_at = time.monotonic()
        # Requests whose constraint is being compiled, in their callers' threads.
        self.compiling = 0
        self.requests = self.aborted = self.failed = self.rejected = 0
        self.prompt_tokens = self.cached_tokens = self.computed_tokens = 0
        self.generated_tokens = self.forced_tokens = 0
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS)
        self._recent: deque[tuple[float, int]] = deque()

    def begin(self) -> None:
        """There is work again: a step begins now."""
        self.idle = False
        self.last_step_at = time.monotonic()

    @property
    def seconds_since_step(self) -> float:
        """How long the present step has taken; 0 while there is nothing to do."""
        return 0.0 if self.idle else time.monotonic() - self.last_step_at

    def produced(self, tokens: int) -> None:
        """Count tokens handed to a reader."""
        self.generated_tokens += tokens

    def launched(self, step: Mapping[Request, int]) -> None:
        """Count tokens that are computed, before anyone can have received what they lead to."""
        self.computed_tokens += sum(step.values())

    def step_done(self, started: float, step: Mapping[Request, int], scheduler: Scheduler) -> None:
        """Record a step that ran from ``started`` (``time.perf_counter``) until now."""
        now = time.perf_counter()
        self.steps += 1
        self.last_step_at = time.monotonic()
        self._recent.append((now, self.generated_tokens))
        while self._recent[0][0] < now - RATE_SECONDS:
            self._recent.popleft()
        self.events.append(
            {
                "step": self.steps,
                "time": time.time(),
                "seconds": now - started,
                "rows": len(step),
                "tokens": sum(step.values()),
                "running": len(scheduler.running),
                "waiting": len(scheduler.waiting),
                "free_slots": scheduler.pool.free,
            }
        )
        if self.steps % self._log_interval == 0:
            numbers = self.numbers(scheduler, len(scheduler.waiting))
            log.info(
                "step %d: %d running, %d waiting, %d of %d slots free, %d evictable, "
                "hit rate %.0f %%, %.1f tok/s",
                self.steps,
                numbers["num_running_reqs"],
                numbers["num_queue_reqs"],
                numbers["kv_available_tokens"],
                numbers["max_total_num_tokens"],
                numbers["kv_evictable_tokens"],
                100 * numbers["cache_hit_rate"],
                numbers["gen_throughput"],
            )

    def request_done(self, request: Request) -> None:
        """Complete a request's usage and count it."""
        now = time.perf_counter()
        usage = request.usage
        usage.completion_tokens = request.output_len
        usage.e2e_s = now - request.submitted_at
        started = request.started_at or now
        usage.queue_s = max(started - request.submitted_at - usage.compile_s, 0.0)
        if request.first_token_at is not None:
            usage.ttft_s = request.first_token_at - request.submitted_at
        self.requests += 1
        reason = request.finish_reason
        self.aborted += reason is not None and reason.type == "abort"
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.forced_tokens += usage.forced_tokens

    def numbers(self, scheduler: Scheduler, queued: int) -> dict[str, Any]:
        """Everything as one flat dict, under SGLang's metric names."""
        pool, tree = scheduler.pool, scheduler.tree
        return {
            "num_running_reqs": len(scheduler.running),
            "num_queue_reqs": queued,
            "num_grammar_queue_reqs": self.compiling,
            "num_retracted_reqs": scheduler.preempted_total,
            "max_total_num_tokens": pool.size,
            "kv_available_tokens": pool.free,
            "kv_evictable_tokens": tree.evictable,
            "kv_used_tokens": pool.size - pool.free - tree.evictable,
            "evicted_tokens_total": tree.evicted_total,
            "num_requests_total": self.requests,
            "num_aborted_requests_total": self.aborted,
            "num_failed_requests_total": self.failed,
            "num_rejected_requests_total": self.rejected,
            "prompt_tokens_total": self.prompt_tokens,
            "cached_tokens_total": self.cached_tokens,
            "computed_tokens_total": self.computed_tokens,
            "generation_tokens_total": self.generated_tokens,
            "forced_tokens_total": self.forced_tokens,
            "cache_hit_rate": self._hit_rate(scheduler),
            "gen_throughput": self._throughput(),
            "new_token_ratio": scheduler.new_token_ratio,
            "steps_total": self.steps,
            "seconds_since_step": self.seconds_since_step,
            **(scheduler.host.numbers() if scheduler.host is not None else {}),
        }

    def _hit_rate(self, scheduler: Scheduler) -> float:
        """The cached share of all prompts, those of running requests included."""
        running = [request.usage for request in list(scheduler.running)]
        cached = self.cached_tokens + sum(usage.cached_tokens for usage in running)
        return cached / max(self.prompt_tokens + sum(u.prompt_tokens for u in running), 1)

    def _throughput(self) -> float:
        """Generated tokens per second over the last seconds; 0 if there was no step in them."""
        recent = list(self._recent)
        now = time.perf_counter()
        if len(recent) < 2 or recent[-1][0] < now - RATE_SECONDS:
            return 0.0
        return (recent[-1][1] - recent[0][1]) / (now - recent[0][0])

    def snapshot(self, scheduler: Scheduler, max_nodes: int) -> dict[str, Any]:
        """The tree's top, the slots, the running and the first waiting requests, JSON-ready."""
        tree = scheduler.tree.snapshot(max_nodes)
        free, cached = scheduler.pool.free, scheduler.tree.evictable + scheduler.tree.protected
        return {
            "tree": tree["nodes"],
            "truncated": tree["truncated"],
            "slots": {
                "total": scheduler.pool.size,
                "free": free,
                "evictable": scheduler.tree.evictable,
                "locked": scheduler.tree.protected,
                "owned": scheduler.pool.size - free - cached,
            },
            "running": [_row(request) for request in scheduler.running[:max_nodes]],
            "waiting": [_row(request) for request in scheduler.waiting[:max_nodes]],
            "steps": list(self.events)[-100:],
        }


def _row(request: Request) -> dict[str, Any]:
    return {
        "rid": request.rid,
        "index": request.index,
        "prompt_tokens": request.prompt_len,
        "cached_tokens": request.usage.cached_tokens,
        "computed_tokens": request.computed,
        "completion_tokens": request.output_len,
    }
