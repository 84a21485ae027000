"""``/ui``: one static page, and the feed that it listens to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response

from sglang_lite.runtime.server.context import ServerContext, server_of
from sglang_lite.runtime.server.errors import overloaded
from sglang_lite.runtime.server.stream import BARE, EventStream, event

router = APIRouter(include_in_schema=False)

INTERVAL = 0.5
MAX_NODES = 200
MAX_VIEWERS = 16

_PAGE = Path(__file__).with_name("index.html")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",
}


def _shown(request: Request) -> ServerContext:
    """The server, or a 404 where the page is switched off."""
    server = server_of(request)
    if not server.config.shows_ui:
        raise HTTPException(404)
    return server


@router.get("/ui")
async def page(request: Request) -> Response:
    """The page."""
    _shown(request)
    return HTMLResponse(_PAGE.read_text("utf-8"), headers=_HEADERS)


@router.get("/debug/radix")
async def radix(request: Request, max_nodes: int = MAX_NODES) -> Response:
    """One look at the tree, the slots and the requests."""
    server = _shown(request)
    bound = max(1, min(max_nodes, 10_000))
    return JSONResponse(await asyncio.to_thread(server.engine.snapshot, bound))


@router.get("/debug/events")
async def events(request: Request) -> Response:
    """A look every half second, as server-sent events."""
    server = _shown(request)
    if server.viewers >= MAX_VIEWERS:
        raise overloaded("Too many pages watch this server.", "too_many_viewers", 10)
    return EventStream(_looks(server), keep_alive=0, manner=BARE)


async def _looks(server: ServerContext) -> AsyncGenerator[bytes, None]:
    server.viewers += 1
    try:
        while server.phase != "draining":
            yield event(await _look(server))
            await asyncio.sleep(INTERVAL)
    finally:
        server.viewers -= 1


async def _look(server: ServerContext) -> dict[str, Any]:
    look: dict[str, Any] = {"phase": server.phase, "model": server.model_name}
    engine = server.loaded_engine
    if engine is None:
        return look
    shot = await asyncio.to_thread(engine.snapshot, MAX_NODES)
    return {**look, **shot, "stats": engine.stats()}
