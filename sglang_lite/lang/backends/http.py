"""HTTP for backends: timeouts, bounded retries, errors with status and body."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from sglang_lite.errors import BackendError

RETRIED = frozenset({429, 502, 503, 504})


class HttpClient:
    """Requests to one server.

    ``timeout`` is in seconds and bounds every wait for the server's next bytes.  A request that
    never reached a working server (no connection, or a status of :data:`RETRIED`) is sent again up
    to ``retries`` times, with doubling pauses; one that may have been carried out is not.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        verify: Any = True,
        timeout: float = 600.0,
        retries: int = 2,
        pause: float = 0.25,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.retries = retries
        self.pause = pause
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.AsyncClient(
            base_url=self.base_url,
            headers=headers,
            verify=verify,
            timeout=httpx.Timeout(timeout, connect=10.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )

    async def json(self, method: str, path: str, body: Any = None) -> Any:
        """The answer's JSON; raises :class:`BackendError`."""
        response = await self._send(self._client.build_request(method, path, json=body))
        async with _closing(response):
            text = (await _read(response, path)).decode("utf-8", "replace")
        if response.status_code >= 400:
            raise BackendError(f"{method} {path} failed", response.status_code, text)
        try:
            return json.loads(text)
        except ValueError:
            raise BackendError(f"{method} {path}: not JSON", response.status_code, text) from None

    async def ok(self, method: str, path: str, body: Any = None) -> bool:
        """True where the server answers with a success."""
        response = await self._send(self._client.build_request(method, path, json=body))
        async with _closing(response):
            return response.status_code < 400

    async def events(self, path: str, body: Any) -> AsyncIterator[Any]:
        """The JSON of each server-sent event until ``[DONE]``; closing it closes the connection.

        Raises :class:`BackendError`, also for a stream that ends without ``[DONE]``.
        """
        response = await self._send(self._client.build_request("POST", path, json=body))
        async with _closing(response):
            if response.status_code >= 400:
                text = (await _read(response, path)).decode("utf-8", "replace")
                raise BackendError(f"POST {path} failed", response.status_code, text)
            async for data in _data_lines(response, path):
                if data == "[DONE]":
                    return
                try:
                    yield json.loads(data)
                except ValueError:
                    raise BackendError(f"{path}: an event that is not JSON", 200, data) from None
        raise BackendError(f"{path}: the stream ended without [DONE]", response.status_code)

    async def _send(self, request: httpx.Request) -> httpx.Response:
        for attempt in range(self.retries + 1):
            last = attempt == self.retries
            try:
                response = await self._client.send(request, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
                if last:
                    raise BackendError(f"cannot reach {self.base_url}: {error!r}") from error
            except httpx.HTTPError as error:
                raise BackendError(f"{request.url.path}: {error!r}") from error
            else:
                if response.status_code not in RETRIED or last:
                    return response
                await response.aclose()
            await asyncio.sleep(self.pause * 2**attempt)
        raise BackendError(f"cannot reach {self.base_url}")  # pragma: no cover

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


class _closing:
    """Close a response at the end of a block."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response

    async def __aenter__(self) -> httpx.Response:
        return self._response

    async def __aexit__(self, *exc_info: object) -> None:
        await self._response.aclose()


async def _read(response: httpx.Response, path: str) -> bytes:
    try:
        return await response.aread()
    except httpx.HTTPError as error:
        raise BackendError(f"{path}: {error!r}", response.status_code) from error


async def _data_lines(response: httpx.Response, path: str) -> AsyncIterator[str]:
    """The ``data:`` of each event; lines end at "\\n" only, since a text may hold U+2028."""
    buffer = b""
    try:
        async for chunk in response.aiter_bytes():
            buffer += chunk
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    yield line[5:].strip().decode()
    except httpx.HTTPError as error:
        raise BackendError(f"{path}: {error!r}", response.status_code) from error
