"""A server in a process of its own, with the language's endpoint to it."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import httpx

from sglang_lite.errors import BackendError
from sglang_lite.lang.backends.endpoint import RuntimeEndpoint


class Runtime:
    """Start ``python -m sglang_lite.launch_server`` and wait until it is ready.

    Keyword arguments are the server's options (``model_path`` for ``--model-path``; True or False
    for a flag, a list for several values).  ``endpoint`` is the backend; a Runtime is accepted
    wherever a backend is.  ``port``: a free one if None.  Raises :class:`BackendError` where the
    server does not get ready within ``launch_timeout`` seconds.
    """

    def __init__(
        self,
        *,
        log_level: str = "error",
        launch_timeout: float = 300.0,
        host: str = "127.0.0.1",
        port: int | None = None,
        **options: Any,
    ) -> None:
        self.url = f"http://{host}:{port or _free_port(host)}"
        command = [sys.executable, "-m", "sglang_lite.launch_server", "--host", host]
        command += ["--port", self.url.rsplit(":", 1)[1], "--log-level", log_level]
        flags, environment = server_options(options)
        self._process = subprocess.Popen([*command, *flags], env={**os.environ, **environment})
        atexit.register(self.shutdown)
        try:
            self._wait(time.monotonic() + launch_timeout)
            self.endpoint = RuntimeEndpoint(self.url)
        except BaseException:
            self.shutdown()
            raise

    def _wait(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise BackendError(f"the server ended with status {self._process.returncode}")
            try:
                if httpx.get(f"{self.url}/ready", timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        raise BackendError(f"the server at {self.url} did not get ready in time")

    def shutdown(self) -> None:
        """Stop the server.  Idempotent."""
        atexit.unregister(self.shutdown)
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()


def server_options(options: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Options as flags, and as variables of the environment where False has no flag of its own."""
    flags: list[str] = []
    environment: dict[str, str] = {}
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is False:
            environment[f"SGLANG_LITE_{name.upper()}"] = "false"
        elif value is True:
            flags.append(flag)
        elif isinstance(value, (list, tuple)):
            flags += [flag, ",".join(map(str, value))]
        elif value is not None:
            flags += [flag, str(value)]
    return flags, environment


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
