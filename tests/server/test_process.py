"""The server as a process: signals, a busy port, a model that is not there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sglang_lite.runtime.server.ports import bind
from tests.runtime.tiny import make_tiny_model
from tests.waiting import wait_for


class Process:
    """``python -m sglang_lite.launch_server``; ``text``: its standard error so far."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.text = ""
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "sglang_lite.launch_server", *arguments],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def _collect(self) -> None:
        for line in self.popen.stderr or ():
            self.text += line

    def url(self) -> str:
        ready = re.compile(r"OpenAI: (http\S+)/v1")
        wait_for(lambda: bool(ready.search(self.text)) or self.popen.poll() is not None, 90)
        found = ready.search(self.text)
        assert found, self.text
        return found[1]

    def children(self) -> list[str]:
        """Processes of its own; none where the system does not tell."""
        tasks = Path(f"/proc/{self.popen.pid}/task").glob("*/children")
        return [child for task in tasks for child in task.read_text().split()]

    def ended(self, seconds: float = 60) -> int:
        code = self.popen.wait(seconds)
        self._reader.join()
        return code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=16384)


@pytest.fixture
def process(folder: Path) -> Iterator[Process]:
    made = Process("--model-path", str(folder), "--port", "0", SGLANG_LITE_SERVED_MODEL_NAME="tiny")
    try:
        yield made
    finally:
        made.popen.kill()
        made.popen.wait()


@contextlib.contextmanager
def answering(url: str, **fields: object) -> Iterator[Iterator[str]]:
    body = {"text": "a", "stream": True, "sampling_params": fields}
    with (
        httpx.Client(trust_env=False, timeout=60) as http,
        http.stream("POST", f"{url}/generate", json=body) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        yield lines


# sglang#4173, sglang#35202, vllm#36259
def test_the_first_signal_drains(process: Process) -> None:
    url = process.url()
    models = httpx.get(f"{url}/v1/models", trust_env=False).json()
    assert models["data"][0]["id"] == "tiny"
    with answering(url, max_new_tokens=200, ignore_eos=True) as lines:
        assert process.children() == []
        process.popen.send_signal(signal.SIGINT)
        events = [line for line in lines if line]
    assert events[-1] == "data: [DONE]"
    last = json.loads(events[-2].removeprefix("data: "))
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 200}
    assert process.ended() == 0
    bind("127.0.0.1", httpx.URL(url).port or 0).close()


def test_the_second_signal_ends_at_once(process: Process) -> None:
    url = process.url()
    rest = ""
    fields = {"max_new_tokens": 10_000, "ignore_eos": True}
    with contextlib.suppress(httpx.HTTPError), answering(url, **fields) as lines:
        process.popen.send_signal(signal.SIGTERM)
        # Two signals at the same moment are one.
        wait_for(lambda: "shutting down" in process.text)
        process.popen.send_signal(signal.SIGTERM)
        for line in lines:
            rest += line
    assert '"length"' not in rest
    assert process.ended() in (0, 128 + signal.SIGTERM)


def test_a_model_that_is_not_there() -> None:
    process = Process("--model-path", "./no-such-model", "--port", "0")
    assert process.ended() == 1
    assert "no-such-model" in process.text
    assert "Traceback" not in process.text


def test_a_busy_port(folder: Path) -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        process = Process("--model-path", str(folder), "--port", str(port))
        assert process.ended() == 1
    assert f"127.0.0.1:{port}" in process.text
    assert "--port" in process.text
    if Path("/proc/net/tcp").exists():
        assert f"process {os.getpid()} " in process.text
    assert "Traceback" not in process.text
