"""``POST /v1/responses``, stateless: a chat request in other words, with OpenAI's typed events."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.responses import Response

from sglang_lite.errors import SglangLiteError
from sglang_lite.runtime.messages import FinishReason, Usage
from sglang_lite.runtime.server.context import ServerContext, server_of
from sglang_lite.runtime.server.errors import ApiError, to_api_error
from sglang_lite.runtime.server.generation import Generation
from sglang_lite.runtime.server.openai_chat import start_chat
from sglang_lite.runtime.server.prompts import new_id
from sglang_lite.runtime.server.schemas.responses import ResponsesRequest
from sglang_lite.runtime.server.schemas.wire import json_body, read_body
from sglang_lite.runtime.server.stream import Manner, cancellable, event
from sglang_lite.runtime.server.tools import CallArguments, CallStart, Part, ToolParser, ToolPlan

router = APIRouter()


@router.post("/v1/responses", openapi_extra=json_body(ResponsesRequest))
@cancellable
async def responses(request: Request) -> Response:
    """Answer an input; as typed server-sent events with ``stream``."""
    server = server_of(request)
    body = await read_body(request, ResponsesRequest)
    body.check()
    name = new_id("resp_")
    try:
        generation, plan = await start_chat(server, body.chat(), name)
    except (ApiError, ValidationError, SglangLiteError) as error:
        raise _in_our_words(to_api_error(error)) from None
    reply = ResponseReply(server, body, plan, name)
    headers = server.note_ignored(body.ignored_fields)
    if body.stream:
        manner = Manner(error=reply.failure, end=b"")
        return generation.stream(reply.events(generation), headers, manner)
    with generation:
        [[sample]] = await generation.collect(1)
        generation.check(sample.finish_reason)
        for _ in (*reply.feed(sample.text), *reply.close(sample.finish_reason)):
            pass
        return JSONResponse(reply.response(sample.finish_reason, sample.usage), headers=headers)


_NAMES = {
    "response_format.json_schema": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
}


def _in_our_words(error: ApiError) -> ApiError:
    """An error about the chat request, with this API's names of the fields."""
    for theirs, ours in _NAMES.items():
        if error.param is not None and error.param.startswith(theirs):
            error.param = ours + error.param[len(theirs) :]
    return error


