"""Streams lose nothing, whatever the pace of the reader."""

from __future__ import annotations

import asyncio
import time

import pytest

import sglang_lite as sgl
from sglang_lite.lang import events

DELTAS = [f"{i} " for i in range(10)]


@sgl.function
def program(s):
    s += "start " + sgl.gen("x") + "end"


def test_a_slow_reader_gets_everything():
    state = program.run(backend=sgl.Mock([DELTAS]), stream=True)
    read = []
    for piece in state.text_iter("x"):
        time.sleep(0.005)
        read.append(piece)
    assert read == DELTAS
    assert "".join(state.text_iter()) == "start " + "".join(DELTAS) + "end"


def test_a_fast_reader_waits_for_every_delta():
    state = program.run(backend=sgl.Mock([DELTAS], delay=0.03), stream=True)
    assert "".join(state.text_iter("x")) == "".join(DELTAS)


def test_without_stream_everything_comes_at_once():
    state = program.run(backend=sgl.Mock("text "))
    assert list(state.text_iter()) == ["start text end"]
    assert list(state.text_iter("x")) == ["text "]


def test_two_readers_and_a_scope():
    @sgl.function
    def scoped(s):
        with s.var_scope("whole"):
            s += "a" + sgl.gen("x")

    state = scoped.run(backend=sgl.Mock("b"), stream=True)
    assert list(state.text_iter("whole")) == ["ab"]
    assert list(state.text_iter("x")) == ["b"]
    assert "".join(state.text_iter()) == "ab"


def test_an_unknown_variable_ends_with_a_key_error():
    state = program.run(backend=sgl.Mock("x"), stream=True)
    with pytest.raises(KeyError, match="other"):
        list(state.text_iter("other"))


def test_reading_a_variable_before_the_body_has_submitted_it():
    @sgl.function
    def late(s):
        time.sleep(0.05)
        s += sgl.gen("x")

    assert late.run(backend=sgl.Mock("there"), stream=True)["x"] == "there"


def test_async_iteration_with_meta_data():
    async def read():
        state = program.run(backend=sgl.Mock([["a", "b"]]), stream=True)
        return [pair async for pair in state.text_async_iter("x", return_meta_data=True)]

    pairs = asyncio.run(read())
    assert [text for text, _ in pairs] == ["a", "b", ""]
    assert pairs[0][1] is None
    assert pairs[-1][1]["finish_reason"] == {"type": "stop"}
    assert pairs[-1][1]["completion_tokens"] == 2


def test_one_event_stream_for_the_whole_run_with_paths():
    @sgl.function
    def forking(s):
        s += sgl.user("q")
        forks = s.fork(2)
        forks += lambda i: str(i) + sgl.gen("x")
        forks.join()
        s += sgl.select("y", ["no", "yes"])

    async def read():
        return [event async for event in forking.stream(backend=sgl.Mock("t"))]

    seen = asyncio.run(read())
    texts = {
        path: "".join(e.text for e in seen if isinstance(e, events.TextEvent) and e.path == path)
        for path in [(), (0,), (1,)]
    }
    assert texts == {(): "<|im_start|>user\nq<|im_end|>\nno", (0,): "0t", (1,): "1t"}
    ends = [(e.path, e.name, e.value) for e in seen if isinstance(e, events.VariableEnd)]
    assert sorted(ends) == [((), "y", "no"), ((0,), "x", "t"), ((1,), "x", "t")]
    assert [e.children for e in seen if isinstance(e, events.ForkEvent)] == [((0,),), ((1,),)]
    assert len([e for e in seen if isinstance(e, events.UsageEvent)]) == 2


def test_leaving_the_event_stream_cancels_the_run():
    mock = sgl.Mock([["x"] * 1000], delay=0.005)

    async def leave():
        stream = program.stream(backend=mock)
        async for event in stream:
            if isinstance(event, events.VariableDelta):
                break
        await stream.aclose()
        for _ in range(100):
            if mock.aborted:
                return
            await asyncio.sleep(0.01)

    asyncio.run(leave())
    assert mock.aborted == 1
