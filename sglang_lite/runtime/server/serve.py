"""The server's process: bind, load, serve, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import uvicorn
from starlette.types import ASGIApp

from sglang_lite.runtime.server.app import create_app
from sglang_lite.runtime.server.config import ServerConfig
from sglang_lite.runtime.server.context import ServerContext
from sglang_lite.runtime.server.http1 import Http1Protocol
from sglang_lite.runtime.server.limits import MAX_HEADER_BYTES
from sglang_lite.runtime.server.ports import url_of

if TYPE_CHECKING:
    from sglang_lite.runtime.engine import Engine

logger = logging.getLogger("sglang_lite.server")

KEEP_CONNECTION = 75
"""Seconds that an idle connection stays open: longer than the pools of clients and proxies."""

Loaded = Callable[["ServerContext", str], None]


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers; the drain is ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


def serve(
    config: ServerConfig,
    load: Callable[[], tuple[Engine, str]],
    sock: socket.socket,
    on_ready: Loaded | None = None,
) -> None:
    """Serve on ``sock`` until a signal; blocks.

    ``load`` returns the engine and its model's path; it runs in another thread while ``/health``
    already answers and ``/ready`` says 503.  Its exceptions are raised here.
    """
    process = ServerProcess(config, load, sock, on_ready)
    asyncio.run(process.run())


class ServerProcess:
    """One run of the server; :meth:`stop` may be called from any thread."""

    def __init__(
        self,
        config: ServerConfig,
        load: Callable[[], tuple[Engine, str]],
        sock: socket.socket,
        on_ready: Loaded | None = None,
    ) -> None:
        self.url = url_of(sock)
        self._sock = sock
        self._load = load
        self._on_ready = on_ready
        app: ASGIApp
        app, self.server = create_app(config)
        self._http = HttpServer(
            uvicorn.Config(
                app,
                http=Http1Protocol.limited(config.receive_timeout, config.send_timeout),
                ws="none",
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_keep_alive=KEEP_CONNECTION,
                timeout_graceful_shutdown=5,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                server_header=False,
            )
        )
        self._stopping: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> None:
        """Serve until :meth:`stop`, a signal, or a failure to load, which is raised."""
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._catch_signals()
        logger.info("listening on %s, loading the model", self.url)
        serving = asyncio.ensure_future(self._http.serve([self._sock]))
        loading = asyncio.ensure_future(self._attach_engine())
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({loading, stopped, serving}, return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loading.result()
                await asyncio.wait({stopped, serving}, return_when=asyncio.FIRST_COMPLETED)
            await self._drain()
        finally:
            for task in (loading, stopped):
                task.cancel()
            self._http.should_exit = True
            await asyncio.gather(serving, loading, stopped, return_exceptions=True)
            engine = self.server.loaded_engine
            if engine is not None:
                await asyncio.to_thread(engine.shutdown)

    def stop(self) -> None:
        """Drain and end, as the first signal does; thread-safe."""
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stopping.set)

    def _catch_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        assert self._loop is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        assert self._stopping is not None
        if self._stopping.is_set():
            os._exit(128 + number)
        logger.info("shutting down; running requests may finish (again to stop at once)")
        self._stopping.set()

    async def _attach_engine(self) -> None:
        """Load in a daemon thread, which cannot keep the process from ending."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[tuple[Engine, str]] = loop.create_future()

        def deliver(value: tuple[Engine, str] | None, error: BaseException | None) -> None:
            if result.cancelled():
                return
            if error is not None:
                result.set_exception(error)
            elif value is not None:
                result.set_result(value)

        def work() -> None:
            value, failure = None, None
            try:
                value = self._load()
            except BaseException as error:
                failure = error
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(deliver, value, failure)

        threading.Thread(target=work, name="load-model", daemon=True).start()
        engine, path = await result
        self.server.attach(engine, path)
        if self._on_ready is not None:
            self._on_ready(self.server, self.url)

    async def _drain(self) -> None:
        """Refuse new work, let the running requests finish, abort what is left in the end."""
        server = self.server
        server.phase = "draining"
        deadline = asyncio.get_running_loop().time() + server.config.shutdown_timeout
        while server.running and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)
        if server.running and server.loaded_engine is not None:
            logger.warning("aborting %d requests at shutdown", len(server.running))
            server.loaded_engine.abort(abort_all=True)
            for _ in range(40):
                if not server.running:
                    break
                await asyncio.sleep(0.05)
