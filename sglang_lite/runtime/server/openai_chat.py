"""``POST /v1/chat/completions``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from sglang_lite.errors import ConstraintError
from sglang_lite.runtime.messages import FinishReason, GenerateRequest, RequestOutput, Usage
from sglang_lite.runtime.server.context import ServerContext, server_of
from sglang_lite.runtime.server.errors import to_api_error
from sglang_lite.runtime.server.generation import Generation, Sample, clamped, json_answer, total
from sglang_lite.runtime.server.prompts import chat_ids, new_id
from sglang_lite.runtime.server.schemas.chat import ChatCompletionRequest, SamplingFields
from sglang_lite.runtime.server.schemas.wire import json_body, read_body
from sglang_lite.runtime.server.stream import cancellable, event
from sglang_lite.runtime.server.tools import (
    CallArguments,
    CallStart,
    Part,
    ToolParser,
    ToolPlan,
    conversation,
)
from sglang_lite.sampling_params import SamplingParams

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=json_body(ChatCompletionRequest))
@cancellable
async def chat_completions(request: Request) -> Response:
    """Answer a conversation; as server-sent events with ``stream``."""
    server = server_of(request)
    body = await read_body(request, ChatCompletionRequest)
    name = body.rid or body.request_id or new_id("chatcmpl-")
    generation, plan = await start_chat(server, body, name)
    reply = ChatReply(server, body, plan, name)
    headers = server.note_ignored(body.ignored_fields)
    if body.stream:
        return generation.stream(reply.events(generation), headers)
    with generation:
        samples = (await generation.collect(body.n or 1))[0]
        for sample in samples:
            generation.check(sample.finish_reason)
        return await json_answer(lambda: reply.whole(samples), headers)


async def start_chat(
    server: ServerContext, body: ChatCompletionRequest, name: str
) -> tuple[Generation, ToolPlan]:
    """Check, render, tokenise, compile and admit; ``name`` is the engine's request id."""
    body.check()
    server.check_model(body.model)
    engine = server.admit()
    wire = body.wire_constraint(server.json_style)
    plan = ToolPlan.of(body)
    constraint = plan.constraint(wire, server.json_style)
    params = body.sampling_params(body.token_limit, constraint)
    await check_tool_schemas(server, plan)
    ids = await prompt_ids(server, body, plan)
    params = clamped(params, len(ids), engine.context_length)
    request = engine_request(body, name, ids, params, body.top_logprobs or 0)
    generation = await Generation.start(
        server, name, [request], timeout=body.timeout, param=wire.param if wire else "tools"
    )
    return generation, plan


async def prompt_ids(
    server: ServerContext, body: ChatCompletionRequest, plan: ToolPlan
) -> list[int]:
    """What the model reads: the conversation, with its tools, in the model's own template."""
    tokenizer = server.engine.tokenizer
    messages, tools = conversation(body.messages, plan, tokenizer.chat_template)
    return await chat_ids(
        tokenizer,
        messages,
        tools,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        template_kwargs=body.chat_template_kwargs,
    )


async def check_tool_schemas(server: ServerContext, plan: ToolPlan) -> None:
    """Compile each function's schema alone, so that an error names the function's field."""
    for param, schema in plan.schemas():
        try:
            await asyncio.to_thread(server.engine.compile, schema)
        except ConstraintError as error:
            raise to_api_error(error, param) from None


def engine_request(
    body: SamplingFields, name: str, ids: Sequence[int], params: SamplingParams, top_logprobs: int
) -> GenerateRequest:
    """What the engine is asked for one prompt of an OpenAI request."""
    return GenerateRequest(
        input_ids=tuple(ids),
        sampling_params=params,
        rid=name,
        return_logprob=bool(getattr(body, "logprobs", None)),
        top_logprobs_num=top_logprobs,
        priority=body.priority,
        cache_salt=body.cache_salt,
    )


