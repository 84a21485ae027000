"""What the engine refuses, survives and cleans up, on the toy model."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import pytest
import torch

from sglang_lite.errors import EngineError, InvalidRequest, PromptTooLong, QueueFull
from sglang_lite.outputs import RequestOutput
from sglang_lite.runtime import loop
from sglang_lite.runtime.engine import Engine
from sglang_lite.runtime.messages import GenerateRequest
from sglang_lite.runtime.request import Request
from sglang_lite.sampling_params import SamplingParams
from tests.runtime.toy import (
    VOCAB,
    ToyModel,
    expected_greedy,
    greedy,
    ids_of,
    request,
    toy_engine,
    toy_tokenizer,
    wait_until_idle,
)
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("both_schedules")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"input_ids": [VOCAB]}, "input_ids"),
        ({"input_ids": [-1]}, "input_ids"),
        ({"input_ids": []}, "input_ids"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "a", "input_ids": [1]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": "a", "sampling_params": {"stop_token_ids": [9999]}}, "stop_token_ids"),
        ({"prompt": "a", "sampling_params": {"logit_bias": {9999: 1}}}, "logit_bias"),
        ({"prompt": "a", "sampling_params": {"stop_regex": "("}}, "stop_regex"),
        ({"prompt": "a", "sampling_params": {"stop_regex": "a*"}}, "stop_regex"),
        ({"prompt": "a", "sampling_params": {"temprature": 1}}, "temprature"),
        ({"prompt": "a", "sampling_params": [{}, {}]}, "sampling_params"),
        ({"prompt": ["a", "b"], "rid": "same"}, "rid"),
        ({"prompt": "a", "logprob_start_len": 0}, "return_logprob"),
        ({"prompt": "a", "return_logprob": True, "logprob_start_len": 2}, "logprob_start_len"),
        ({"prompt": "a", "return_logprob": True, "top_logprobs_num": 99}, "top_logprobs_num"),
        ({"prompt": "a", "return_logprob": True, "token_ids_logprob": [-1]}, "token_ids_logprob"),
    ],
)
def test_bad_requests_are_refused_by_name(engine: Engine, fields: dict, name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        engine.generate(**fields)
    assert caught.value.field == name
    assert engine.generate("still alive", greedy(2))["output_ids"]


def test_a_prompt_that_can_never_fit_is_refused_with_the_numbers() -> None:
    with toy_engine(slots=64, context_length=100) as engine:
        with pytest.raises(PromptTooLong, match=r"64 tokens.*\(64 in the messages"):
            engine.generate(input_ids=[1] * 64, sampling_params=greedy(5))
        assert engine.generate(input_ids=[1] * 63, sampling_params=greedy(1))["output_ids"]


def test_a_lone_request_out_of_slots_ends_with_its_text() -> None:
    with toy_engine(slots=32, context_length=100) as engine:
        prompt = [1, 2, 3]
        result = engine.generate(input_ids=prompt, sampling_params=greedy(90))
        assert result["meta_info"]["finish_reason"]["type"] == "length"
        assert len(result["output_ids"]) == 30, "32 computed tokens and one more"
        assert result["output_ids"] == expected_greedy(prompt, 30)
        engine.check()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("schedule_policy", "best"),
        ("context_length", 0),
        ("context_length", 10**6),
        ("max_total_tokens", 10**6),
        ("max_running_requests", 0),
        ("chunked_prefill_size", -1),
        ("max_queued_requests", "many"),
    ],
)
def test_bad_options_are_refused_by_name(option: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=option):
        Engine.from_model(ToyModel(), toy_tokenizer(), **{option: value})


def test_a_full_queue_refuses() -> None:
    with toy_engine(max_queued_requests=3, max_running_requests=1) as engine:
        gate = threading.Event()
        engine.toy.before_step = gate.wait
        try:
            streams = [engine.submit(request(engine, "x", max_new_tokens=2))]
            wait_for(lambda: engine.stats()["num_running_reqs"] == 1)
            streams += [engine.submit(request(engine, "x", max_new_tokens=2)) for _ in range(3)]
            with pytest.raises(QueueFull, match="3 samples are waiting, and 3 is the limit"):
                engine.submit(request(engine, "x"))
        finally:
            gate.set()
        assert all(list(stream)[-1].finish_reason for stream in streams)
        assert engine.generate("x", greedy(2))["output_ids"]
        assert engine.stats()["num_rejected_requests_total"] == 1


def test_a_name_in_use_is_refused_and_free_again_after(engine: Engine) -> None:
    stream = engine.submit(request(engine, "x", rid="mine", max_new_tokens=1500, ignore_eos=True))
    with pytest.raises(InvalidRequest, match="rid"):
        engine.submit(request(engine, "x", rid="mine"))
    engine.abort("mine")
    assert list(stream)[-1].finish_reason.type == "abort"
    assert list(engine.submit(request(engine, "x", rid="mine", max_new_tokens=1)))


def test_abort_all_and_unknown_names(engine: Engine) -> None:
    streams = [
        engine.submit(request(engine, f"{i}", max_new_tokens=1500, ignore_eos=True, n=2))
        for i in range(5)
    ]
    engine.abort("unknown")
    engine.abort(abort_all=True)
    for stream in streams:
        reasons = [o.finish_reason.type for o in stream if o.finish_reason]
        assert reasons == ["abort", "abort"]
    with pytest.raises(InvalidRequest):
        engine.abort()
    wait_until_idle(engine)


def test_a_failing_step_ends_its_requests_and_the_engine_goes_on(engine: Engine) -> None:
    def fail() -> None:
        raise MemoryError("no memory left")

    engine.toy.before_step = fail
    with pytest.raises(EngineError, match="no memory left") as caught:
        engine.generate("x", greedy())
    assert isinstance(caught.value.__cause__, MemoryError)
    engine.toy.before_step = lambda: None
    assert engine.generate("x", greedy())["output_ids"] == expected_greedy(
        [ids_of(engine, "x")[0]], 20
    )
    engine.check()


def test_what_was_produced_before_a_failure_is_delivered(engine: Engine) -> None:
    steps = iter(range(100))

    def fail_later() -> None:
        if next(steps) == 3:
            raise RuntimeError("late")

    engine.toy.before_step = fail_later
    stream = engine.submit(request(engine, "x", temperature=0))
    tokens: list[int] = []

    def read() -> None:
        for output in stream:
            tokens.extend(output.token_ids)

    with pytest.raises(EngineError, match="late"):
        read()
    assert tokens == expected_greedy([ids_of(engine, "x")[0]], 3)
    with pytest.raises(EngineError):
        next(stream)


def test_bad_logits_end_one_request(engine: Engine) -> None:
    original = engine.toy.logits

    def poisoned(hidden: torch.Tensor) -> torch.Tensor:
        logits = original(hidden)
        logits[0] = float("nan")
        return logits

    engine.toy.logits = poisoned
    with pytest.raises(EngineError, match="not finite"):
        engine.generate("x", greedy())
    engine.toy.logits = original
    assert engine.generate("x", greedy())["output_ids"]


def test_a_fatal_failure_reaches_every_present_and_future_waiter() -> None:
    engine = toy_engine()
    stream = engine.submit(request(engine, "x", max_new_tokens=1500, ignore_eos=True))
    next(stream)

    def fatal() -> None:
        raise SystemError("fatal")

    engine._loop.core.step = fatal  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="fatal"):
        list(stream)
    for call in (lambda: engine.generate("x"), engine.check, engine.flush_cache):
        with pytest.raises(EngineError, match="fatal"):
            call()
    engine.shutdown()


def test_shutdown_ends_streams_and_refuses_more() -> None:
    engine = toy_engine()
    stream = engine.submit(request(engine, "x", max_new_tokens=1500, ignore_eos=True))
    next(stream)
    engine.shutdown()
    engine.shutdown()
    with pytest.raises(EngineError, match="shut down"):
        list(stream)
    with pytest.raises(EngineError, match="shut down"):
        engine.generate("x")


def test_an_engine_that_is_dropped_stops_its_thread() -> None:
    engine = toy_engine()
    thread = engine._loop._thread
    engine.generate("x", greedy(2))
    del engine
    thread.join(10)
    assert not thread.is_alive()


def test_a_stream_keeps_its_engine() -> None:
    texts = [result["text"] for result in toy_engine().generate("x", greedy(30), stream=True)]
    assert len(texts) == 30


def test_idle_engine_does_nothing(engine: Engine) -> None:
    engine.generate("x", greedy(2))
    wait_until_idle(engine)
    engine.check()
    started, steps = time.process_time(), engine.stats()["steps_total"]
    time.sleep(0.3)
    assert time.process_time() - started < 0.2
    assert engine.stats()["steps_total"] == steps


def test_flush_cache_forgets_everything_unused(engine: Engine) -> None:
    engine.generate("a prompt", greedy())
    assert engine.flush_cache() is True
    assert engine.generate("a prompt", greedy(1))["meta_info"]["cached_tokens"] == 0


def test_priorities_run_first() -> None:
    with toy_engine(max_running_requests=1) as engine:
        gate = threading.Event()
        engine.toy.before_step = gate.wait
        core = engine._loop.core
        forget, done = core._on_finished, list[int]()

        def finished(request: Request) -> None:
            done.append(request.source.priority)
            forget(request)

        core._on_finished = finished
        streams = []
        for priority in (0, 0, 5, 1):
            params = SamplingParams(max_new_tokens=3)
            made = GenerateRequest((priority + 1,), params, priority=priority)
            streams.append(engine.submit(made))
        gate.set()
        for stream in streams:
            list(stream)
        assert done[1:3] == [5, 1] or done[:2] == [5, 1]


def test_snapshot_is_json(engine: Engine) -> None:
    engine.generate("a prompt", greedy(3))
    shot = engine.snapshot()
    assert json.loads(json.dumps(shot))["slots"]["total"] == 4096
    assert shot["tree"][0]["text"] == "a prompt"


def test_outputs_are_request_outputs(engine: Engine) -> None:
    outputs = list(engine.submit(request(engine, "x", rid="name", max_new_tokens=2)))
    assert all(isinstance(output, RequestOutput) and output.rid == "name" for output in outputs)


def test_the_interpreter_exits_while_requests_run() -> None:
    code = (
        "from tests.runtime.toy import toy_engine, request\n"
        "import time\n"
        "engine = toy_engine()\n"
        "engine.toy.before_step = lambda: time.sleep(0.01)\n"
        "stream = engine.submit(request(engine, 'x', max_new_tokens=1500, ignore_eos=True))\n"
        "print(len(next(stream).token_ids))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "1\n"
    assert done.stderr == ""


def test_a_stuck_step_is_logged_with_its_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop, "WATCH_SECONDS", 0.1)
    gate = threading.Event()
    with toy_engine() as engine:
        engine.generate("x", greedy(1))
        wait_until_idle(engine)
        wait_for(lambda: engine.stats()["seconds_since_step"] == 0.0)
        engine.toy.before_step = lambda: gate.wait(20)
        stream = engine.submit(request(engine, "x", max_new_tokens=1))
        try:
            wait_for(lambda: "has not ended" in caplog.text)
            assert engine.stats()["seconds_since_step"] > 0.1, "the first step after idleness too"
        finally:
            gate.set()
        assert list(stream)[-1].finish_reason
    assert caplog.text.count("has not ended") == 1
    assert "gate.wait(20)" in caplog.text


def test_an_idle_engine_gives_memory_back_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[str] = []
    monkeypatch.setattr(loop, "QUIET_SECONDS", 0.01)
    monkeypatch.setattr(
        loop, "give_back_freed_memory", lambda: given.append(threading.current_thread().name)
    )
    with toy_engine() as engine:
        for count in (1, 2):
            wait_for(lambda count=count: len(given) >= count)
            assert set(given) == {"sglang-lite-engine"}
            assert engine.generate("ab", greedy(2))["meta_info"]["completion_tokens"] == 2
