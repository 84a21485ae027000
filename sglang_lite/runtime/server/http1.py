"""HTTP/1.1 under the application: uvicorn's protocol, with our error object for broken input."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from sglang_lite.runtime.server.errors import ApiError


class QuietTransport:
    """A transport that drops what is written once the connection is broken.

    The protocol hears of that in the loop's next turn only; asyncio would warn of each write.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        """Send, or not."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Http1Protocol(H11Protocol):
    """One connection.

    What h11 cannot read never reaches the application, so its refusal is written here.  h11 is
    always used, also where uvicorn would find httptools, because limits on headers are h11's.

    ``receive_timeout``: seconds from a request's first byte, or from the connection, to its last.
    ``send_timeout``: seconds that a full buffer waits for the client to read.  0 = no limit.
    """

    receive_timeout = 0.0
    send_timeout = 0.0

    _receiving: asyncio.TimerHandle | None = None
    _sending: asyncio.TimerHandle | None = None

    @classmethod
    def limited(cls, receive_timeout: float, send_timeout: float) -> type[Http1Protocol]:
        """The protocol with these limits."""
        limits = {"receive_timeout": receive_timeout, "send_timeout": send_timeout}
        return type(cls.__name__, (cls,), limits)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected; from now on it has to send."""
        super().connection_made(QuietTransport(transport))  # type: ignore[arg-type]
        self._watch_sender()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone, or we have closed."""
        for timer in (self._receiving, self._sending):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Act on what has come."""
        super().handle_events()
        self._watch_sender()

    def _watch_sender(self) -> None:
        """One clock per request, so that a byte now and then buys no time."""
        idle = self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None
        if idle or self.conn.their_state is h11.SEND_BODY:
            if self._receiving is None and self.receive_timeout and not self.transport.is_closing():
                self._receiving = self.loop.call_later(self.receive_timeout, self._on_slow_sender)
        elif self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def _on_slow_sender(self) -> None:
        self._receiving = None
        in_body = self.conn.their_state is h11.SEND_BODY
        if not in_body and not self.conn.trailing_data[0]:
            self.transport.close()  # it connected and said nothing: there is nothing to answer
            return
        text = f"The request did not arrive within {self.receive_timeout:g} s."
        error = ApiError(408, text, code="receive_timeout")
        self._refuse(error, self.scope["path"] if in_body else "")

    def pause_writing(self) -> None:
        """The client does not read, and what waits for it has reached its bound."""
        super().pause_writing()
        if self.send_timeout and self._sending is None:
            self._sending = self.loop.call_later(self.send_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP."""
        self._refuse(ApiError(400, "This is not a well-formed HTTP request.", code="invalid_http"))

    def _refuse(self, error: ApiError, path: str = "") -> None:
        """Answer and close; where an answer has begun already, only close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = bytes(error.response(path).body)
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("x-request-id", f"req-{uuid.uuid4().hex}"),
                ("connection", "close"),
            ]
            start = h11.Response(status_code=error.status, headers=headers)
            for part in (start, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(part) or b"")
        self.transport.close()
