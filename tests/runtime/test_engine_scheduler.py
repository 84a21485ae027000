"""Scheduler, tree and pool together under pressure: whatever happens, the books balance after
every step and each request's greedy tokens are those that it would get alone."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sglang_lite.runtime.policy import PATIENCE
from sglang_lite.runtime.request import Request
from tests.runtime.bench import Bench, expect_alone, reason

both_schedules = pytest.mark.usefixtures("both_schedules")


class EngineMachine(RuleBasedStateMachine):
    """Random submissions, aborts, failing steps and flushes on a small pool."""

    HOSTS: ClassVar[dict[str, dict[str, Any]]] = {
        "host": {"enable_hierarchical_cache": True, "hicache_ratio": 3.0},
        "small host": {"enable_hierarchical_cache": True, "hicache_ratio": 0.5},
    }

    @initialize(
        slots=st.integers(12, 90),
        chunk=st.integers(1, 40),
        running=st.integers(1, 6),
        policy=st.sampled_from(["fcfs", "lpm", "dfs-weight"]),
        cache=st.sampled_from(["device", "device", "host", "small host", "none"]),
        overlap=st.booleans(),
    )
    def start(
        self, slots: int, chunk: int, running: int, policy: str, cache: str, overlap: bool
    ) -> None:
        self.bench = Bench(
            slots,
            chunked_prefill_size=chunk,
            max_running_requests=running,
            schedule_policy=policy,
            disable_overlap_schedule=not overlap,
            disable_radix_cache=cache == "none",
            **self.HOSTS.get(cache, {}),
        )
        self.slots = slots
        self.requests: list[Request] = []
        self.failed: set[str] = set()

    # Few tokens, so that prefixes are shared in every way.
    prompts = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=11)

    @rule(
        prompt=prompts,
        repeat=st.integers(1, 4),
        count=st.integers(0, 30),
        priority=st.integers(0, 1),
        salt=st.sampled_from(["", "", "x"]),
        logprobs=st.booleans(),
        exact=st.booleans(),
    )
    def submit(
        self,
        prompt: list[int],
        repeat: int,
        count: int,
        priority: int,
        salt: str,
        logprobs: bool,
        exact: bool,
    ) -> None:
        prompt = (prompt * repeat)[: self.slots - 1]
        fields: dict[str, Any] = {"priority": priority, "cache_salt": salt, "exact": exact}
        if logprobs:
            fields |= {"return_logprob": True, "logprob_start_len": len(prompt) // 2}
        self.requests.append(self.bench.submit(prompt, count, **fields))

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def continue_another(self, data: st.DataObject) -> None:
        """A prompt that is what another request has so far: the next turn, or a fork."""
        parent = data.draw(st.sampled_from(self.requests))
        prompt = list(parent.tokens)[: self.slots - 1]
        self.requests.append(self.bench.submit(prompt, data.draw(st.integers(1, 10))))

    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.bench.step()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.requests)).aborted = True

    @rule()
    def flush(self) -> None:
        self.bench.core.flush_cache()

    @rule()
    def fail_a_step(self) -> None:
        def fail() -> None:
            raise RuntimeError("on purpose")

        self.bench.model.before_step = fail
        running = [r for r in self.requests if r in self.bench.scheduler.running]
        self.bench.step()
        self.bench.model.before_step = lambda: None
        self.failed |= {r.rid for r in self.requests if r.stream._error is not None}
        assert all(r.rid in self.failed or r.finish_reason or r.status for r in running)

    @invariant()
    def balanced(self) -> None:
        if hasattr(self, "bench"):
            self.bench.core.check()

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.drain()
        for request in self.requests:
            if request.rid not in self.failed:
                expect_alone(request, self.slots)
                check_logprobs(request)
        scheduler = self.bench.scheduler
        assert self.bench.core.flush_cache()
        assert scheduler.pool.free == scheduler.pool.size


def check_logprobs(request: Request) -> None:
    """Each position once, with its own token, however often the request was preempted."""
    log = request.logprobs
    if log is not None and reason(request) != "abort":
        assert [token for _, token in log.tokens] == list(request.tokens[log.start :])


EngineMachine.TestCase.settings = settings(
    max_examples=120,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestEngineMachine = pytest.mark.filterwarnings("ignore::UserWarning")(EngineMachine.TestCase)


# Named cases


@both_schedules
@pytest.mark.parametrize("policy", ["fcfs", "lpm", "dfs-weight"])
@pytest.mark.parametrize("slots", [40, 64, 1000])
@pytest.mark.parametrize("disabled", [False, True])
def test_preemption_changes_nothing(policy: str, slots: int, disabled: bool) -> None:
    bench = Bench(slots, schedule_policy=policy, disable_radix_cache=disabled)
    bench.scheduler.new_token_ratio = 0.0
    requests = [bench.submit([i % 3, 5, 7, i], 25) for i in range(12)]
    bench.drain()
    for request in requests:
        expect_alone(request, slots)
    assert (bench.scheduler.preempted_total > 0) == (slots < 1000)


@both_schedules
def test_preempted_outputs_are_found_again_if_the_pressure_vanishes() -> None:
    bench = Bench(slots=400)
    request = bench.submit([1, 2, 3], 40)
    for _ in range(10):
        bench.step()
    bench.scheduler.preempt(request)
    bench.core.check()
    before = len(bench.model.computed)
    bench.drain()
    expect_alone(request, 400)
    first = bench.model.computed[before]
    assert first[1] - first[0] == 1, "everything but the newest token was still cached"


@both_schedules
def test_the_victim_has_the_fewest_outputs_and_the_lowest_priority() -> None:
    bench = Bench(slots=60, chunked_prefill_size=100)
    important = bench.submit([1, 2, 3], 40, priority=1)
    first = bench.submit([4, 5, 6], 40)
    for _ in range(5):
        bench.step()
    late = bench.submit([7, 8, 9], 40)
    victims: list[str] = []
    original = bench.scheduler.preempt

    def preempt(request: Request) -> None:
        victims.append(request.rid)
        original(request)

    bench.scheduler.preempt = preempt  # type: ignore[method-assign]
    bench.scheduler.new_token_ratio = 0.0
    bench.drain()
    assert victims
    assert victims[0] == late.rid
    assert important.rid not in victims
    for request in (important, first, late):
        expect_alone(request, 60)


@both_schedules
def test_expectation_is_raised_by_a_preemption_and_decays() -> None:
    bench = Bench(slots=64)
    bench.scheduler.new_token_ratio = 0.1
    for i in range(4):
        bench.submit([i, i], 30)
    while not bench.scheduler.preempted_total:
        bench.step()
    raised = bench.scheduler.new_token_ratio
    assert raised > 0.1
    bench.drain()
    assert bench.scheduler.new_token_ratio < raised


def test_a_token_in_flight_keeps_its_slot_when_reservations_are_taken_back() -> None:
    bench = Bench(slots=400, disable_overlap_schedule=False)
    request = bench.submit([1, 2, 3], 40)
    for _ in range(5):
        bench.step()
    assert request.in_flight == 1
    assert request.allocated > request.length
    in_flight = int(request.slots[request.length - 1])
    free = bench.scheduler.pool.size - request.length
    assert bench.scheduler._make_room(free)
    assert request.allocated == request.length
    assert in_flight not in bench.scheduler.pool.allocate(free)


@both_schedules
def test_lookahead_keeps_each_sequence_in_one_run() -> None:
    """Eight requests that decode side by side must not interleave their slots."""
    bench = Bench(slots=4096)
    requests = [bench.submit([i, 5, 5, 5, 5], 100) for i in range(8)]
    for _ in range(60):
        bench.step()
    for request in requests:
        slots = request.slots[: request.computed]
        runs = 1 + int((slots[1:] != slots[:-1] + 1).sum())
        assert runs <= 3


@both_schedules
def test_prompts_get_on_beside_many_decodes() -> None:
    bench = Bench(chunked_prefill_size=4, max_running_requests=8)
    for i in range(7):
        bench.submit([i], 400)
    for _ in range(20):
        bench.step()
    prompt = bench.submit([9] * 30, 1)
    for _ in range(40):
        bench.step()
    assert reason(prompt) == "length"


@both_schedules
def test_lpm_prefers_cached_prompts_but_starves_nobody() -> None:
    bench = Bench(schedule_policy="lpm", max_running_requests=1)
    popular = [1] * 40
    bench.submit(popular, 1)
    bench.drain()
    stranger = bench.submit([7, 8], 1)
    order: list[Request] = []
    fans = [bench.submit([*popular, i], 1) for i in range(3 * PATIENCE)]
    while bench.core.busy:
        bench.step()
        order += [r for r in (stranger, *fans) if r.finish_reason and r not in order]
    assert PATIENCE - 1 <= order.index(stranger) <= PATIENCE + 1


@both_schedules
def test_dfs_weight_runs_relatives_together() -> None:
    bench = Bench(schedule_policy="dfs-weight", max_running_requests=4)
    for base in (1, 2):
        bench.submit([base] * 40, 1)
    bench.drain()
    mixed = [bench.submit([1 + i % 2] * 40 + [10 + i], 1) for i in range(8)]
    first: list[int] = []
    while not first:
        bench.step()
        first = [r.tokens[0] for r in mixed if r.finish_reason]
    assert first in ([1] * 4, [2] * 4)


@both_schedules
def test_a_big_request_at_the_head_is_not_skipped_for_ever() -> None:
    bench = Bench(slots=100)
    small = [bench.submit([i, i], 30) for i in range(3)]
    bench.step()
    big = bench.submit([3] * 80, 5)
    later = [bench.submit([i, 9], 5) for i in range(5)]
    finished: list[Request] = []
    while bench.core.busy:
        bench.step()
        finished += [r for r in (*small, big, *later) if r.finish_reason and r not in finished]
    assert finished.index(big) < finished.index(later[0])
    expect_alone(big, 100)


@both_schedules
def test_ten_thousand_waiting_requests_are_not_all_looked_at() -> None:
    bench = Bench(slots=64, max_running_requests=2)
    looked = Counter()
    original = bench.scheduler.tree.peek

    def peek(*args: Any) -> Any:
        looked["peek"] += 1
        return original(*args)

    bench.scheduler.tree.peek = peek  # type: ignore[method-assign]
    for i in range(3000):
        bench.submit([i % 90, 1, 2, 3], 50)
    bench.step()
    assert looked["peek"] < 300
