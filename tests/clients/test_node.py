"""openai-node: answers, streams, schemas, tools, errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.server.live import Live

MODULES = Path(sys.prefix, "node_modules")
SCRIPT = Path(__file__).with_name("node_client.cjs")

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not (MODULES / "openai").exists(),
    reason="openai-node is not installed",
)


def run(live: Live) -> dict[str, Any]:
    command = ["node", str(SCRIPT), live.url, live.process.server.model_name]
    environment = {**os.environ, "NODE_PATH": str(MODULES)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def check(seen: dict[str, Any], model: str) -> None:
    assert seen["requestId"].startswith("req-")
    assert seen["usage"]["completion_tokens"] > 0
    assert seen["team"] in ("red", "blue")
    assert seen["called"][0] == "pick"
    assert seen["called"][1] in ("red", "blue")
    assert seen["models"] == [model]
    status, code, param, message = seen["error"]
    assert (status, code, param) == (400, "invalid_value", "temperature")
    assert "temperature=3" in message


def test_what_it_makes_of_our_answers(live: Live) -> None:
    seen = run(live)
    assert seen["content"] == seen["streamed"] == seen["output"] == "Hello"
    check(seen, "toy")


@pytest.mark.model
def test_default_model(real: Live) -> None:
    check(run(real), "smollm2")
