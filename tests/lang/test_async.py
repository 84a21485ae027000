"""Async programs, awaitable twins, cancellation."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

import sglang_lite as sgl
from tests.runtime.toy import toy_engine


@sgl.function
async def chat(s, question):
    s += question + sgl.gen("a")
    s += " again: " + (await s["a"]).upper() + sgl.gen("b")
    forks = s.fork(2)
    forks += sgl.gen("c")
    joined = await forks.join()
    await s.sync()
    return joined["c"], await s.text(), await s.messages()


@sgl.function
def plain(s, question):
    s += question + sgl.gen("a")
    return s["a"]


def test_an_async_program_is_awaited_and_its_state_can_be_read_at_once():
    async def main():
        state = await chat("q", backend=sgl.Mock("t"))
        return state, state["a"], state.text()

    state, value, text = asyncio.run(main())
    assert state.ret_value == (["t", "t"], "qt again: Tt", [])
    assert (value, text) == ("t", "qt again: Tt")


def test_an_async_program_runs_from_synchronous_code_too():
    state = chat.run("q", backend=sgl.Mock("t"))
    assert state["b"] == "t"
    states = chat.run_batch([("a",), ("b",)], backend=sgl.Mock("t"))
    assert [state["c"] for state in states] == [["t", "t"]] * 2


def test_the_body_runs_in_the_callers_event_loop():
    loops = []

    @sgl.function
    async def program(s):
        loops.append(asyncio.get_running_loop())
        s += sgl.gen("x")

    async def main():
        await program(backend=sgl.Mock("t"))
        return asyncio.get_running_loop()

    assert loops == [asyncio.run(main())] or loops[0] is not None


def test_blocking_calls_work_inside_a_running_loop_as_in_jupyter():
    async def cell():
        state = plain.run("q", backend=sgl.Mock("t"))
        streamed = plain.run("q", backend=sgl.Mock(["t", "u"]), stream=True)
        return state["a"], list(streamed.text_iter("a"))

    assert asyncio.run(cell()) == ("t", ["t"])


def test_many_at_once_with_gather():
    async def main():
        mock = sgl.Mock(lambda prompt, params: prompt)
        states = await asyncio.gather(*(plain.arun(str(i), backend=mock) for i in range(50)))
        return [state["a"] for state in states]

    assert asyncio.run(main()) == [str(i) for i in range(50)]


def test_awaitable_twins_of_a_plain_state():
    async def main():
        state = await plain.arun("q", backend=sgl.Mock("t"), stream=True)
        assert await state["a"] == "t"
        assert await state.text() == "qt"
        assert (await state) is state
        other = plain.run("q", backend=sgl.Mock("t"))
        assert await other.aio["a"] == "t"
        assert (await other.aio.get_meta_info("a"))["completion_tokens"] == 1
        return await plain.arun_batch([("a",), ("b",)], backend=sgl.Mock("t"))

    assert [state["a"] for state in asyncio.run(main())] == ["t", "t"]


def test_async_streaming_gives_deltas_in_time():
    async def main():
        state = await plain.arun("q", backend=sgl.Mock([["a", "b", "c"]]), stream=True)
        return [text async for text in state.text_async_iter("a")]

    assert asyncio.run(main()) == ["a", "b", "c"]


async def _eventually(condition):
    for _ in range(200):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never became true")


@pytest.mark.parametrize("program", [chat, plain])
def test_cancelling_the_task_aborts_its_requests(program):
    mock = sgl.Mock([["x"] * 10_000], delay=0.005)

    async def main():
        task = asyncio.ensure_future(program.arun("q", max_new_tokens=None, backend=mock))
        await _eventually(lambda: mock.calls)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await _eventually(lambda: mock.aborted == 1)

    asyncio.run(main())


def test_a_timeout_aborts_too():
    mock = sgl.Mock([["x"] * 10_000], delay=0.005)

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(chat("q", max_new_tokens=None, backend=mock), 0.5)
        await _eventually(lambda: mock.aborted == 1)

    asyncio.run(main())


def test_cancelling_a_streaming_state_fails_its_waiters():
    mock = sgl.Mock([["x"] * 10_000], delay=0.005)
    state = plain.run("q", max_new_tokens=None, backend=mock, stream=True)
    next(iter(state.text_iter("a")))
    state.cancel()
    with pytest.raises((sgl.ProgramCancelled, sgl.ProgramError)):
        state["a"]
    assert mock.aborted == 1


def test_cancelling_ends_a_body_that_waits_for_something_else():
    @sgl.function
    async def sleeps(s):
        s += "a"
        await asyncio.sleep(1000)

    state = sleeps.run(backend=sgl.Mock(), stream=True)
    assert next(iter(state.text_iter())) == "a"
    state.cancel()
    with pytest.raises(sgl.ProgramCancelled):
        state.sync()


def test_an_engine_is_freed_with_its_last_reference():
    engine = toy_engine()
    gone = weakref.ref(engine)
    plain.run("q", backend=engine, max_new_tokens=2)
    engine.shutdown()
    del engine
    gc.collect()  # a finished run is a cycle of its states
    assert gone() is None


def test_a_blocking_call_on_the_background_loop_is_an_error_not_a_hang():
    @sgl.function
    async def program(s):
        plain.run("q", backend=sgl.Mock("t"))

    with pytest.raises(RuntimeError, match="awaitable"):
        program.run(backend=sgl.Mock())


def test_failures_of_async_programs_surface():
    async def main():
        with pytest.raises(sgl.ProgramError, match="no power"):
            await chat("q", backend=sgl.Mock(OSError("no power")))
        state = await chat.arun("q", backend=sgl.Mock(OSError("no power")), stream=True)
        with pytest.raises(sgl.ProgramError, match="no power"):
            await state["a"]
        with pytest.raises(sgl.ProgramError, match="no power"):
            await state

    asyncio.run(main())
