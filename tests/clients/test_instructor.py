"""instructor in its modes; it holds openai back, so it lives in an environment of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.people import ADA, ADA_JSON, Person, call
from tests.server.live import Live

PYTHON = Path(f"{sys.prefix}-instructor/bin/python")
SCRIPT = Path(__file__).with_name("instructor_client.py")

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="instructor has no environment")


def ask(live: Live, mode: str) -> list[Person]:
    model = live.process.server.model_name
    command = [str(PYTHON), str(SCRIPT), live.url, mode, model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [Person.model_validate(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("mode", ["JSON", "JSON_SCHEMA", "MD_JSON"])
def test_answers_as_json(live: Live, mode: str) -> None:
    live.engine.typist.text = f"```json\n{ADA_JSON}\n```" if mode == "MD_JSON" else ADA_JSON
    assert ask(live, mode) == [ADA]


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "PARALLEL_TOOLS"])
def test_answers_by_tools(live: Live, mode: str) -> None:
    live.engine.typist.text = call("Person")
    assert ask(live, mode)[0] == ADA


@pytest.mark.model
@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_default_model(real: Live, mode: str) -> None:
    assert ask(real, mode)[0].team in ("red", "blue")
