"""What those who watch the engine see: times of a request, a log line, the last steps."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator

import pytest

from sglang_lite.runtime.engine import Engine
from sglang_lite.runtime.metrics import EVENTS
from tests.runtime.toy import greedy, request, toy_engine, wait_until_idle

pytestmark = pytest.mark.usefixtures("both_schedules")


@pytest.fixture
def engine() -> Iterator[Engine]:
    with toy_engine() as engine:
        yield engine


def test_the_times_of_a_request_add_up(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling, waiting and computing the prompt follow each other, none counted twice."""
    compile_it = engine.compile

    def slowly(constraint: object) -> object:
        time.sleep(0.2)
        return compile_it(constraint)

    monkeypatch.setattr(engine, "compile", slowly)
    meta = engine.generate("x", greedy(5, regex="[ab]{3}"))["meta_info"]
    assert meta["compile_time"] >= 0.2
    assert meta["compile_time"] + meta["queue_time"] <= meta["ttft"] <= meta["e2e_latency"]
    assert meta["completion_tokens"] - meta["forced_tokens"] == 3


def test_a_line_is_logged_each_so_many_steps(caplog: pytest.LogCaptureFixture) -> None:
    with toy_engine(decode_log_interval=5) as engine, caplog.at_level("INFO", "sglang_lite"):
        engine.generate("Hello", greedy(23, ignore_eos=True))
        wait_until_idle(engine)
        engine.check()
        steps = engine.stats()["steps_total"]
    lines = [line for line in caplog.messages if line.startswith("step ")]
    assert len(lines) == steps // 5
    assert re.fullmatch(
        r"step 5: 1 running, 0 waiting, \d+ of 4096 slots free, \d+ evictable, "
        r"hit rate 0 %, [0-9.]+ tok/s",
        lines[0],
    )


def test_the_hit_rate_counts_requests_that_still_run() -> None:
    with toy_engine() as engine:
        engine.generate("A prefix of all", greedy(1))
        wait_until_idle(engine)
        assert engine.stats()["cache_hit_rate"] == 0
        stream = engine.submit(
            request(engine, "A prefix of all", temperature=0, max_new_tokens=3000, ignore_eos=True)
        )
        first = next(iter(stream))
        rate = engine.stats()["cache_hit_rate"]
        stream.abort()
        wait_until_idle(engine)
        prompt, cached = first.usage.prompt_tokens, first.usage.cached_tokens
        assert cached == prompt - 1
        assert rate == engine.stats()["cache_hit_rate"] == cached / (2 * prompt)


def test_the_last_steps_are_kept_and_no_more() -> None:
    with toy_engine() as engine:
        engine.generate("Hello", greedy(EVENTS + 50, ignore_eos=True))
        wait_until_idle(engine)
        shown = engine.snapshot()["steps"]
        events = list(engine._loop.core.metrics.events)
    assert len(events) == EVENTS
    assert [event["step"] for event in shown] == [event["step"] for event in events[-100:]]
    assert {"rows", "tokens", "running", "waiting", "free_slots"} <= set(events[-1])


def test_the_log_level_counts_for_a_loaded_model_too() -> None:
    log = logging.getLogger("sglang_lite")
    before = log.level
    try:
        with toy_engine(log_level="info"):
            assert log.isEnabledFor(logging.INFO)
        with toy_engine(log_level="error"):
            assert not log.isEnabledFor(logging.WARNING)
    finally:
        log.setLevel(before)
