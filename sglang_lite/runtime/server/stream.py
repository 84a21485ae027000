"""Server-sent events, and noticing that a client has gone away, in every phase of a request."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sglang_lite.runtime.server.errors import CLIENT_GONE, ApiError, to_api_error

logger = logging.getLogger("sglang_lite.server")

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode

Handler = Callable[[Request], Awaitable[Response]]


def event(data: Any, name: str | None = None) -> bytes:
    """One event with JSON data; ``name`` adds an ``event:`` line."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {_encode(data)}\n\n".encode()


@dataclass(frozen=True)
class Manner:
    """What one API's streams hold besides their source's events.

    ``error``: the event of a failure.  ``ping``: what fills a silence.  ``end``: the last bytes.
    """

    error: Callable[[ApiError], bytes] = lambda failure: event(failure.to_dict())
    ping: bytes = b": keep-alive\n\n"
    end: bytes = b"data: [DONE]\n\n"


COMPLETIONS = Manner()
BARE = Manner(end=b"")
MESSAGES = Manner(
    error=lambda failure: event(failure.to_anthropic(), "error"),
    ping=event({"type": "ping"}, "ping"),
    end=b"",
)


class EventStream(Response):
    """A response of events.

    The source is closed as soon as the client has gone, also while it waits; and then ``close`` is
    called, because a source that never started has no ``finally``.  If the source fails, an error
    event and the API's last bytes follow: clients do not notice a stream that just ends.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        source: AsyncGenerator[bytes, None],
        *,
        close: Callable[[], None] = lambda: None,
        keep_alive: float = 15.0,
        headers: dict[str, str] | None = None,
        manner: Manner = COMPLETIONS,
    ) -> None:
        self.status_code = 200
        self.background = None
        self._source = source
        self._close = close
        self._keep_alive = keep_alive
        self._manner = manner
        self._silent = True
        self.init_headers(
            {"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the source or the client ends."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        tasks = [asyncio.ensure_future(_gone(receive))]
        try:
            await send(start)
            tasks.append(asyncio.ensure_future(self._send_all(send)))
            if self._keep_alive > 0:
                tasks.append(asyncio.ensure_future(self._ping(send)))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await self._source.aclose()
            self._close()
        for result in results:
            # A peer that resets the connection is a client that has gone.
            if isinstance(result, Exception) and not isinstance(result, OSError):
                raise result

    async def _send_all(self, send: Send) -> None:
        try:
            async for piece in self._source:
                self._silent = False
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except OSError:
            raise
        except Exception as error:
            failure = to_api_error(error)
            if failure.code == "internal_error":
                logger.exception("a stream failed")
            body = self._manner.error(failure)
            await send({"type": "http.response.body", "body": body, "more_body": True})
        last = {"type": "http.response.body", "body": self._manner.end, "more_body": False}
        await send(last)

    async def _ping(self, send: Send) -> None:
        while True:
            self._silent = True
            await asyncio.sleep(self._keep_alive)
            if self._silent:
                ping = {"type": "http.response.body", "body": self._manner.ping}
                await send({**ping, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def cancellable(handler: Handler) -> Handler:
    """A handler that is cancelled when its client goes away.

    Polling would miss the phases in which nothing is sent: templates, compilation, the queue.
    """

    @functools.wraps(handler)
    async def run(request: Request) -> Response:
        await request.body()
        work = asyncio.ensure_future(handler(request))
        watch = asyncio.ensure_future(_gone(request.receive))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return Response(status_code=CLIENT_GONE)
            return work.result()
        finally:
            for task in (work, watch):
                task.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)

    return run