class ResponseReply:
    """Builds the output items of one answer, and the events that tell of them."""

    def __init__(
        self, server: ServerContext, body: ResponsesRequest, plan: ToolPlan, name: str
    ) -> None:
        self._server = server
        self._body = body
        self._plan = plan
        self._name = name
        self._created = int(time.time())
        self._parser = ToolParser(plan) if plan.active else None
        self._items: list[dict[str, Any]] = []
        self._is_open = False
        self._sequence = 0

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """``response.created`` … ``response.completed``, each numbered."""
        with generation:
            start = self.response(None, None)
            yield self._event("response.created", response=start)
            yield self._event("response.in_progress", response=start)
            async for _, output in generation.outputs():
                generation.check(output.finish_reason)
                for piece in self.feed(output.text):
                    yield piece
                reason = output.finish_reason
                if reason is not None:
                    for piece in self.close(reason):
                        yield piece
                    kind = "incomplete" if reason.type == "length" else "completed"
                    whole = self.response(reason, output.usage)
                    yield self._event(f"response.{kind}", response=whole)

    def feed(self, text: str) -> Iterator[bytes]:
        """Take in text; the events that follow from it."""
        parts: list[Part] = [text] if text else []
        if self._parser is not None:
            parts = self._parser.feed(text)
        for part in parts:
            yield from self._part(part)

    def close(self, reason: FinishReason | None) -> Iterator[bytes]:
        """The answer has ended; the events that follow from it."""
        for part in self._parser.finish() if self._parser is not None else ():
            yield from self._part(part)
        if not self._items:
            yield from self._part("")
        cut = reason is not None and reason.type == "length"
        yield from self._close_item("incomplete" if cut else "completed")

    def failure(self, error: ApiError) -> bytes:
        """The stream's last events, ``error`` and ``response.failed``, when it breaks off.

        ``error`` has its fields twice, as the API's reference has them and as the API sends them:
        openai-python raises only for an inner ``error``.
        """
        inner = error.to_dict()["error"]
        flat = {field: inner[field] for field in ("code", "message", "param")}
        for item in self._items[-1:] if self._is_open else ():
            item["status"] = "incomplete"
        failed = {
            **self.response(None, None),
            "status": "failed",
            # The codes of a response are a closed list; ours is in the event before.
            "error": {"code": "server_error", "message": error.message},
            "output": list(self._items),
        }
        return self._event("error", **flat, error=inner) + self._event(
            "response.failed", response=failed
        )

    def response(self, reason: FinishReason | None, usage: Usage | None) -> dict[str, Any]:
        """The response object; ``usage`` is None while it is being made."""
        body = self._body
        status = "in_progress"
        if reason is not None:
            status = "incomplete" if reason.type == "length" else "completed"
        return {
            "id": self._name,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": (
                {"reason": "max_output_tokens"} if status == "incomplete" else None
            ),
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata,
            "model": self._server.model_name,
            "output": list(self._items) if usage is not None else [],
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": None,
            "store": False,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "text": (body.text.model_dump(by_alias=True, exclude_none=True) if body.text else {}),
            "tool_choice": (
                body.tool_choice
                if isinstance(body.tool_choice, str)
                else body.tool_choice.model_dump()
            ),
            "tools": [tool.model_dump() for tool in body.tools],
            "truncation": "disabled",
            "usage": _usage(usage) if usage is not None else None,
        }

    def _part(self, part: Part) -> Iterator[bytes]:
        if isinstance(part, str):
            if not self._is_open or self._items[-1]["type"] != "message":
                yield from self._close_item("completed")
                yield from self._open_message()
            content = self._items[-1]["content"][0]
            content["text"] += part
            if part:
                place = {**self._place(), "content_index": 0}
                yield self._event("response.output_text.delta", **place, delta=part, logprobs=[])
        elif isinstance(part, CallStart):
            yield from self._close_item("completed")
            item = {"id": new_id("fc_"), "type": "function_call", "status": "in_progress"}
            call = {"call_id": new_id("call_"), "name": part.name, "arguments": ""}
            yield from self._open_item({**item, **call})
        elif isinstance(part, CallArguments):
            self._items[-1]["arguments"] += part.text
            yield self._event(
                "response.function_call_arguments.delta", **self._place(), delta=part.text
            )

    def _open_message(self) -> Iterator[bytes]:
        item = {"id": new_id("msg_"), "type": "message", "role": "assistant"}
        yield from self._open_item({**item, "status": "in_progress", "content": []})
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        place = {**self._place(), "content_index": 0}
        yield self._event("response.content_part.added", **place, part=dict(part))
        self._items[-1]["content"].append(part)

    def _open_item(self, item: dict[str, Any]) -> Iterator[bytes]:
        yield self._event(
            "response.output_item.added", output_index=len(self._items), item=dict(item)
        )
        self._items.append(item)
        self._is_open = True

    def _close_item(self, status: str) -> Iterator[bytes]:
        if not self._is_open:
            return
        self._is_open = False
        item, place = self._items[-1], self._place()
        item["status"] = status
        if item["type"] == "message":
            part = item["content"][0]
            inner = {**place, "content_index": 0}
            text = part["text"]
            yield self._event("response.output_text.done", **inner, text=text, logprobs=[])
            yield self._event("response.content_part.done", **inner, part=part)
        else:
            arguments = item["arguments"]
            yield self._event("response.function_call_arguments.done", **place, arguments=arguments)
        yield self._event(
            "response.output_item.done", output_index=place["output_index"], item=item
        )

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _event(self, kind: str, **fields: Any) -> bytes:
        made = event({"type": kind, "sequence_number": self._sequence, **fields}, kind)
        self._sequence += 1
        return made


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.prompt_tokens - usage.cached_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
