"""``python -m sglang_lite.launch_server --model-path …``, and ``sglang-lite serve``."""

from __future__ import annotations

import difflib
import inspect
import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime.engine_args import LOGGING, EngineArgs, engine_options
from sglang_lite.runtime.options import Described, described
from sglang_lite.runtime.server.config import ServerConfig

if TYPE_CHECKING:
    from sglang_lite.runtime.engine import Engine

CONTEXT: dict[str, Any] = {"auto_envvar_prefix": "SGLANG_LITE", "max_content_width": 100}

logger = logging.getLogger("sglang_lite.server")

_DEFAULTS: dict[str, Any] = {"log_level": "info"}
"""Of options that differ for a server."""


def _tokens(text: str) -> int:
    """A number of tokens; ``32k`` is 32768."""
    digits, unit = (text[:-1], 1024) if text[-1:].lower() == "k" else (text, 1)
    if not digits.isdigit() or int(digits) < 1:
        raise typer.BadParameter(f"{text!r} is not a number of tokens, such as 4096 or 32k")
    return int(digits) * unit


def _option(*names: str, panel: str, text: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_envvar=False, **more)


def _parameters(options: dict[str, Described]) -> list[inspect.Parameter]:
    """Options as the parameters of a command."""
    parameters = []
    for name, (option, kind, default) in options.items():
        default = _DEFAULTS.get(name, default)
        flags = option.flags or ("--" + name.replace("_", "-"),)
        more = {"parser": _tokens} if option.unit == "tokens" else {}
        shown = _option(*flags, panel=option.group, text=option.help, **more)
        values: Any = kind if default is not None else kind | None
        if option.names:
            default = ",".join(default or ())
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=Annotated[values, shown],
            )
        )
    return parameters


def _with_all_options(command: Callable[..., None]) -> Callable[..., None]:
    """Put the engine's and the server's options before the command's own; keywords all."""
    own = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in inspect.signature(command, eval_str=True).parameters.values()
        if each.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    made = [*_parameters(engine_options()), *_parameters(described(ServerConfig))]
    command.__signature__ = inspect.Signature([*made, *own])  # type: ignore[attr-defined]
    return command


@_with_all_options
def serve(
    print_config: Annotated[
        bool, _option("--print-config", panel=LOGGING, text="Print the settings and exit.")
    ] = False,
    **options: Any,
) -> None:
    """Serve a model over HTTP: OpenAI's API, Anthropic's messages and SGLang's API.

    Every option can also be set as SGLANG_LITE_<NAME>.
    """
    engine = {name: options.pop(name) for name in engine_options()}
    try:
        config = ServerConfig(**options)
        EngineArgs(**engine)
    except InvalidRequest as error:
        raise typer.BadParameter(str(error)) from None
    if print_config:
        _print_config(config, engine)
        return
    _run(config, engine)


def _warn_of_unknown_variables() -> None:
    """Name variables that look like options and set nothing: a typing error would go unseen."""
    prefix = CONTEXT["auto_envvar_prefix"] + "_"
    options = [*engine_options(), *described(ServerConfig), "print_config", "cache"]
    known = [name.upper() for name in options]
    for variable in sorted(os.environ):
        name = variable.removeprefix(prefix)
        if name != variable and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {prefix}{near[0]}?" if near else ""
            logger.warning("the variable %s sets no option%s", variable, hint)


def _print_config(config: ServerConfig, engine: dict[str, Any]) -> None:
    import json
    from dataclasses import asdict

    shown = {**engine, **asdict(config)}
    shown["api_key"] = "set" if config.api_key else ""
    print(json.dumps(shown, indent=2))


def _run(config: ServerConfig, options: dict[str, Any]) -> None:
    from sglang_lite.errors import SglangLiteError
    from sglang_lite.runtime.server import banner
    from sglang_lite.runtime.server.ports import bind, owner_of
    from sglang_lite.runtime.server.serve import serve as serve_http

    logging.basicConfig(
        level=str(options["log_level"]).upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    _warn_of_unknown_variables()
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        sock = bind(config.host, config.port)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        owner = owner_of(config.port)
        raise SystemExit(
            f"sglang-lite: cannot listen on {config.host}:{config.port}: {reason}"
            f"{f', by {owner}' if owner else ''}.\nChoose another port with --port."
        ) from None

    def load() -> tuple[Engine, str]:
        from sglang_lite.runtime.default_model import DEFAULT_MODEL_NAME, resolve_model_path
        from sglang_lite.runtime.engine import Engine

        folder = resolve_model_path(options["model_path"])
        own_name = DEFAULT_MODEL_NAME if options["model_path"] is None else folder.name
        name = options["served_model_name"] or own_name
        chosen = {**options, "model_path": folder, "served_model_name": name}
        return Engine(**chosen), str(folder)

    try:
        talks = logging.getLogger().isEnabledFor(logging.INFO)
        serve_http(config, load, sock, on_ready=banner.show if talks else None)
    except SglangLiteError as error:
        raise SystemExit(f"sglang-lite: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def main() -> None:
    """The command line of ``python -m sglang_lite.launch_server``."""
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(context_settings=CONTEXT)(serve)
    app(prog_name="python -m sglang_lite.launch_server")


if __name__ == "__main__":
    main()
