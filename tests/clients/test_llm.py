"""The ``llm`` command line: what a person would type."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.live import Live

pytest.importorskip("llm")


@pytest.fixture
def ask(live: Live, tmp_path: Path):
    def run(*arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "llm", "openai", "endpoint", f"{live.url}/v1", *arguments]
        environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "NO_PROXY": "127.0.0.1"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == code, done.stderr
        return done.stdout.strip() if code == 0 else done.stderr

    return run


def test_models(ask) -> None:
    assert ask("--models") == "toy"


@pytest.mark.parametrize("more", [[], ["--no-stream"], ["--responses"], ["-s", "Be kind."]])
def test_question(ask, more: list[str]) -> None:
    assert ask("-m", "toy", "hi", *more) == "Hello"


def test_schema(live: Live, ask) -> None:
    live.engine.typist.text = '{"name": "Ada", "age": 36}'
    answer = ask("-m", "toy", "--schema", "name, age int", "who?")
    assert json.loads(answer) == {"name": "Ada", "age": 36}


def test_tools(live: Live, ask) -> None:
    live.engine.typist.text = (
        '<tool_call>\n{"name": "double", "arguments": {"x": 21}}\n</tool_call>'
    )
    code = "def double(x: int) -> int:\n    return 2 * x"
    # The model calls for ever, so the limit ends it.
    output = ask("-m", "toy", "--functions", code, "--td", "--cl", "2", "what?", code=1)
    assert "double" in output
    assert "42" in output
