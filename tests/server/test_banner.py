"""What the terminal shows at the start: its commands work as they stand there."""

from __future__ import annotations

import io
import re
import shlex

import httpx
import pytest
from rich.console import Console

from sglang_lite.runtime.server import banner
from tests.server.live import Live, serving
from tests.server.scripted import ScriptedEngine

KEY = "sesame"


def shown(live: Live, width: int, is_terminal: bool = True) -> str:
    """The banner's text without colours."""
    console = Console(file=io.StringIO(), width=width, force_terminal=is_terminal)
    banner.show(live.process.server, live.url, console)
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())


def commands(text: str) -> tuple[list[str], str]:
    """The shell command's words, and the program, as somebody who pastes them has them."""
    shell, program = re.search(r"(curl .*?\n)((?:import|from) .*)", text, re.DOTALL).groups()
    return shlex.split(shell.replace("\\\n", "")), program


def run_curl(words: list[str], key: str) -> httpx.Response:
    assert words[0] == "curl"
    headers = dict(
        word.replace("$SGLANG_LITE_API_KEY", key).split(": ")
        for flag, word in zip(words[2::2], words[3::2], strict=True)
        if flag == "-H"
    )
    assert words[-2] == "-d"
    return httpx.post(words[1], content=words[-1], headers=headers, trust_env=False)


@pytest.mark.parametrize("width", [30, 80, 200])
@pytest.mark.parametrize(
    "name", ["toy", 'it\'s "a" model – with a name as long as a terminal is wide']
)
@pytest.mark.parametrize("key", ["", KEY])
def test_commands_can_be_pasted_from_any_terminal(
    width: int,
    name: str,
    key: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SGLANG_LITE_API_KEY", KEY)
    with serving(ScriptedEngine(), served_model_name=name, api_key=key) as live:
        text = shown(live, width)
        words, program = commands(text)
        answer = run_curl(words, KEY)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == "Hello"
        exec(compile(program, "banner", "exec"), {})
    assert capsys.readouterr().out == "Hello\n"
    assert KEY not in text


def test_every_api_has_its_url() -> None:
    with serving() as live:
        text = shown(live, 200, is_terminal=False)
    lines = dict(line.split(": ", 1) for line in text.splitlines())
    assert lines["OpenAI"] == f"{live.url}/v1"
    assert lines["Anthropic"] == live.url
    assert lines["SGLang"] == f"{live.url}/generate"
    assert lines["live view"] == f"{live.url}/ui"
    assert lines["context"] == "4,096 tokens"
