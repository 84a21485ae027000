"""The ASGI application: all routes behind one guard."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import ValidationError
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from sglang_lite.errors import SglangLiteError
from sglang_lite.runtime.server import (
    anthropic_messages,
    decisions,
    native,
    openai_chat,
    openai_completions,
    openai_responses,
    operations,
    tokens,
    ui,
)
from sglang_lite.runtime.server.config import ServerConfig
from sglang_lite.runtime.server.context import ServerContext
from sglang_lite.runtime.server.errors import ERROR_SCHEMA, ApiError, handle
from sglang_lite.runtime.server.limits import Guard
from sglang_lite.runtime.server.schemas.chat import ChatCompletionRequest
from sglang_lite.runtime.server.schemas.completions import CompletionRequest
from sglang_lite.runtime.server.schemas.decisions import DecisionRequest
from sglang_lite.runtime.server.schemas.messages import Conversation, MessagesRequest
from sglang_lite.runtime.server.schemas.native import AbortBody, GenerateBody
from sglang_lite.runtime.server.schemas.responses import ResponsesRequest
from sglang_lite.runtime.server.schemas.tokens import DetokenizeRequest, TokenizeRequest

ROUTES = (
    operations,
    openai_chat,
    openai_completions,
    openai_responses,
    anthropic_messages,
    decisions,
    native,
    tokens,
    ui,
)
BODIES = (
    ChatCompletionRequest,
    CompletionRequest,
    ResponsesRequest,
    MessagesRequest,
    Conversation,
    DecisionRequest,
    GenerateBody,
    AbortBody,
    TokenizeRequest,
    DetokenizeRequest,
)
HANDLED = (
    *(ApiError, SglangLiteError, ValidationError),
    *(HTTPException, ClientDisconnect, Exception),
)


def create_app(config: ServerConfig) -> tuple[ASGIApp, ServerContext]:
    """The application, and the context to which the engine is attached once it has loaded."""
    server = ServerContext(config)
    app = FastAPI(
        title="sglang_lite",
        version=version("sglang-lite"),
        redirect_slashes=False,
        generate_unique_id_function=_operation_id,
    )
    app.state.server = server
    for module in ROUTES:
        app.include_router(module.router)
    for kind in HANDLED:
        app.add_exception_handler(kind, handle)
    _describe(app)
    return Guard(app, server), server


def _operation_id(route: APIRoute) -> str:
    return f"{min(route.methods or ())} {route.path}"


def _describe(app: FastAPI) -> None:
    """Complete ``/openapi.json``: routes parse their bodies and shape their errors themselves."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = plain()
            _, definitions = models_json_schema(
                [(model, "validation") for model in BODIES],
                ref_template="#/components/schemas/{model}",
            )
            schemas = {**definitions["$defs"], "Error": ERROR_SCHEMA}
            document["components"] = {"schemas": schemas}
            content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
            for path in document["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
                    operation["responses"]["default"] = {
                        "description": "Whatever went wrong",
                        "content": content,
                    }
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
