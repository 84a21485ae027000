"""What stands before every route: who may ask, how much may come in, and the shape of refusals.

A plain ASGI wrapper, because it must also cover unknown URLs, wrong methods and failures of the
framework itself, and because Starlette's ``BaseHTTPMiddleware`` hides disconnects.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import re
import uuid
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglang_lite.runtime.server.config import LOOPBACK, ServerConfig
from sglang_lite.runtime.server.errors import ApiError

if TYPE_CHECKING:
    from sglang_lite.runtime.server.context import ServerContext

logger = logging.getLogger("sglang_lite.server")

OPEN_PATHS = ("/health", "/ready")
BROWSER_PATHS = ("/ui", "/debug/events", "/debug/radix")
"""Where the key may come as a password, because browsers ask their users for that."""
_BASIC = 'Basic realm="sglang_lite: any name, the API key as password", charset="UTF-8"'
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:@/?#]*))(?::[0-9]*)?")
MAX_HEADER_BYTES = 64 * 1024


class Guard:
    """Request ids, Host and Origin, the API key, content type and body size; the last resort."""

    def __init__(self, app: ASGIApp, server: ServerContext) -> None:
        self._app = app
        self._server = server
        self._key = _digest(server.config.api_key) if server.config.api_key else None
        self._hosts = _allowed_hosts(server.config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection's request, or the server's lifespan."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
                return
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the connection knows, and sends no body
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
        exchange = _Exchange(send, request_id)
        body = _BoundedBody(receive, self._server.config.max_body_size)
        try:
            self._check(scope, headers)
            exchange.origin = headers.get("origin")
            if _is_preflight(scope, headers):
                await _PREFLIGHT(scope, body.receive, exchange.send)
                return
            await self._app(scope, body.receive, exchange.send)
        except ApiError as error:
            await exchange.refuse(error, scope, body.receive)
        except Exception:
            logger.exception("request %s failed", request_id)
            failure = ApiError(
                500, "The server failed on this request; its log says why.", code="internal_error"
            )
            await exchange.refuse(failure, scope, body.receive)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._server.metrics.responded(route, exchange.status)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Refuse what no route should see; the cheap checks of a browser's attacks come first."""
        _check_framing(scope, headers)
        host = _host_name(headers.get("host", ""))
        if self._hosts is not None and host not in self._hosts:
            raise ApiError(
                403,
                f"The Host {headers.get('host', '')[:100]!r} is not served here "
                "(see --allowed-hosts).",
                code="host_not_allowed",
            )
        origin = headers.get("origin")
        if origin is not None and not self._own_origin(origin, headers.get("host", "")):
            raise ApiError(
                403,
                f"Pages of {origin[:100]!r} may not call this server (see --allowed-origins).",
                code="origin_not_allowed",
            )
        # A browser sends its preflight without the key; the request itself will have it.
        open_path = scope["path"] in OPEN_PATHS or _is_preflight(scope, headers)
        if self._key is not None and not open_path:
            self._check_key(headers, browser=scope["path"] in BROWSER_PATHS)
        if scope["method"] in ("POST", "PUT", "PATCH"):
            _check_body_headers(headers, self._server.config.max_body_size)

    def _own_origin(self, origin: str, host: str) -> bool:
        allowed = self._server.config.allowed_origins
        if "*" in allowed or origin in allowed:
            return True
        try:
            return urlsplit(origin).netloc == host
        except ValueError:
            return False

    def _check_key(self, headers: Headers, browser: bool) -> None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if browser and scheme.lower() == "basic":
            given = _basic_password(token)
        if not hmac.compare_digest(_digest(given), self._key or b""):
            raise ApiError(
                401,
                "This server needs an API key, and none or a wrong one came: send "
                "'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
                code="invalid_api_key",
                headers={"www-authenticate": _BASIC if browser else "Bearer"},
            )


class _Exchange:
    """The sending side of one request: adds headers, knows whether a response has begun."""

    def __init__(self, send: Send, request_id: str) -> None:
        self.status = 0
        self.origin: str | None = None  # once it has passed the check
        self._send = send
        self._request_id = request_id

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self._request_id
            headers["x-content-type-options"] = "nosniff"
            if self.origin is not None:
                headers["access-control-allow-origin"] = self.origin
                headers["vary"] = "origin"
        await self._send(message)

    async def refuse(self, error: ApiError, scope: Scope, receive: Receive) -> None:
        if not self.status:
            await error.response(scope["path"])(scope, receive, self.send)


class _BoundedBody:
    """The receiving side: counts bytes, for bodies without a Content-Length."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._seen = 0

    async def receive(self) -> Message:
        message = await self._receive()
        self._seen += len(message.get("body", b""))
        if self._seen > self._limit:
            raise _too_large(self._limit)
        return message


_PREFLIGHT = Response(
    status_code=204,
    headers={
        "access-control-allow-methods": "GET, POST, PUT",
        "access-control-allow-headers": "authorization, content-type, x-api-key, x-request-id",
        "access-control-max-age": "600",
    },
)


def _is_preflight(scope: Scope, headers: Headers) -> bool:
    """A browser asks whether a page of a foreign origin, which has been checked, may call."""
    return scope["method"] == "OPTIONS" and "access-control-request-method" in headers


def _check_framing(scope: Scope, headers: Headers) -> None:
    """Refuse what another server on the way here may have read in another way."""
    if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
        raise ApiError(
            431,
            f"The headers are larger than {MAX_HEADER_BYTES} bytes.",
            code="headers_too_large",
            headers={"connection": "close"},
        )
    if "content-length" in headers and "transfer-encoding" in headers:
        raise ApiError(
            400,
            "A request has a Content-Length or a Transfer-Encoding, not both.",
            code="invalid_http",
            headers={"connection": "close"},
        )


def _check_body_headers(headers: Headers, limit: int) -> None:
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    if length == "0" or (not length and "transfer-encoding" not in headers):
        return
    # A form that a foreign page posts can have three types, and JSON is none of them.
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise ApiError(
            415,
            f"Bodies must be 'Content-Type: application/json', not {kind[:100]!r}.",
            code="unsupported_media_type",
        )
    if headers.get("content-encoding", "identity").lower() != "identity":
        text = "Bodies must not be compressed (Content-Encoding)."
        raise ApiError(415, text, code="unsupported_media_type")


def _too_large(limit: int) -> ApiError:
    return ApiError(
        413,
        f"The body is larger than {limit} bytes (see --max-body-size).",
        code="request_too_large",
        headers={"connection": "close"},
    )


def _allowed_hosts(config: ServerConfig) -> frozenset[str] | None:
    """Names that the Host header may have, or None where every name is right.

    A server for other machines cannot know its names, so only ``allowed_hosts`` restricts it.
    """
    if "*" in config.allowed_hosts or not (config.loopback or config.allowed_hosts):
        return None
    return frozenset({*LOOPBACK, config.host.lower(), *(h.lower() for h in config.allowed_hosts)})


def _host_name(host: str) -> str | None:
    """``[::1]:80`` and ``localhost:80`` without port and brackets; None for what is no host."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower() if found else None


def _basic_password(token: str) -> str:
    try:
        return base64.b64decode(token, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _digest(key: str) -> bytes:
    # Digests have one length, so that comparing them in constant time hides the key's length too.
    return hashlib.sha256(key.encode()).digest()
