"""The reading end of a request, without an engine."""

from __future__ import annotations

import asyncio

import pytest

from sglang_lite.errors import EngineError
from sglang_lite.outputs import FinishReason, RequestOutput
from sglang_lite.runtime.output_stream import OutputStream

END = RequestOutput("r", 0, "b", finish_reason=FinishReason("stop"))


def stream() -> OutputStream:
    return OutputStream("r", 1, lambda: None)


def test_a_reader_is_woken_once_for_what_it_has_not_taken() -> None:
    made, calls = stream(), []
    made.subscribe(lambda: calls.append(1))
    made.put(RequestOutput("r", 0, "a"))
    made.put(END)
    assert len(calls) == 1
    assert made.take() == ([RequestOutput("r", 0, "a"), END], True)


def test_a_failure_before_anybody_listens_is_told_after_the_outputs() -> None:
    made, calls = stream(), []
    made.put(RequestOutput("r", 0, "a"))
    made.fail(EngineError("broken"))
    made.subscribe(lambda: calls.append(1))
    assert made.take()[0] == [RequestOutput("r", 0, "a")]
    assert len(calls) == 2, "nobody would look for the error"
    with pytest.raises(EngineError, match="broken"):
        made.take()


def test_async_readers_get_everything_then_the_error() -> None:
    made = stream()
    made.put(RequestOutput("r", 0, "a"))
    made.fail(EngineError("broken"))

    texts = []

    async def read() -> None:
        async for output in made:
            texts.append(output.text)  # noqa: PERF401

    with pytest.raises(EngineError, match="broken"):
        asyncio.run(asyncio.wait_for(read(), 5))
    assert texts == ["a"]
