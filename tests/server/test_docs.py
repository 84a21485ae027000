"""The reference of the requests' fields against the models that read them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from sglang_lite.constraint import CONSTRAINT_FIELDS, JSON_OPTIONS
from sglang_lite.runtime.options import described
from sglang_lite.runtime.server.app import BODIES, create_app
from sglang_lite.runtime.server.config import ServerConfig
from sglang_lite.runtime.server.schemas.chat import ChatCompletionRequest, SamplingFields
from sglang_lite.runtime.server.schemas.completions import CompletionRequest
from sglang_lite.runtime.server.schemas.constraints import ConstraintFields
from sglang_lite.runtime.server.schemas.decisions import DecisionRequest
from sglang_lite.runtime.server.schemas.messages import Conversation, MessagesRequest
from sglang_lite.runtime.server.schemas.native import AbortBody, GenerateBody
from sglang_lite.runtime.server.schemas.responses import ResponsesRequest
from sglang_lite.runtime.server.schemas.tokens import DetokenizeRequest, TokenizeRequest
from sglang_lite.sampling_params import SamplingParams

DOCS = Path(__file__).parents[2] / "docs"
SHARED = ("Sampling", "Constraints")
SECTIONS: dict[type[BaseModel], tuple[str, ...]] = {
    ChatCompletionRequest: ("POST /v1/chat/completions", *SHARED),
    CompletionRequest: ("POST /v1/completions", *SHARED),
    SamplingFields: SHARED,
    ConstraintFields: ("Constraints",),
    ResponsesRequest: ("POST /v1/responses",),
    MessagesRequest: ("POST /v1/messages",),
    Conversation: ("POST /v1/messages",),
    DecisionRequest: ("POST /v1/decisions",),
    GenerateBody: ("POST /generate",),
    AbortBody: ("POST /abort_request",),
    TokenizeRequest: ("POST /tokenize",),
    DetokenizeRequest: ("POST /detokenize",),
}
OF_CHAT = ("ToolCall", "FunctionCall", "Message", "Tool", "FunctionSpec")
"""What other requests share with a chat is explained there."""


def named(*sections: str) -> set[str]:
    """The words in code spans of these sections."""
    text = (DOCS / "api.md").read_text()
    parts = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
    spans = [span for name in sections for span in re.findall(r"`([^`]+)`", parts[name])]
    return {word for span in spans for word in re.findall(r"\w+", span)}


def models(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for inner in get_args(kind):
        yield from models(inner)


def fields(model: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[str]:
    """The names on the wire, also of objects inside."""
    if model in seen:
        return
    seen.add(model)
    for name, field in model.model_fields.items():
        yield field.alias or name
        for inner in models(field.annotation):
            yield from fields(inner, seen)


def test_every_body_has_its_section() -> None:
    assert set(BODIES) <= set(SECTIONS)


@pytest.mark.parametrize("model", SECTIONS, ids=lambda model: model.__name__)
def test_every_field_is_named(model: type[BaseModel]) -> None:
    sections = SECTIONS[model]
    if model in (TokenizeRequest, DecisionRequest):
        sections = (*sections, "POST /v1/chat/completions", "POST /v1/responses")
    missing = set(fields(model, set())) - named(*sections)
    assert not missing


def test_sampling_params_of_generate_are_named() -> None:
    known = {*SamplingParams.__dataclass_fields__} - {"constraint"}
    known |= {*CONSTRAINT_FIELDS, *JSON_OPTIONS, "sampling_seed"}
    assert not known - named("POST /generate")


@pytest.mark.parametrize("model", [SamplingFields, MessagesRequest])
def test_ignored_fields_are_named(model: type[Any]) -> None:
    sections = SECTIONS[model]
    ignored = ChatCompletionRequest.ignored if model is SamplingFields else model.ignored
    assert not set(ignored) - named(*sections)


def test_extensions_are_named_in_the_guide() -> None:
    guide = (DOCS / "server.md").read_text()
    for name in ("json_options", "prefix", "return_token_bytes", "return_token_ids", "cache_salt"):
        assert f"`{name}`" in guide


def test_every_route_is_named() -> None:
    guide = (DOCS / "server.md").read_text()
    _, server = create_app(ServerConfig())
    assert server.phase == "loading"
    from sglang_lite.runtime.server.app import ROUTES

    for module in ROUTES:
        for route in module.router.routes:
            path = route.path.replace("/v1/tokenize", "/tokenize")
            path = path.replace("/v1/detokenize", "/detokenize").split("{")[0]
            assert path in guide or path.startswith("/debug"), path


def test_every_limit_of_http_is_in_the_guide() -> None:
    guide = (DOCS / "server.md").read_text()
    for name in described(ServerConfig):
        if name.endswith("timeout") or name.startswith("constrained_json"):
            assert "--" + name.replace("_", "-") in guide, name
