"""The command line: ``sglang-lite serve | chat | run | pull | env | demo``.

Commands import what they need when they run, so that ``--help`` answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sglang_lite import launch_server

app = typer.Typer(
    name="sglang-lite",
    help="Prompt programs with exact constraints, on a small fast runtime.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.command("serve", context_settings=launch_server.CONTEXT)(launch_server.serve)

ApiKey = Annotated[
    str,
    typer.Option("--api-key", envvar="SGLANG_LITE_API_KEY", help="The key of the server at --url."),
]
Model = Annotated[
    str | None,
    typer.Option("--model-path", "--model", "-m", help="Folder or hub id (default: SmolLM2)."),
]


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"sglang-lite {version('sglang-lite')}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Prompt programs with exact constraints, on a small fast runtime."""


@app.command()
def demo(model_path: Model = None) -> None:
    """Run a small prompt program and show what it made, what it reused, and how fast."""
    from sglang_lite.commands.demo import run_demo

    run_demo(model_path)


@app.command()
def pull() -> None:
    """Fetch the default model, once; print its folder."""
    from sglang_lite.runtime.default_model import default_model_path

    typer.echo(default_model_path())


@app.command()
def chat(
    model_path: Model = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Talk to a running server instead.")
    ] = None,
    system: Annotated[str, typer.Option("--system", help="The system message.")] = "",
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.7,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 512,
    api_key: ApiKey = "",
) -> None:
    """Chat with a model in the terminal; answers stream."""
    from sglang_lite.commands.chat import run_chat

    run_chat(model_path, url, system, temperature, max_tokens, api_key)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="A Python file with a prompt program.")],
    model_path: Model = None,
    url: Annotated[str | None, typer.Option("--url", help="Run it on this server instead.")] = None,
    api_key: ApiKey = "",
) -> None:
    """Run a Python file with a backend already set; further arguments go to the file."""
    from sglang_lite.commands.run import run_file

    run_file(file, context.args, model_path, url, api_key)


@app.command()
def env() -> None:
    """Print what a bug report needs: versions, processors, memory, the cache's place."""
    from sglang_lite.commands.env import print_env

    print_env()


def main() -> None:
    """The entry point of ``sglang-lite``."""
    from sglang_lite.errors import SglangLiteError

    try:
        app()
    except SglangLiteError as error:
        raise SystemExit(f"sglang-lite: {error}") from None


if __name__ == "__main__":
    main()
