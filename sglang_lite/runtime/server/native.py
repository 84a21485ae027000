"""SGLang's own API: ``/generate`` and the small routes that its clients call."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime.messages import GenerateRequest
from sglang_lite.runtime.native_api import Sample
from sglang_lite.runtime.server.context import ServerContext, server_of
from sglang_lite.runtime.server.errors import ApiError, invalid
from sglang_lite.runtime.server.generation import Generation, clamped, json_answer
from sglang_lite.runtime.server.prompts import encode, new_id
from sglang_lite.runtime.server.schemas.constraints import native_constraint
from sglang_lite.runtime.server.schemas.native import AbortBody, GenerateBody
from sglang_lite.runtime.server.schemas.wire import json_body, read_body
from sglang_lite.runtime.server.stream import cancellable, event
from sglang_lite.sampling_params import SamplingParams

router = APIRouter()

MAX_PROMPTS = 1024


@router.post("/generate", openapi_extra=json_body(GenerateBody))
@router.put("/generate", openapi_extra=json_body(GenerateBody))
@cancellable
async def generate(request: Request) -> Response:
    """Generate for one prompt or a list of them."""
    server = server_of(request)
    body = await read_body(request, GenerateBody)
    batch = await NativeBatch.read(server, body)
    generation = await Generation.start(
        server, batch.name, batch.requests, timeout=body.timeout, param=batch.param
    )
    if body.stream:
        return generation.stream(batch.events(generation))
    with generation:
        samples = batch.samples()
        async for number, output in generation.outputs():
            samples[number][output.index].add(output)
        return await json_answer(lambda: batch.whole(samples))


@dataclass
class NativeBatch:
    """The prompts of one ``/generate`` call."""

    server: ServerContext
    body: GenerateBody
    name: str
    requests: list[GenerateRequest]
    is_list: bool
    param: str | None

    @classmethod
    async def read(cls, server: ServerContext, body: GenerateBody) -> NativeBatch:
        """Check and tokenise; raises a 400."""
        engine = server.admit()
        prompts, is_list = await _prompts(server, body)
        count = len(prompts)
        params = _per_prompt("sampling_params", body.sampling_params, count) or [{}] * count
        rids = _per_prompt("rid", body.rid, count, name=True)
        starts = _per_prompt("logprob_start_len", body.logprob_start_len, count)
        tops = _per_prompt("top_logprobs_num", body.top_logprobs_num, count)
        wanted = _per_prompt("return_logprob", body.return_logprob, count)
        chosen = body.token_ids_logprob or []
        nested = bool(chosen) and isinstance(chosen[0], list)
        if nested and len(chosen) != count:
            raise invalid("token_ids_logprob", f"one list for each of {count} prompts is needed")
        requests, param = [], None
        for number, ids in enumerate(prompts):
            sampling, where = _sampling(server, params[number])
            param = param or where
            sampling = clamped(sampling, len(ids), engine.context_length)
            requests.append(
                GenerateRequest(
                    input_ids=tuple(ids),
                    sampling_params=sampling,
                    rid=rids[number] if rids else new_id("gen-"),
                    return_logprob=wanted[number],
                    logprob_start_len=starts[number],
                    top_logprobs_num=tops[number],
                    token_ids_logprob=_ids(chosen[number] if nested else chosen),
                    priority=body.priority,
                    cache_salt=body.cache_salt,
                )
            )
        is_list = is_list or any(request.sampling_params.n > 1 for request in requests)
        return cls(server, body, requests[0].rid, requests, is_list, param)

    def samples(self) -> list[list[Sample]]:
        """An empty result for each sample of each prompt."""
        wants_text = self.body.return_text_in_logprobs
        name = self.server.engine.tokenizer.token_text if wants_text else None
        return [
            [Sample(request, index, name) for index in range(request.sampling_params.n)]
            for request in self.requests
        ]

    def whole(self, samples: list[list[Sample]]) -> Any:
        """The answer without ``stream``: a dict, or a list of them."""
        results = [sample.to_dict() for several in samples for sample in several]
        return results if self.is_list else results[0]

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """One event per output, with everything so far in it, as SGLang sends them."""
        with generation:
            samples = self.samples()
            offsets = [0, *itertools.accumulate(map(len, samples))]
            async for number, output in generation.outputs():
                sample = samples[number][output.index]
                sample.add(output)
                result = sample.to_dict()
                if self.is_list:
                    result["index"] = offsets[number] + output.index
                yield event(result)


async def _prompts(server: ServerContext, body: GenerateBody) -> tuple[list[list[int]], bool]:
    """The prompts' ids, and whether the request holds a list of prompts."""
    if (body.text is None) == (body.input_ids is None):
        raise invalid("text", "give one of text and input_ids")
    field, given = ("text", body.text) if body.text is not None else ("input_ids", body.input_ids)
    if not given:
        raise invalid(field, f"{field} must not be empty")
    is_list = isinstance(given, list) and not isinstance(given[0], int)
    items: list[Any] = [*given] if is_list else [given]
    if len(items) > MAX_PROMPTS:
        raise invalid(field, f"at most {MAX_PROMPTS} prompts are accepted, {len(items)} came")
    prompts = []
    for number, item in enumerate(items):
        if not item:
            raise invalid(f"{field}.{number}", "a prompt must not be empty")
        ids = item
        if isinstance(item, str):
            ids = await encode(server.engine.tokenizer, item)
        prompts.append(list(ids))
    return prompts, is_list


