"""The command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sglang_lite import cli, launch_server
from sglang_lite.commands.chat import run_chat
from sglang_lite.errors import EngineError, InvalidRequest
from sglang_lite.lang.backends.runtime import server_options
from sglang_lite.runtime.options import described
from sglang_lite.runtime.server.config import ServerConfig
from tests.server.live import Live, serving
from tests.server.scripted import Script

runner = CliRunner()


def settings_of(*arguments: str, **environment: str) -> dict:
    result = runner.invoke(cli.app, ["serve", *arguments, "--print-config"], env=environment)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_help_is_grouped() -> None:
    result = runner.invoke(cli.app, ["serve", "--help"], env={"COLUMNS": "200"})
    for text in ("Memory and scheduling", "--mem-fraction-static", "--radix-cache-size"):
        assert text in result.output


@pytest.mark.parametrize("name", ["serve", "chat", "run", "pull", "env", "demo"])
def test_every_command_has_help(name: str) -> None:
    assert runner.invoke(cli.app, [name, "--help"]).exit_code == 0


def test_help_imports_no_torch() -> None:
    code = (
        "import sys; from sglang_lite import cli\n"
        "try: cli.app(['serve', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'transformers', 'fastapi', 'uvicorn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_flags_of_sglang_and_their_other_names() -> None:
    made = settings_of(
        *("--model", "m", "--max-running", "3", "--radix-cache-size", "64k"),
        *("--context-length", "32k", "--api-key", "secret", "--allowed-hosts", "a, b"),
    )
    assert made["model_path"] == "m"
    assert made["max_running_requests"] == 3
    assert made["max_total_tokens"] == 65536
    assert made["context_length"] == 32768
    assert made["api_key"] == "set"
    assert made["allowed_hosts"] == ["a", "b"]
    assert made["port"] == 30000


def test_the_environment_sets_options() -> None:
    made = settings_of(SGLANG_LITE_PORT="31000", SGLANG_LITE_MODEL_PATH="m")
    assert (made["port"], made["model_path"]) == (31000, "m")


def test_the_command_line_has_every_http_option_with_its_default() -> None:
    made = settings_of()
    for name, (_, _, default) in described(ServerConfig).items():
        assert made[name] == (list(default) if isinstance(default, tuple) else default), name


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("port", 70_000, "70000"),
        ("port", -1, "-1"),
        ("port", True, None),
        ("host", 3, None),
        ("max_body_size", 0, "0"),
        ("receive_timeout", -1, "-1"),
        ("receive_timeout", float("nan"), "nan"),
        ("send_timeout", -0.5, "-0.5"),
        ("request_timeout", "5", None),
        ("shutdown_timeout", -1, "-1"),
        ("watchdog_timeout", 0, "0"),
        ("sse_keep_alive_interval", -1, "-1"),
        ("allow_unknown_fields", 1, None),
        ("ui", "yes", None),
        ("allowed_hosts", 3, None),
        ("allowed_origins", ["a", 3], None),
        ("constrained_json_max_whitespace_cnt", -1, "-1"),
        ("constrained_json_max_digits", -1, "-1"),
    ],
)
def test_http_options_have_one_range_in_python_flags_and_environment(
    name: str, value: object, text: str | None
) -> None:
    with pytest.raises(InvalidRequest, match=name):
        ServerConfig(**{name: value})
    if text is not None:
        flag = "--" + name.replace("_", "-")
        given = runner.invoke(cli.app, ["serve", flag, text, "--print-config"])
        environment = {f"SGLANG_LITE_{name.upper()}": text}
        set_outside = runner.invoke(cli.app, ["serve", "--print-config"], env=environment)
        for result in (given, set_outside):
            assert result.exit_code == 2
            assert name in result.output


def test_http_options_from_the_environment() -> None:
    made = settings_of(
        SGLANG_LITE_RECEIVE_TIMEOUT="5", SGLANG_LITE_UI="false", SGLANG_LITE_ALLOWED_HOSTS="a,b"
    )
    assert (made["receive_timeout"], made["ui"], made["allowed_hosts"]) == (5, False, ["a", "b"])


def test_variables_that_set_nothing_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("PROT", "MODEL", "QQQ", "PORT", "CACHE", "API_KEY", "MODEL_PATH"):
        monkeypatch.setenv(f"SGLANG_LITE_{name}", "1")
    launch_server._warn_of_unknown_variables()
    assert caplog.messages == [
        "the variable SGLANG_LITE_MODEL sets no option; did you mean SGLANG_LITE_MODEL_PATH?",
        "the variable SGLANG_LITE_PROT sets no option; did you mean SGLANG_LITE_PORT?",
        "the variable SGLANG_LITE_QQQ sets no option",
    ]


def test_a_runtime_takes_the_same_names() -> None:
    flags, environment = server_options(
        {
            "receive_timeout": 5,
            "ui": False,
            "allowed_hosts": ["a", "b"],
            "cuda_graph_bs": (1, 2),
            "accept_any_model": True,
            "disable_overlap_schedule": False,
            "chunked_prefill_size": None,
        }
    )
    made = settings_of(*flags, **environment)
    assert (made["receive_timeout"], made["ui"], made["allowed_hosts"]) == (5, False, ["a", "b"])
    assert (made["cuda_graph_bs"], made["accept_any_model"]) == ("1,2", True)
    assert made["disable_overlap_schedule"] is False
    assert made["chunked_prefill_size"] is None


def test_engine_options_out_of_range_are_refused_before_the_port_is_bound() -> None:
    result = runner.invoke(cli.app, ["serve", "--max-running-requests", "0"])
    assert result.exit_code == 2
    assert "max_running_requests" in result.output


def test_unknown_flags_get_a_suggestion() -> None:
    result = runner.invoke(cli.app, ["serve", "--max-total-token", "1"])
    assert result.exit_code == 2
    assert "--max-total-tokens" in result.output


def test_numbers_that_are_none() -> None:
    result = runner.invoke(cli.app, ["serve", "--context-length", "long"])
    assert result.exit_code == 2
    assert "32k" in result.output


def test_env() -> None:
    result = runner.invoke(cli.app, ["env"])
    assert result.exit_code == 0
    for name in ("sglang-lite:", "torch:", "python:", "processors:"):
        assert name in result.output


def test_run_needs_a_file() -> None:
    result = runner.invoke(cli.app, ["run", "no-such-file.py"])
    assert "no-such-file.py" in str(result.exception)


def test_run_on_a_server(live: Live, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "program.py"
    file.write_text(
        "import sys\nimport sglang_lite as sgl\n"
        "@sgl.function\n"
        "def program(s):\n    s += 'x' + sgl.gen('a', max_tokens=3)\n"
        "if __name__ == '__main__':\n    print(sys.argv[1:], program.run()['a'])\n"
    )
    result = runner.invoke(cli.app, ["run", str(file), "--url", live.url, "more", "--flag"])
    assert result.exit_code == 0, result.exception
    assert "['more', '--flag'] Hel" in result.output


def test_chat_with_a_server(
    live: Live, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    live.engine.script = lambda request, prompt: Script((f"{prompt.count('<user>')} questions",))
    lines = iter(["hi", "", "and?", "/reset", "again", "/exit"])
    monkeypatch.setattr("builtins.input", lambda *_: next(lines))
    run_chat(None, live.url, "Be kind.", 0.5, 50)
    output = capsys.readouterr().out
    assert [f"{n} questions" in output for n in (1, 2, 3)] == [True, True, False]
    assert bytes(live.engine.requests[0].input_ids).startswith(b"<system>Be kind.")
    assert live.engine.requests[0].sampling_params.temperature == 0.5


@pytest.mark.parametrize(("flag", "value"), [("--temperature", "-1"), ("--max-tokens", "0")])
def test_chat_refuses_what_no_answer_could_have(flag: str, value: str) -> None:
    # Before the model loads, and before the address is asked for anything.
    for place in ([], ["--url", "http://127.0.0.1:1"]):
        result = runner.invoke(cli.app, ["chat", flag, value, *place])
        assert result.exit_code == 2
        assert flag in result.output


def test_chat_shows_errors(
    live: Live, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["x" * 5000, "/exit"])
    monkeypatch.setattr("builtins.input", lambda *_: next(lines))
    run_chat(None, live.url, "", 0.5, 50)
    assert "maximum context length" in " ".join(capsys.readouterr().out.split())


def test_version() -> None:
    result = runner.invoke(cli.app, ["--version"])
    assert result.exit_code == 0
    assert result.output.startswith("sglang-lite ")


def test_chat_and_run_with_a_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with serving(api_key="secret") as live:
        lines = iter(["hi", "/exit"])
        monkeypatch.setattr("builtins.input", lambda *_: next(lines))
        run_chat(None, live.url, "", 0.5, 50, api_key="secret")
        assert "Hello" in capsys.readouterr().out
        with pytest.raises(EngineError, match="API key"):
            run_chat(None, live.url, "", 0.5, 50)
        file = tmp_path / "ask.py"
        file.write_text("import sglang_lite as sgl\nprint(sgl.gen)\n")
        monkeypatch.setenv("SGLANG_LITE_API_KEY", "secret")
        result = runner.invoke(cli.app, ["run", str(file), "--url", live.url])
        assert result.exit_code == 0, result.exception


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[", "nonsense"])
def test_chat_without_a_server(url: str) -> None:
    with pytest.raises(EngineError, match="no answer from"):
        run_chat(None, url, "", 0.5, 50)


@pytest.mark.parametrize(
    ("text", "words"), [("x = (", "SyntaxError"), ("def f():\n    1 / 0\nf()", "line 3")]
)
def test_failures_of_a_program_begin_in_its_file(
    live: Live, tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "program.py"
    file.write_text(text)
    command = [sys.executable, "-m", "sglang_lite.cli", "run", str(file), "--url", live.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert words in done.stderr
    assert "runpy" not in done.stderr
    assert "typer" not in done.stderr
