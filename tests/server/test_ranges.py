"""Every field of the requests at both ends of its range."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from sglang_lite.constraint import CONSTRAINT_FIELDS
from sglang_lite.runtime.server.schemas.chat import ChatCompletionRequest, SamplingFields
from sglang_lite.runtime.server.schemas.completions import CompletionRequest
from sglang_lite.runtime.server.schemas.decisions import DecisionRequest
from sglang_lite.runtime.server.schemas.native import AbortBody, GenerateBody
from sglang_lite.runtime.server.schemas.responses import ResponsesRequest
from sglang_lite.runtime.server.schemas.tokens import DetokenizeRequest, TokenizeRequest
from sglang_lite.sampling_params import SamplingParams
from tests.server import ranges
from tests.server.live import Live, error_of, hello

SHARED = set(SamplingFields.model_fields)
"""Read by one class for chats and completions, so tried on chats only."""
PATHS: dict[str, tuple[str, ranges.Table, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", ranges.CHAT, {"messages": hello()}),
    "completions": ("/v1/completions", ranges.COMPLETION, {"prompt": "a"}),
    "generate": ("/generate", ranges.GENERATE, {"text": "ab"}),
    "responses": ("/v1/responses", ranges.RESPONSES, {"input": "a"}),
    "decisions": (
        "/v1/decisions",
        ranges.DECISIONS,
        {"input": "a", "questions": [ranges.QUESTION]},
    ),
    "tokenize": ("/tokenize", ranges.TOKENIZE, {"prompt": "a"}),
    "tokenize-chat": ("/tokenize", ranges.TOKENIZE_CHAT, {"messages": hello()}),
    "detokenize": ("/detokenize", ranges.DETOKENIZE, {"tokens": [1]}),
    "abort": ("/abort_request", ranges.ABORT, {"rid": "a"}),
}
NEEDS: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "token_ids_logprob": {"return_logprob": True},
    "input_ids": {"text": None},
}
"""What a field needs beside itself."""

CASES = [
    pytest.param(where, name, *values, id=f"{where}-{name}")
    for where, (_, table, _) in PATHS.items()
    for name, values in table.items()
]


def check(live: Live, path: str, value: object, body: dict[str, Any], ok: bool) -> None:
    response = live.post(path, **body)
    assert (response.status_code == 200) == ok, (value, response.text)
    if not ok:
        error_of(response, 404 if "model_not_found" in response.text else 400)


@pytest.mark.parametrize(("where", "name", "good", "bad"), CASES)
def test_a_field(live: Live, where: str, name: str, good: list[Any], bad: list[Any]) -> None:
    path, _, base = PATHS[where]
    for ok, values in ((True, good), (False, bad)):
        for value in values:
            body = {**base, **NEEDS.get(name, {}), name: value}
            check(live, path, value, body, ok)


@pytest.mark.parametrize("name", ranges.NATIVE)
def test_a_sampling_parameter_of_generate(live: Live, name: str) -> None:
    beside = {"json_options": {"json_schema": "{}"}, "prefix": {"regex": "a"}}.get(name, {})
    for ok, values in zip((True, False), ranges.NATIVE[name], strict=True):
        for value in values:
            body = {"text": "ab", "sampling_params": {**beside, name: value}}
            check(live, "/generate", value, body, ok)


@pytest.mark.parametrize(
    ("model", "tables"),
    [
        (ChatCompletionRequest, [ranges.CHAT]),
        (CompletionRequest, [ranges.COMPLETION]),
        (GenerateBody, [ranges.GENERATE]),
        (ResponsesRequest, [ranges.RESPONSES]),
        (DecisionRequest, [ranges.DECISIONS]),
        (TokenizeRequest, [ranges.TOKENIZE, ranges.TOKENIZE_CHAT]),
        (DetokenizeRequest, [ranges.DETOKENIZE]),
        (AbortBody, [ranges.ABORT]),
    ],
)
def test_no_field_is_left_out(model: type[BaseModel], tables: list[ranges.Table]) -> None:
    fields = set(model.model_fields)
    if model is CompletionRequest:
        fields -= SHARED
    assert fields == {name for table in tables for name in table}


def test_no_sampling_parameter_is_left_out() -> None:
    known = {*SamplingParams.__dataclass_fields__, *CONSTRAINT_FIELDS} - {"constraint"}
    assert not known - set(ranges.NATIVE)
