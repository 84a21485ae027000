"""HTTP/1.1 under the application: uvicorn's protocol, with our error object for broken input."""

from __future__ import annotations

import json
import uuid

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from sglang_lite.runtime.server.errors import ApiError


class Http1Protocol(H11Protocol):
    """One connection.

    What h11 cannot read never reaches the application, so its refusal is written here.  h11 is
    always used, also where uvicorn would find httptools, because limits on headers are h11's.
    """

    def send_400_response(self, msg: str) -> None:
        """Refuse and close; where an answer has begun already, only close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            error = ApiError(400, "This is not a well-formed HTTP request.", code="invalid_http")
            body = json.dumps(error.to_dict()).encode()
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("x-request-id", f"req-{uuid.uuid4().hex}"),
                ("connection", "close"),
            ]
            start = h11.Response(status_code=400, headers=headers, reason="Bad Request")
            for part in (start, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(part) or b"")
        self.transport.close()
