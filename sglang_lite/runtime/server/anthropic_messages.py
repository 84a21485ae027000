"""Anthropic's ``POST /v1/messages``: a chat request in other words, with Anthropic's events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any

from fastapi import APIRouter, Request
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.responses import Response

from sglang_lite.errors import SglangLiteError
from sglang_lite.runtime.messages import FinishReason, Usage
from sglang_lite.runtime.server.context import ServerContext, server_of
from sglang_lite.runtime.server.errors import ApiError, to_api_error
from sglang_lite.runtime.server.generation import Generation, json_answer
from sglang_lite.runtime.server.openai_chat import check_tool_schemas, prompt_ids, start_chat
from sglang_lite.runtime.server.prompts import new_id
from sglang_lite.runtime.server.schemas.messages import Conversation, MessagesRequest
from sglang_lite.runtime.server.schemas.wire import json_body, read_body
from sglang_lite.runtime.server.stream import MESSAGES, cancellable, event
from sglang_lite.runtime.server.tools import CallStart, Part, ToolParser, ToolPlan

router = APIRouter()


@router.post("/v1/messages", openapi_extra=json_body(MessagesRequest))
@cancellable
async def messages(request: Request) -> Response:
    """Answer a conversation in Anthropic's shape; as server-sent events with ``stream``."""
    server = server_of(request)
    body = await read_body(request, MessagesRequest)
    name = new_id("msg_")
    try:
        generation, plan = await start_chat(server, body.chat(), name)
    except (ApiError, ValidationError, SglangLiteError) as error:
        raise _in_our_words(to_api_error(error)) from None
    reply = MessageReply(server, plan, name)
    headers = server.note_ignored(body.ignored_fields)
    if body.stream:
        return generation.stream(reply.events(generation), headers, MESSAGES)
    with generation:
        [[sample]] = await generation.collect(1)
        generation.check(sample.finish_reason)
        for _ in (*reply.feed(sample.text), *reply.close()):
            pass
        return await json_answer(lambda: reply.message(sample.finish_reason, sample.usage), headers)


@router.post("/v1/messages/count_tokens", openapi_extra=json_body(Conversation))
@cancellable
async def count_tokens(request: Request) -> Response:
    """The number of tokens of the prompt that the same request would have."""
    server = server_of(request)
    body = await read_body(request, Conversation)
    server.check_model(body.model)
    try:
        chat = body.chat()
        chat.check()
        plan = ToolPlan.of(chat)
        plan.constraint(chat.wire_constraint(server.json_style), server.json_style)
        await check_tool_schemas(server, plan)
        ids = await prompt_ids(server, chat, plan)
    except (ApiError, ValidationError, SglangLiteError) as error:
        raise _in_our_words(to_api_error(error)) from None
    headers = server.note_ignored(body.ignored_fields)
    return await json_answer(lambda: {"input_tokens": len(ids)}, headers)


_NAMES = {
    "response_format.json_schema": "output_config.format",
    "tool_choice.function": "tool_choice",
    "stop": "stop_sequences",
}


def _in_our_words(error: ApiError) -> ApiError:
    """An error about the chat request, with this API's names of the fields."""
    if error.param is None:
        return error
    for theirs, ours in _NAMES.items():
        if error.param == theirs or error.param.startswith(f"{theirs}."):
            error.param = ours + error.param[len(theirs) :]
            error.message = error.message.replace(theirs, ours)
    if error.param.startswith("tools."):
        error.param = error.param.replace("function.parameters", "input_schema")
    return error


class MessageReply:
    """Builds the content blocks of one answer, and the events that tell of them."""

    def __init__(self, server: ServerContext, plan: ToolPlan, name: str) -> None:
        self._server = server
        self._name = name
        self._parser = ToolParser(plan) if plan.active else None
        self._blocks: list[dict[str, Any]] = []
        self._is_open = False

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """``message_start``, the blocks, ``message_delta``, ``message_stop``."""
        with generation:
            begun = False
            async for _, output in generation.outputs():
                generation.check(output.finish_reason)
                if not begun:
                    # Only now it is known how much of the prompt was cached.
                    empty = _usage(output.usage) | {"output_tokens": 0}
                    start = self.message(None, output.usage) | {"usage": empty}
                    yield _event("message_start", message=start)
                    begun = True
                for piece in self.feed(output.text):
                    yield piece
                if output.finish_reason is not None:
                    for piece in self.close():
                        yield piece
                    delta = self._ending(output.finish_reason)
                    yield _event("message_delta", delta=delta, usage=_usage(output.usage))
                    yield _event("message_stop")

    def feed(self, text: str) -> Iterator[bytes]:
        """Take in text; the events that follow from it."""
        parts: list[Part] = [text] if text else []
        if self._parser is not None:
            parts = self._parser.feed(text)
        for part in parts:
            yield from self._part(part)

    def close(self) -> Iterator[bytes]:
        """The answer has ended; the events that follow from it."""
        for part in self._parser.finish() if self._parser is not None else ():
            yield from self._part(part)
        yield from self._close_block()

    def message(self, reason: FinishReason | None, usage: Usage) -> dict[str, Any]:
        """The message object; ``reason`` is None while it is being made."""
        return {
            "id": self._name,
            "type": "message",
            "role": "assistant",
            "model": self._server.model_name,
            "content": [_finished(block) for block in self._blocks],
            **self._ending(reason),
            "usage": _usage(usage),
        }

    def _ending(self, reason: FinishReason | None) -> dict[str, Any]:
        if reason is None:
            return {"stop_reason": None, "stop_sequence": None}
        matched = reason.matched if isinstance(reason.matched, str) else None
        if reason.type == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if matched is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": matched}
        called = self._parser is not None and self._parser.calls > 0
        return {"stop_reason": "tool_use" if called else "end_turn", "stop_sequence": None}

    def _part(self, part: Part) -> Iterator[bytes]:
        if isinstance(part, str):
            if not self._is_open or self._blocks[-1]["type"] != "text":
                yield from self._open_block({"type": "text", "text": ""})
            self._blocks[-1]["text"] += part
            yield self._delta({"type": "text_delta", "text": part})
        elif isinstance(part, CallStart):
            block = {"type": "tool_use", "id": new_id("toolu_"), "name": part.name, "input": ""}
            yield from self._open_block(block)
        else:
            self._blocks[-1]["input"] += part.text
            yield self._delta({"type": "input_json_delta", "partial_json": part.text})

    def _open_block(self, block: dict[str, Any]) -> Iterator[bytes]:
        yield from self._close_block()
        self._blocks.append(block)
        self._is_open = True
        index = len(self._blocks) - 1
        yield _event("content_block_start", index=index, content_block=_finished(block))

    def _close_block(self) -> Iterator[bytes]:
        if self._is_open:
            self._is_open = False
            yield _event("content_block_stop", index=len(self._blocks) - 1)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=len(self._blocks) - 1, delta=delta)


def _finished(block: dict[str, Any]) -> dict[str, Any]:
    """A block whose arguments are a value; of cut ones, as clients do, what there is of it."""
    if block["type"] != "tool_use":
        return block
    found = from_json(block["input"], allow_partial=True) if block["input"].strip() else {}
    return {**block, "input": found}


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


def _usage(usage: Usage) -> dict[str, int]:
    """Anthropic counts tokens read from the cache beside the input, not in it."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
