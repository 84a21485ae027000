"""One error object for everything that is not a 2xx, in OpenAI's nested shape.

``{"error": {"message", "type", "param", "code"}}``: openai-python and openai-node both unwrap
``error``, and both show only ``message`` to their users, so the message always stands alone.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from sglang_lite.errors import (
    ConstraintError,
    EngineError,
    InvalidRequest,
    QueueFull,
    RequestAborted,
    SglangLiteError,
)

MAX_MESSAGE = 1000
"""Characters of one error's message: a short request must not buy a long answer."""

CLIENT_GONE = 499
"""The status, in metrics only, of a request whose client left; nobody receives it."""

ANTHROPIC_PATH = "/v1/messages"
"""Below it, errors have Anthropic's shape."""

MAX_PARAM = 200
MAX_ERRORS = 10

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


_TEXT_OR_NULL = {"type": ["string", "null"]}
ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "type": {"const": "error"},  # in Anthropic's shape only
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": _TEXT_OR_NULL,
                "code": _TEXT_OR_NULL,
            },
        },
    },
}


class ApiError(Exception):
    """An error with its HTTP status; raised anywhere below a route, or sent as a stream's event.

    ``param`` is the dotted path of the offending field, ``code`` a machine-readable name.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "…"
        self.code = code
        self.param = param and param[:MAX_PARAM]
        self.headers = dict(headers or {})
        if status >= 500 and "retry-after" not in self.headers:
            self.headers["x-should-retry"] = "false"

    def to_dict(self) -> dict[str, Any]:
        """The body, for a response or for an error event."""
        default = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, default),
                "param": self.param,
                "code": self.code,
            }
        }

    def to_anthropic(self) -> dict[str, Any]:
        """The same in the shape of Anthropic's API; ``param`` and ``code`` are an addition."""
        default = "api_error" if self.status >= 500 else "invalid_request_error"
        kind = {413: "request_too_large"}.get(self.status) or _TYPES.get(self.status, default)
        error = {"type": kind, "message": self.message, "param": self.param, "code": self.code}
        return {"type": "error", "error": error}

    def response(self, path: str = "") -> JSONResponse:
        """The whole HTTP response to a request of ``path``."""
        anthropic = path.startswith(ANTHROPIC_PATH)
        body = self.to_anthropic() if anthropic else self.to_dict()
        return JSONResponse(body, self.status, self.headers)


def invalid(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """A 400 about one field."""
    return ApiError(400, message, code=code, param=param)


def overloaded(message: str, code: str, retry_after: int = 1) -> ApiError:
    """A 503 that asks the client to come back."""
    return ApiError(503, message, code=code, headers={"retry-after": str(retry_after)})


def to_api_error(error: BaseException, param: str | None = None) -> ApiError:
    """Any exception as an :class:`ApiError`.

    ``param`` names the field of a constraint, which the compiler cannot know.  The text of an
    unforeseen exception is never sent: it may hold paths.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ValidationError):
        return _from_validation(error)
    if isinstance(error, InvalidRequest):
        return ApiError(400, str(error), code=error.code, param=error.field)
    if isinstance(error, ConstraintError):
        return ApiError(400, str(error), code=error.code, param=param)
    if isinstance(error, QueueFull):
        return overloaded(str(error), error.code)
    if isinstance(error, RequestAborted):
        return ApiError(400, str(error), code=error.code)
    if isinstance(error, HTTPException):
        return _from_http(error)
    if isinstance(error, EngineError):
        return ApiError(500, f"The engine failed on this request: {error}", code=error.code)
    code = error.code if isinstance(error, SglangLiteError) else "internal_error"
    return ApiError(500, "The server failed on this request; its log says why.", code=code)


async def handle(request: Request, error: Exception) -> Response:
    """The exception handler of every route."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=CLIENT_GONE)
    return to_api_error(error).response(request.url.path)


def _from_http(error: HTTPException) -> ApiError:
    codes = {404: "unknown_url", 405: "method_not_allowed"}
    return ApiError(
        error.status_code,
        {404: "There is no such URL here.", 405: "This URL does not take this method."}.get(
            error.status_code, str(error.detail)
        ),
        code=codes.get(error.status_code),
        headers=dict(error.headers or {}),
    )


_PYDANTIC_CODES = {
    "missing": "missing_required_parameter",
    "unknown_parameter": "unknown_parameter",
    "unsupported_value": "unsupported_value",
}


def _from_validation(error: ValidationError) -> ApiError:
    found = error.errors(include_url=False, include_input=False)
    # Of a union's branches the one that got furthest is what the client meant.
    found.sort(key=lambda item: -len(item["loc"]))
    paths = {_dotted(item): item for item in reversed(found)}
    outer = {path[:at] for path in paths for at, char in enumerate(path) if char == "."}
    named = [path for path in paths if path not in outer] or [""]
    first, path = paths[named[0]], named[0]
    texts = [f"{name}: {paths[name]['msg']}" if name else paths[name]["msg"] for name in named]
    kind = first["type"]
    is_type = kind.endswith(("_type", "_parsing")) or kind.startswith(("is_", "model_"))
    code = _PYDANTIC_CODES.get(kind, "invalid_type" if is_type else "invalid_value")
    return ApiError(400, "; ".join(texts[:MAX_ERRORS]), code=code, param=path or None)


def _dotted(item: Any) -> str:
    """``messages.0.content``: a path without the names that pydantic gives to union branches."""
    path = [*item["loc"]]
    if "field" in item.get("ctx", {}):
        path.append(item["ctx"]["field"])
    inner = ("str", "int", "bool", "float", "dict", "list", "function", "constrained", "literal")
    kept = [
        str(step)
        for number, step in enumerate(path)
        if number == 0
        or not isinstance(step, str)
        or not (step.startswith(tuple(f"{name}[" for name in inner)) or step in inner[:6])
    ]
    return ".".join(step for step in kept if not step[:1].isupper())
