"""The slot allocator: conservation, contiguity, no slot handed out twice."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sglang_lite.runtime.kv_pool import KVPool


def is_run(slots: np.ndarray) -> bool:
    return bool((np.diff(slots) == 1).all())


def test_fresh_pool_gives_one_run() -> None:
    pool = KVPool(100)
    assert pool.allocate(60).tolist() == list(range(60))
    assert pool.free == 40


def test_too_much_is_refused_and_takes_nothing() -> None:
    pool = KVPool(10)
    assert pool.allocate(11) is None
    assert pool.free == 10


def test_after_continues_the_run() -> None:
    pool = KVPool(100)
    first = pool.allocate(10)
    other = pool.allocate(10)
    pool.release(other)
    assert pool.allocate(5, after=int(first[-1])).tolist() == list(range(10, 15))


def test_neighbours_join_again() -> None:
    pool = KVPool(30)
    parts = [pool.allocate(10) for _ in range(3)]
    for index in (0, 2, 1):
        pool.release(parts[index])
    assert list(pool.runs()) == [(0, 30)]


def test_scattered_only_when_no_run_is_long_enough() -> None:
    pool = KVPool(40)
    parts = [pool.allocate(10) for _ in range(4)]
    pool.release(parts[0])
    pool.release(parts[2])
    assert is_run(pool.allocate(9))
    scattered = pool.allocate(11)
    assert sorted(scattered.tolist()) == [9, *range(20, 30)]
    assert pool.free == 0


def test_release_takes_any_order() -> None:
    pool = KVPool(10)
    pool.allocate(10)
    pool.release(np.array([7, 3, 4, 9, 8]))
    assert sorted(pool.runs()) == [(3, 2), (7, 3)]


class PoolMachine(RuleBasedStateMachine):
    @initialize(size=st.integers(1, 300))
    def start(self, size: int) -> None:
        self.pool = KVPool(size)
        self.held: list[int] = []

    @rule(count=st.integers(0, 60), data=st.data())
    def allocate(self, count: int, data: st.DataObject) -> None:
        after = data.draw(st.sampled_from(self.held)) if self.held else None
        longest = max((length for _, length in self.pool.runs()), default=0)
        slots = self.pool.allocate(count, after)
        if slots is None:
            assert count > self.pool.free
            return
        assert len(slots) == count
        assert not set(slots.tolist()) & set(self.held)
        if after is None and 2 * count <= longest:
            assert is_run(slots)
        self.held += slots.tolist()

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.held:
            given = data.draw(st.lists(st.sampled_from(self.held), unique=True, max_size=50))
            self.pool.release(np.array(given, dtype=np.int64))
            self.held = [slot for slot in self.held if slot not in set(given)]

    @invariant()
    def conserved(self) -> None:
        if not hasattr(self, "pool"):
            return
        free = [slot for start, length in self.pool.runs() for slot in range(start, start + length)]
        assert sorted(free + self.held) == list(range(self.pool.size))
        assert self.pool.free == len(free)
        starts = {start for start, _ in self.pool.runs()}
        assert all(start + length not in starts for start, length in self.pool.runs())


PoolMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase
