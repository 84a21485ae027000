"""Which tokens are computed in the next step, and who owns the KV slots.

A step is a set of rows "compute the next n tokens of this request": running decodes first, then
prompts under way, then newly admitted requests, until the token budget is used up.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping

import numpy as np

from sglang_lite.outputs import FinishReason
from sglang_lite.runtime.chunks import Chunks, FixedChunks
from sglang_lite.runtime.config import EngineConfig
from sglang_lite.runtime.host_tier import HostTier
from sglang_lite.runtime.kv_pool import KVPool
from sglang_lite.runtime.policy import POLICIES, WINDOW
from sglang_lite.runtime.radix_tree import RadixTree
from sglang_lite.runtime.request import Request, Status
from sglang_lite.runtime.sharing import parents, prefix_is_coming

LOOKAHEAD = 32
"""Slots are reserved in runs: consecutive slots of one sequence are read without a gather."""

ESTIMATE_LIMIT = 4096
"""No request is expected to generate more than this."""


class Scheduler:
    """Queue, running set, radix tree and KV pool; one thread uses it."""

    def __init__(self, config: EngineConfig, host: HostTier | None = None) -> None:
        """``host``: where evicted prefixes are kept, if anywhere."""
        self.config = config
        self.host = host
        self.pool = KVPool(config.max_total_tokens)
        self.tree = RadixTree()
        size = config.chunked_prefill_size
        self.chunks = FixedChunks(min(size, 64)) if config.deterministic else Chunks(size)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        # Requests that can't go on for want of slots; the caller finishes them.
        self.ended: list[Request] = []
        self.preempted_total = 0
        # Share of its allowed new tokens that a request is expected to use; learned.
        self.new_token_ratio = 0.7

    def add(self, request: Request) -> None:
        """Queue a request; higher priorities first, then by arrival."""
        request.status = Status.WAITING
        insort(self.waiting, request, key=lambda r: (-r.priority, r.arrival))

    def schedule(self) -> dict[Request, int]:
        """The next step: how many tokens to compute for each of its requests.

        All slots for them are allocated.
        """
        step: dict[Request, int] = {}
        preempted_before = self.preempted_total
        budget = self.config.chunked_prefill_size
        for request in [r for r in self.running if not r.prefilling]:
            if request.in_flight and not request.remaining:
                # Nothing follows its last token.
                continue
            if request.status is Status.RUNNING and self._grow(request, step):
                step[request] = self.chunks.decode_row(request)
        # However many decodes there are, prompts get on.
        budget = max(budget - sum(step.values()), budget // 8, 1)
        for request in [r for r in self.running if r.prefilling]:
            if budget > 0:
                step[request] = self.chunks.next_row(request, budget)
                budget -= step[request]
        # Who was just preempted would come back at once, and be preempted again.
        calm = self.preempted_total == preempted_before
        if budget > 0 and calm and len(self.running) < self.config.max_running_requests:
            self._admit(step, budget)
        self.new_token_ratio = max(self.new_token_ratio - 0.001, 0.1)
        return step

    def checkpoint(self, request: Request, *, oldest: bool = False) -> None:
        """Put the computed tokens into the tree, so that others can reuse them from now on."""
        count, before = self.chunks.reusable(request), request.protected
        if self.config.disable_radix_cache or count <= before:
            return
        own = request.slots[before:count].copy()
        node, present = self.tree.insert(
            request.tokens[:count],
            request.slots[:count],
            request.prompt_len,
            request.namespace,
            oldest=oldest,
        )
        # Others inserted the same tokens meanwhile: the request now uses their slots.
        self.pool.release(own[: max(present - before, 0)])
        # Lock before unlock: nothing on the path may be evictable in between.
        self.tree.lock(node)
        if request.node is not None:
            self.tree.unlock(request.node)
        request.node, request.protected = node, count

    def release(self, request: Request, *, keep: bool = True, oldest: bool = False) -> None:
        """Give up all KV slots; the only exit.  ``keep`` leaves what is valid in the tree."""
        if keep:
            self.checkpoint(request, oldest=oldest)
        self.pool.release(request.slots[request.protected : request.allocated])
        if request.node is not None:
            self.tree.unlock(request.node)
        request.node = None
        request.computed = request.allocated = request.protected = 0
        self.running.remove(request)

    def finish(self, request: Request, *, keep: bool = True) -> None:
        """Take a request out, whatever its state."""
        if request.status is Status.WAITING:
            self.waiting.remove(request)
        elif request.status is Status.RUNNING:
            self.release(request, keep=keep)
        request.status = Status.FINISHED

    def preempt(self, request: Request) -> None:
        """Take a running request's slots; it goes back to the queue and keeps its outputs."""
        self.preempted_total += 1
        self.release(request, oldest=True)
        self.add(request)

    def flush(self) -> bool:
        """Forget every prefix that nobody uses; True if nothing is left."""
        self.pool.release(self.tree.evict(self.tree.evictable))
        if self.host is not None:
            self.host.clear()
        return self.tree.protected == 0

    def reset(self) -> None:
        """Start with an empty tree and pool; nothing is running."""
        self.pool = KVPool(self.config.max_total_tokens)
        self.tree = RadixTree()
        if self.host is not None:
            self.host.clear()
        for request in self.waiting:
            request.node = None
            request.computed = request.allocated = request.protected = 0

    def learn(self, step: Mapping[Request, int], seconds: float) -> None:
        """A step took so long: what it costs to compute a token decides what is worth a copy."""
        if self.host is not None:
            prompt_tokens = sum(count for count in step.values() if count > 1)
            self.host.cost.learn(sum(step.values()), prompt_tokens, seconds)

    # Admission

    def _admit(self, step: dict[Request, int], budget: int) -> None:
        head = self.waiting[:WINDOW]
        admitted = []
        for request in POLICIES[self.config.schedule_policy](head, self.tree):
            if budget <= 0 or len(self.running) >= self.config.max_running_requests:
                break
            if len(request.tokens) > self.pool.size:
                self._end(request)
            elif self._must_wait(request):
                continue
            elif self._start(request):
                step[request] = self.chunks.next_row(request, budget)
                budget -= step[request]
                admitted.append(request)
            else:
                # The first that doesn't fit blocks the rest: skipping it would starve it.
                break
        latest = max((request.arrival for request in admitted), default=-1)
        for request in head:
            if request.status is Status.WAITING and request.arrival < latest:
                request.overtaken += 1

    def _start(self, request: Request) -> bool:
        """Reserve all slots of the request's tokens and let it run, if there is room."""
        if not self.config.disable_radix_cache:
            for parent in parents(request, self.running):
                self.checkpoint(parent)
            cached, _ = self.tree.peek(request.tokens, request.match_limit, request.namespace)
            usable = self.chunks.usable(cached)
            match = self.tree.match(request.tokens, usable, request.namespace)
            cached, slots = len(match), match.slots
            self.tree.lock(match.node)
            request.node = match.node
        else:
            cached, slots = 0, np.empty(0, np.int64)
        # After the lock: what it protects can no longer be evicted to make room.
        needed = request.length - cached
        if not self._has_room(request, needed):
            if request.node is not None:
                self.tree.unlock(request.node)
                request.node = None
            return False
        _fit_row(request, request.length)
        request.slots[:cached] = slots
        request.computed = request.protected = request.allocated = cached
        request.prefill_end = len(request.tokens)
        self.waiting.remove(request)
        self.running.append(request)
        request.status = Status.RUNNING
        self._allocate(request, needed, LOOKAHEAD)
        self._restore(request)
        if not request.started:
            request.started = True
            request.usage.cached_tokens = request.computed
        return True

    def _restore(self, request: Request) -> None:
        """Copy what host memory has beyond the device's prefix, where that beats computing it."""
        if self.host is None:
            return
        found = self.host.find(request.tokens, request.match_limit, request.namespace)
        end, row = self.chunks.usable(found), request.slots
        if self.host.restore(request.tokens, request.computed, end, request.namespace, row):
            request.computed = end
            # Others that start in this very step reuse it.
            self.checkpoint(request)

    def _has_room(self, request: Request, needed: int) -> bool:
        room = self.pool.free + self.tree.evictable
        if not self.running:
            return needed <= room
        room -= sum(self._expected_growth(other) for other in self.running)
        return needed + self._expected_growth(request) <= room

    def _expected_growth(self, request: Request) -> int:
        ratio = 1.0 if request.params.ignore_eos else self.new_token_ratio
        growth = int(min(request.remaining, ESTIMATE_LIMIT) * ratio)
        reserved = max(request.allocated - request.length, 0)
        return max(growth - reserved, 0)

    def _must_wait(self, request: Request) -> bool:
        if self.config.disable_radix_cache:
            return False
        cached, _ = self.tree.peek(request.tokens, request.match_limit, request.namespace)
        return prefix_is_coming(request, cached, self.running)

    # Memory

    def _grow(self, request: Request, step: dict[Request, int]) -> bool:
        """Slots for all tokens of a running request, at the expense of others if need be."""
        needed = request.length - request.allocated
        while needed > 0 and not self._make_room(needed):
            if request.in_flight:
                # It may end with this token; nobody is preempted before that is known.
                return False
            victim = min(self.running, key=_preemption_order)
            if len(self.running) == 1:
                self._end(request)
                return False
            step.pop(victim, None)
            self.preempt(victim)
            self._learn()
            if victim is request:
                return False
        if needed > 0:
            _fit_row(request, request.length)
            self._allocate(request, needed, max(LOOKAHEAD, request.output_len))
        return True

    def _end(self, request: Request) -> None:
        """No slot is left for it, not even alone: it ends with the text that it has."""
        request.finish_reason = FinishReason("length")
        self.ended.append(request)

    def _learn(self) -> None:
        """After a preemption: expect what the running requests have used, and some more."""
        decoded = sum(request.output_len for request in self.running)
        allowed = sum(min(r.output_len + r.remaining, ESTIMATE_LIMIT) for r in self.running)
        ratio = (decoded + 20 * len(self.running)) / (allowed + 1)
        self.new_token_ratio = min(max(ratio, self.new_token_ratio), 1.0)

    def _allocate(self, request: Request, needed: int, lookahead: int) -> None:
        """Take ``needed`` slots, and some more in the same run while there are plenty."""
        self._make_room(needed)
        spare = min(lookahead, request.remaining, (self.pool.free - needed) // 8)
        count = needed + max(spare, 0)
        last = int(request.slots[request.allocated - 1]) if request.allocated else None
        slots = self.pool.allocate(count, after=last)
        assert slots is not None, "room was made for these slots"
        _fit_row(request, request.allocated + count)
        request.slots[request.allocated : request.allocated + count] = slots
        request.allocated += count

    def _make_room(self, count: int) -> bool:
        """Have ``count`` free slots: evict prefixes, then take back what is reserved ahead."""
        if (missing := count - self.pool.free) > 0:
            host = self.host
            freed = host.evict(self.tree, missing) if host else self.tree.evict(missing)
            self.pool.release(freed)
        if self.pool.free < count:
            for request in self.running:
                used = min(request.length, request.allocated)
                self.pool.release(request.slots[used : request.allocated])
                request.allocated = used
        return self.pool.free >= count


def _preemption_order(request: Request) -> tuple[int, int, int]:
    """The victim has the lowest priority, then the fewest outputs, then came last."""
    return (request.priority, request.output_len, -request.arrival)


def _fit_row(request: Request, length: int) -> None:
    """Make the request's slot row at least ``length`` long."""
    if len(request.slots) < length:
        row = np.empty(max(length, 2 * len(request.slots), 64), dtype=np.int64)
        row[: request.allocated] = request.slots[: request.allocated]
        request.slots = row
