"""Routes for people and machines that look after the server: models, health, information."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from sglang_lite.runtime.messages import GenerateRequest
from sglang_lite.runtime.server.context import ServerContext, server_of
from sglang_lite.runtime.server.errors import ApiError, overloaded
from sglang_lite.runtime.server.generation import Generation
from sglang_lite.runtime.server.prompts import new_id
from sglang_lite.runtime.server.stream import cancellable
from sglang_lite.sampling_params import SamplingParams

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """The one model that is served; a 503 while it loads."""
    return {"object": "list", "data": [_card(server_of(request))]}


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    """One model's card."""
    server = server_of(request)
    card = _card(server)
    if name != server.model_name:
        raise ApiError(
            404,
            f"The model {name[:200]!r} is not served here; available: {server.model_name!r}.",
            code="model_not_found",
            param="model",
        )
    return card


def _card(server: ServerContext) -> dict[str, Any]:
    return {
        "max_model_len": server.engine.context_length,
        "id": server.model_name,
        "object": "model",
        "created": int(server.started),
        "owned_by": "sglang_lite",
        "root": server.model_name,
        "parent": None,
    }


@router.get("/health")
async def health(request: Request) -> Response:
    """Liveness: the event loop answers and the engine is not stuck; true also while loading."""
    server = server_of(request)
    if not server.healthy:
        seconds = server.stuck_for()
        raise overloaded(f"The engine has been stuck for {seconds:.0f} s.", "engine_stuck", 5)
    return Response(status_code=200)


@router.get("/ready")
async def ready(request: Request) -> Response:
    """Readiness: a request sent now would be served."""
    server = server_of(request)
    server.admit()
    return await health(request)


@router.get("/health_generate")
@cancellable
async def health_generate(request: Request) -> Response:
    """Readiness, proven by generating one token."""
    server = server_of(request)
    engine = server.admit()
    ids = tuple(engine.tokenizer.encode("ok", add_special_tokens=True))
    probe = GenerateRequest(ids, SamplingParams(max_new_tokens=1, temperature=0.0))
    with await Generation.start(server, new_id("health-"), [probe], timeout=20.0) as generation:
        await generation.collect(1)
    return Response(status_code=200)


@router.get("/server_info")
@router.get("/get_server_info")
async def server_info(request: Request) -> dict[str, Any]:
    """Version, settings without secrets, and the engine's numbers."""
    server = server_of(request)
    engine = server.engine
    settings = asdict(server.config)
    settings["api_key"] = "set" if settings["api_key"] else ""
    return {
        "version": version("sglang-lite"),
        "model_path": server.model_path,
        "served_model_name": server.model_name,
        "server_args": settings,
        "internal_states": [await asyncio.to_thread(engine.stats)],
    }


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    return Response(server_of(request).metrics.render(), media_type=CONTENT_TYPE_LATEST)
