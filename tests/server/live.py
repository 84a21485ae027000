"""A server on a real socket, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from sglang_lite.runtime.server.config import ServerConfig
from sglang_lite.runtime.server.ports import bind
from sglang_lite.runtime.server.serve import ServerProcess
from tests.server.scripted import ScriptedEngine


class Live:
    """A running server: its engine, its URL and an HTTP client for it."""

    def __init__(self, process: ServerProcess, engine: Any) -> None:
        self.process = process
        self.engine = engine
        self.url = process.url
        self.http = httpx.Client(base_url=process.url, timeout=30, trust_env=False)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def chat(self, **body: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", **{"messages": hello(), **body})

    def events(self, path: str, **body: Any) -> list[str]:
        """The data lines of a stream."""
        with self.http.stream("POST", path, json={"stream": True, **body}) as response:
            assert response.status_code == 200, response.read()
            text = response.read().decode()
        assert text.endswith("\n\n")
        return [part[len("data: ") :] for part in text.split("\n\n") if part.startswith("data: ")]

    def chat_events(self, **body: Any) -> list[str]:
        return self.events("/v1/chat/completions", **{"messages": hello(), **body})


def hello(text: str = "hi") -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def error_of(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error object, checked for its shape."""
    assert response.status_code == status, (response.status_code, response.text)
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]
    assert "/" not in body["error"]["message"] or "sglang_lite/" not in body["error"]["message"]
    return body["error"]


@contextlib.contextmanager
def serving(
    engine: Any = None,
    load: Callable[[], tuple[Any, str]] | None = None,
    wait: bool = True,
    **settings: Any,
) -> Iterator[Live]:
    """Serve ``engine`` (a scripted one by default) while the block runs."""
    engine = ScriptedEngine() if engine is None else engine
    engine.served_model_name = settings.pop("served_model_name", "toy")
    config = ServerConfig(**settings)
    process = ServerProcess(config, load or (lambda: (engine, "models/toy")), bind("127.0.0.1", 0))
    failures: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(process.run())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    live = Live(process, engine)
    end = time.monotonic() + 120
    while wait and time.monotonic() < end and not failures:
        with contextlib.suppress(httpx.HTTPError):
            if live.http.get("/ready").status_code == 200:
                break
        time.sleep(0.01)
    try:
        yield live
    finally:
        live.http.close()
        process.stop()
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"
        if failures:
            raise failures[0]
