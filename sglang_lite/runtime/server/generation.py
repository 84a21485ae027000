"""The engine's requests behind one HTTP request: admitted, read and freed together."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi.responses import JSONResponse

from sglang_lite.errors import ConstraintError
from sglang_lite.outputs import joined
from sglang_lite.runtime.messages import (
    FinishReason,
    GenerateRequest,
    Logprobs,
    RequestOutput,
    TokenLogprob,
    Usage,
)
from sglang_lite.runtime.output_stream import OutputStream, call_in
from sglang_lite.runtime.server.errors import ApiError, overloaded, to_api_error
from sglang_lite.runtime.server.stream import COMPLETIONS, EventStream, Manner
from sglang_lite.sampling_params import SamplingParams

if TYPE_CHECKING:
    from sglang_lite.runtime.server.context import ServerContext

logger = logging.getLogger("sglang_lite.server")


@dataclass
class Sample:
    """Everything that one sample has produced so far."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    top_logprobs: list[Sequence[TokenLogprob]] = field(default_factory=list)
    chosen_logprobs: list[Sequence[TokenLogprob]] = field(default_factory=list)
    prompt_logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None
    usage: Usage = field(default_factory=Usage)

    def add(self, output: RequestOutput) -> None:
        """Take in the news."""
        self.text += output.text
        self.token_ids += output.token_ids
        if output.logprobs is not None:
            self.logprobs += output.logprobs.tokens
            self.top_logprobs += output.logprobs.top
            self.chosen_logprobs += output.logprobs.chosen_ids
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        self.finish_reason = output.finish_reason or self.finish_reason
        self.usage = output.usage


class Generation:
    """Running requests; use as a context manager, leaving it aborts what still runs."""

    def __init__(self, server: ServerContext, name: str, streams: list[OutputStream]) -> None:
        self.name = name
        self.streams = streams
        self.usages: list[Usage] = []
        self._server = server
        self._reasons: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False
        self._started = time.perf_counter()

    @classmethod
    async def start(
        cls,
        server: ServerContext,
        name: str,
        requests: Sequence[GenerateRequest],
        *,
        timeout: float | None = None,
        param: str | None = None,
    ) -> Generation:
        """Compile, check and admit all requests, or none and raise an :class:`ApiError`.

        ``name`` is the id in the log, ``param`` the field that an error about the constraint names.
        """
        engine = server.admit()
        limits = [limit for limit in (timeout, server.config.request_timeout) if limit]
        generation = cls(server, name, [])
        try:
            for request in requests:
                limit = min(limits) if limits else None
                stream = await asyncio.wait_for(engine.asubmit(request), limit)
                generation.streams.append(stream)
        except BaseException as error:
            for stream in generation.streams:
                stream.abort()
            server.metrics.rejected(error)
            if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
                raise _timed_out() from None
            if isinstance(error, ConstraintError):
                raise to_api_error(error, param) from None
            raise
        if limits:
            loop = asyncio.get_running_loop()
            generation._timer = loop.call_later(min(limits), generation._expire)
        server.running.add(name)
        return generation

    def _expire(self) -> None:
        self._expired = True
        self._abort()

    def _abort(self) -> None:
        for stream in self.streams:
            stream.abort()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free everything; a second call does nothing."""
        if self.name not in self._server.running:
            return
        self._server.running.discard(self.name)
        if self._timer is not None:
            self._timer.cancel()
        self._abort()
        usage, cached = total(self.usages), max((u.cached_tokens for u in self.usages), default=0)
        took = time.perf_counter() - self._started
        logger.info(
            "%s prompt=%d cached=%d new=%d ttft=%.3fs took=%.3fs rate=%.1ftok/s finish=%s",
            self.name,
            usage.prompt_tokens,
            cached,
            usage.completion_tokens,
            usage.ttft_s,
            took,
            usage.completion_tokens / took if took > 0 else 0.0,
            ",".join(sorted(set(self._reasons))) or "disconnected",
        )

    async def outputs(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        """News of any of the requests: (number of the request, output)."""
        clock = self._server.metrics.clock()
        async for number, output in _merged(self.streams):
            clock.tick((number, output.index), output)
            reason = output.finish_reason
            if reason is not None:
                self.usages.append(output.usage)
                self._reasons.append(reason.type)
            yield number, output

    async def collect(self, n: int) -> list[list[Sample]]:
        """All samples of all requests, in order, once everything has finished."""
        samples = [[Sample() for _ in range(n)] for _ in self.streams]
        async for number, output in self.outputs():
            samples[number][output.index].add(output)
        return samples

    def stream(
        self,
        source: AsyncGenerator[bytes, None],
        headers: dict[str, str] | None = None,
        manner: Manner = COMPLETIONS,
    ) -> EventStream:
        """The response that sends the events of ``source``, and closes this when it ends."""
        interval = self._server.config.sse_keep_alive_interval
        return EventStream(
            source, close=self.close, keep_alive=interval, headers=headers, manner=manner
        )

    def check(self, reason: FinishReason | None) -> None:
        """Raise an :class:`ApiError` if the request was ended from outside."""
        if reason is None or reason.type != "abort":
            return
        if self._expired:
            raise _timed_out()
        if self._server.phase == "draining":
            raise overloaded("The server is shutting down.", "shutting_down", 5)
        text = reason.message or "The request was aborted."
        raise ApiError(400, text, code="request_aborted")


async def json_answer(
    make: Callable[[], Any], headers: dict[str, str] | None = None
) -> JSONResponse:
    """A response of what ``make`` returns, off the event loop: log probabilities are long."""
    return await asyncio.to_thread(lambda: JSONResponse(make(), headers=headers))


def clamped(params: SamplingParams, prompt_tokens: int, context_length: int) -> SamplingParams:
    """``max_new_tokens`` cut to the room that the prompt leaves in the context."""
    room, wanted = context_length - prompt_tokens, params.max_new_tokens
    if wanted is None or not wanted > room > 0:
        return params
    smallest = min(params.min_new_tokens, room)
    return params.replace(max_new_tokens=room, min_new_tokens=smallest)


def total(usages: Sequence[Usage]) -> Usage:
    """The sum over samples; a prompt's tokens must be counted by the caller."""
    return Usage(
        prompt_tokens=max((usage.prompt_tokens for usage in usages), default=0),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=max((usage.cached_tokens for usage in usages), default=0),
        forced_tokens=sum(usage.forced_tokens for usage in usages),
        ttft_s=min((usage.ttft_s for usage in usages), default=0.0),
    )


def _timed_out() -> ApiError:
    return ApiError(504, "The request took longer than its time limit.", code="request_timeout")


async def _merged(streams: list[OutputStream]) -> AsyncIterator[tuple[int, RequestOutput]]:
    """What any of the streams has, as soon as it has it; all that waits already in one output."""
    loop = asyncio.get_running_loop()
    news: asyncio.Queue[int] = asyncio.Queue()
    for number, stream in enumerate(streams):
        stream.subscribe(partial(call_in, loop, partial(news.put_nowait, number)))
    live = len(streams)
    while live:
        number = await news.get()
        outputs, finished = streams[number].take()
        live -= finished
        for output in joined(outputs):
            yield number, output