def _ids(value: Any) -> tuple[int, ...]:
    return tuple(value)


def _per_prompt(field: str, value: Any, count: int, name: bool = False) -> Any:
    """``value`` for each prompt; a list must have one entry for each."""
    if value is None:
        return None
    if isinstance(value, list):
        if len(value) != count:
            raise invalid(field, f"{len(value)} values for {count} prompts")
        return value
    if name and count > 1:
        return [f"{value}-{number}" for number in range(count)]
    return [value] * count


def _sampling(server: ServerContext, fields: dict[str, Any]) -> tuple[SamplingParams, str | None]:
    given = {key: value for key, value in fields.items() if value is not None}
    wire = native_constraint(given, server.json_style)
    try:
        params = SamplingParams.from_dict(given)
    except InvalidRequest as error:
        known = error.field in SamplingParams.__dataclass_fields__ or error.accepted[:4] == "only"
        code = error.code if known else "unknown_parameter"
        raise invalid(f"sampling_params.{error.field}", str(error), code) from None
    if wire is None:
        return params, None
    return replace(params, constraint=wire.constraint), wire.param


@router.get("/get_model_info")
@router.get("/model_info")
async def model_info(request: Request) -> dict[str, Any]:
    """What is served; ``RuntimeEndpoint`` reads ``model_path``."""
    server = server_of(request)
    engine = server.engine
    tokenizer = engine.tokenizer
    return {
        "chat_template": tokenizer.chat_template,
        "named_tokens": dict(tokenizer.named_tokens),
        "control_tokens": sorted(tokenizer.control_tokens),
        "control_token_ids": sorted(tokenizer.control_ids),
        "model_path": server.model_path,
        "tokenizer_path": server.model_path,
        "served_model_name": server.model_name,
        "is_generation": True,
        "context_length": engine.context_length,
        "vocab_size": engine.model_config.vocab_size,
    }


@router.get("/flush_cache")
@router.post("/flush_cache")
async def flush_cache(request: Request) -> Response:
    """Forget every cached prefix; 400 while requests run."""
    engine = server_of(request).engine
    if not await asyncio.to_thread(engine.flush_cache):
        raise ApiError(400, "The cache is in use by running requests.", code="cache_busy")
    return Response("Cache flushed.\n", media_type="text/plain")


@router.post("/abort_request", openapi_extra=json_body(AbortBody))
async def abort_request(request: Request) -> dict[str, bool]:
    """End one request by its id, or all; unknown ids are no error, they may just have finished."""
    body = await read_body(request, AbortBody)
    engine = server_of(request).engine
    if body.abort_all == bool(body.rid):
        raise invalid("rid", "give a rid, or abort_all=true without one")
    if body.abort_all:
        engine.abort(abort_all=True)
    else:
        engine.abort(body.rid)
    return {"success": True}