class ChatReply:
    """Writes the answer to one request, whole or in chunks."""

    def __init__(
        self, server: ServerContext, body: ChatCompletionRequest, plan: ToolPlan, name: str
    ) -> None:
        self.id = name
        self._server = server
        self._body = body
        self._plan = plan
        self._parsers: dict[int, ToolParser] = {}
        self._head = {"created": int(time.time()), "model": server.model_name}

    def whole(self, samples: list[Sample]) -> dict[str, Any]:
        """The answer of a request without ``stream``."""
        choices = []
        for index, sample in enumerate(samples):
            message, calls = self._message(sample.text)
            choice = {
                "index": index,
                "message": message,
                "logprobs": self._logprobs(sample.logprobs, sample.top_logprobs),
                **self._finish(sample.finish_reason, calls),
            }
            if self._body.return_token_ids:
                choice["token_ids"] = sample.token_ids
            choices.append(choice)
        return {
            "id": self.id,
            "object": "chat.completion",
            **self._head,
            "choices": choices,
            "usage": usage_fields(total([sample.usage for sample in samples])),
        }

    def _message(self, text: str) -> tuple[dict[str, Any], int]:
        """The assistant's message, and how many calls it holds."""
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if not self._plan.active:
            return message, 0
        parser = ToolParser(self._plan)
        content = ""
        calls: list[dict[str, Any]] = []
        for part in [*parser.feed(text), *parser.finish()]:
            if isinstance(part, str):
                content += part
            elif isinstance(part, CallStart):
                function = {"name": part.name, "arguments": ""}
                calls.append({"id": new_id("call_"), "type": "function", "function": function})
            else:
                calls[part.index]["function"]["arguments"] += part.text
        message["content"] = content or (None if calls else "")
        if calls:
            message["tool_calls"] = calls
        return message, len(calls)

    def _finish(self, reason: FinishReason | None, calls: int) -> dict[str, Any]:
        fields = finish_fields(reason)
        if reason is not None:
            fields["finish_reason"] = self._plan.finish_reason(reason.type, calls)
        return fields

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """Role chunks, deltas, finish chunks, the usage if asked for, ``[DONE]``."""
        with generation:
            role = {"role": "assistant", "content": ""}
            yield b"".join(self._chunk(index, role) for index in range(self._body.n or 1))
            latest: dict[int, Usage] = {}
            async for _, output in generation.outputs():
                generation.check(output.finish_reason)
                latest[output.index] = output.usage
                if pieces := self._pieces(output, latest):
                    yield b"".join(pieces)
            if self._body.include_usage:
                usage = usage_fields(total(list(latest.values())))
                yield event(self._frame([], usage))

    def _pieces(self, output: RequestOutput, latest: dict[int, Usage]) -> list[bytes]:
        """The chunks of one output: its deltas, and the finish chunk."""
        usage = total(list(latest.values())) if self._body.continuous_usage else None
        deltas, calls = self._deltas(output)
        extra: dict[str, Any] = {"logprobs": None}
        if self._body.logprobs and output.logprobs is not None and output.logprobs.tokens:
            logprobs = output.logprobs
            extra["logprobs"] = self._logprobs(list(logprobs.tokens), list(logprobs.top))
            deltas = deltas or [{"content": ""}]
        if self._body.return_token_ids:
            extra["token_ids"] = list(output.token_ids)
        pieces = []
        for number, delta in enumerate(deltas):
            # An output's log probabilities belong to all of its deltas; they are sent once.
            pieces.append(self._chunk(output.index, delta, extra if number == 0 else None, usage))
        if output.finish_reason is not None:
            finish = self._finish(output.finish_reason, calls)
            pieces.append(self._chunk(output.index, {}, finish, usage))
        return pieces

    def _deltas(self, output: RequestOutput) -> tuple[list[dict[str, Any]], int]:
        """The news as OpenAI's deltas, and how many calls the sample has made so far."""
        if not self._plan.active:
            return [{"content": output.text}] if output.text else [], 0
        parser = self._parsers.setdefault(output.index, ToolParser(self._plan))
        parts = parser.feed(output.text)
        if output.finish_reason is not None:
            parts += parser.finish()
        return [_delta(part) for part in parts], parser.calls

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        extra: dict[str, Any] | None = None,
        usage: Usage | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return event(
            self._frame([{**choice, **(extra or {})}], usage_fields(usage) if usage else None)
        )

    def _frame(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        frame = {
            "id": self.id,
            "object": "chat.completion.chunk",
            **self._head,
            "choices": choices,
        }
        if self._body.include_usage or self._body.continuous_usage:
            frame["usage"] = usage
        return frame

    def _logprobs(self, tokens: list[Any], top: list[Any]) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        return {"content": self._server.texts.chat_content(tokens, top), "refusal": None}


def _delta(part: Part) -> dict[str, Any]:
    if isinstance(part, str):
        return {"content": part}
    if isinstance(part, CallArguments):
        return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}
    call = {
        "index": part.index,
        "id": new_id("call_"),
        "type": "function",
        "function": {"name": part.name, "arguments": ""},
    }
    return {"tool_calls": [call]}


def finish_fields(reason: FinishReason | None) -> dict[str, Any]:
    """``finish_reason`` and, as SGLang adds, what matched."""
    if reason is None:
        return {"finish_reason": None}
    return {"finish_reason": reason.type, "matched_stop": reason.matched}


def usage_fields(usage: Usage, prompt_tokens: int | None = None) -> dict[str, Any]:
    """OpenAI's usage object, with the cached and the forced tokens."""
    prompt = usage.prompt_tokens if prompt_tokens is None else prompt_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": prompt + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "forced_tokens": usage.forced_tokens,
        },
    }
