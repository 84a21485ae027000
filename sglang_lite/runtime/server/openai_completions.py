"""``POST /v1/completions``: raw prompts, one or many, with echo and log probabilities."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from sglang_lite.runtime.messages import Logprobs, RequestOutput, Usage
from sglang_lite.runtime.server.context import ServerContext, server_of
from sglang_lite.runtime.server.generation import Generation, Sample, clamped, json_answer, total
from sglang_lite.runtime.server.openai_chat import engine_request, finish_fields, usage_fields
from sglang_lite.runtime.server.prompts import encode, new_id
from sglang_lite.runtime.server.schemas.completions import CompletionRequest
from sglang_lite.runtime.server.schemas.wire import json_body, read_body
from sglang_lite.runtime.server.stream import cancellable, event

if TYPE_CHECKING:
    from sglang_lite.runtime.tokenizer import Tokenizer

router = APIRouter()


@router.post("/v1/completions", openapi_extra=json_body(CompletionRequest))
@cancellable
async def completions(request: Request) -> Response:
    """Continue raw prompts; as server-sent events with ``stream``."""
    server = server_of(request)
    body = await read_body(request, CompletionRequest)
    body.check()
    server.check_model(body.model)
    engine = server.admit()
    wire = body.wire_constraint(server.json_style)
    params = body.sampling_params(body.token_limit, wire.constraint if wire else None)
    prompts = [
        await _Prompt.read(engine.tokenizer, prompt, body.add_special_tokens)
        for prompt in body.prompts()
    ]
    reply = CompletionReply(server, body, prompts, params.n)
    requests = [
        replace(
            engine_request(
                body,
                reply.id if len(prompts) == 1 else f"{reply.id}-{number}",
                prompt.ids,
                clamped(params, len(prompt.ids), engine.context_length),
                body.logprobs or 0,
            ),
            return_logprob=body.logprobs is not None,
            logprob_start_len=0 if body.echo and body.logprobs is not None else -1,
        )
        for number, prompt in enumerate(prompts)
    ]
    generation = await Generation.start(
        server, reply.id, requests, timeout=body.timeout, param=wire.param if wire else None
    )
    headers = server.note_ignored(body.ignored_fields)
    if body.stream:
        return generation.stream(reply.events(generation), headers)
    with generation:
        samples = await generation.collect(params.n)
        for sample in (sample for group in samples for sample in group):
            generation.check(sample.finish_reason)
        return await json_answer(lambda: reply.whole(samples), headers)


@dataclass(frozen=True)
class _Prompt:
    given: str | list[int]
    ids: tuple[int, ...]

    @classmethod
    async def read(
        cls, tokenizer: Tokenizer, given: str | list[int], add_special_tokens: bool
    ) -> _Prompt:
        if not isinstance(given, str):
            return cls(given, tuple(given))
        ids = await encode(tokenizer, given, add_special_tokens=add_special_tokens)
        return cls(given, tuple(ids))


class CompletionReply:
    """Writes the answer to one request; choice ``i * n + j`` is sample j of prompt i."""

    def __init__(
        self, server: ServerContext, body: CompletionRequest, prompts: list[_Prompt], n: int
    ) -> None:
        self.id = body.rid or body.request_id or new_id("cmpl-")
        self._server = server
        self._body = body
        self._prompts = prompts
        self._n = n
        self._head = {
            "object": "text_completion",
            "created": int(time.time()),
            "model": server.model_name,
        }
        self._at: dict[int, int] = {}

    def whole(self, samples: list[list[Sample]]) -> dict[str, Any]:
        """The answer of a request without ``stream``."""
        choices = []
        for number, group in enumerate(samples):
            for index, sample in enumerate(group):
                output = RequestOutput(
                    rid="",
                    index=index,
                    text=sample.text,
                    token_ids=tuple(sample.token_ids),
                    logprobs=Logprobs(sample.logprobs, sample.top_logprobs),
                    prompt_logprobs=sample.prompt_logprobs,
                    finish_reason=sample.finish_reason,
                )
                choices.append(self._choice(number, output, first=True))
        usages = {(i, j): s.usage for i, group in enumerate(samples) for j, s in enumerate(group)}
        return {"id": self.id, **self._head, "choices": choices, "usage": self._usage(usages)}

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """One chunk per output, the usage if asked for, ``[DONE]``."""
        with generation:
            usages: dict[tuple[int, int], Usage] = {}
            async for number, output in generation.outputs():
                generation.check(output.finish_reason)
                first = (number, output.index) not in usages
                usages[number, output.index] = output.usage
                if not (output.text or output.token_ids or output.finish_reason or first):
                    continue
                usage = self._usage(usages) if self._body.continuous_usage else None
                yield event(self._frame([self._choice(number, output, first)], usage))
            if self._body.include_usage:
                yield event(self._frame([], self._usage(usages)))

    def _frame(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        frame = {"id": self.id, **self._head, "choices": choices}
        if self._body.include_usage or self._body.continuous_usage:
            frame["usage"] = usage
        return frame

    def _choice(self, number: int, output: RequestOutput, first: bool) -> dict[str, Any]:
        index = number * self._n + output.index
        text = output.text
        if first and self._body.echo:
            text = self._echo(number) + text
        choice = {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(index, number, output, first),
            **finish_fields(output.finish_reason),
        }
        if self._body.return_token_ids:
            choice["token_ids"] = list(output.token_ids)
        return choice

    def _logprobs(
        self, index: int, number: int, output: RequestOutput, first: bool
    ) -> dict[str, Any] | None:
        if self._body.logprobs is None:
            return None
        tokens = [*(output.logprobs.tokens if output.logprobs else ())]
        top = [*(output.logprobs.top if output.logprobs else ())]
        start = self._at.get(index, 0)
        if first and not self._body.echo:
            start = len(self._echo(number))
        if first and output.prompt_logprobs is not None:
            tokens = [*output.prompt_logprobs.tokens, *tokens]
            top = [*output.prompt_logprobs.top, *top]
        made, self._at[index] = self._server.texts.completion_logprobs(tokens, top, start)
        return made

    def _echo(self, number: int) -> str:
        prompt = self._prompts[number]
        if isinstance(prompt.given, str):
            return prompt.given
        tokenizer = self._server.engine.tokenizer
        return tokenizer.decode(prompt.ids, skip_special_tokens=False)

    def _usage(self, usages: dict[tuple[int, int], Usage]) -> dict[str, Any]:
        """Sums: a prompt counts once, however many samples continue it."""
        groups: dict[int, list[Usage]] = {}
        for (number, _), usage in usages.items():
            groups.setdefault(number, []).append(usage)
        sums = [total(group) for group in groups.values()]
        return usage_fields(
            Usage(
                prompt_tokens=sum(len(prompt.ids) for prompt in self._prompts),
                completion_tokens=sum(usage.completion_tokens for usage in sums),
                cached_tokens=sum(usage.cached_tokens for usage in sums),
                forced_tokens=sum(usage.forced_tokens for usage in sums),
            )
        )
