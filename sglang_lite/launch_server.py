"""``python -m sglang_lite.launch_server --model-path …``, and ``sglang-lite serve``."""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sglang_lite.runtime.engine_args import LOGGING, engine_options

if TYPE_CHECKING:
    from sglang_lite.runtime.engine import Engine
    from sglang_lite.runtime.server.config import ServerConfig

CONTEXT = {"auto_envvar_prefix": "SGLANG_LITE", "max_content_width": 100}
_HTTP = "HTTP"

_DEFAULTS = {"log_level": "info"}
"""Of options that differ for a server."""


def _tokens(text: str) -> int:
    """A number of tokens; ``32k`` is 32768."""
    digits, unit = (text[:-1], 1024) if text[-1:].lower() == "k" else (text, 1)
    if not digits.isdigit() or int(digits) < 1:
        raise typer.BadParameter(f"{text!r} is not a number of tokens, such as 4096 or 32k")
    return int(digits) * unit


def _option(*names: str, panel: str, text: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_envvar=False, **more)


def _engine_parameters() -> list[inspect.Parameter]:
    """The engine's options as the parameters of a command."""
    parameters = []
    for name, (option, kind, default) in engine_options().items():
        default = _DEFAULTS.get(name, default)
        flags = option.flags or ("--" + name.replace("_", "-"),)
        more = {"parser": _tokens} if option.unit == "tokens" else {}
        shown = _option(*flags, panel=option.group, text=option.help, **more)
        values: Any = kind if default is not None else kind | None
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=Annotated[values, shown],
            )
        )
    return parameters


def _with_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Put the engine's options before the command's own; they arrive as keywords."""
    own = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in inspect.signature(command, eval_str=True).parameters.values()
        if each.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*_engine_parameters(), *own]
    )
    return command


@_with_engine_options
def serve(
    host: Annotated[str, _option("--host", panel=_HTTP, text="Address.")] = "127.0.0.1",
    port: Annotated[int, _option("--port", panel=_HTTP, text="0 takes a free one.")] = 30000,
    api_key: Annotated[
        str, _option("--api-key", panel=_HTTP, text="Demanded of every request.")
    ] = "",
    allowed_hosts: Annotated[
        str, _option("--allowed-hosts", panel=_HTTP, text="Host headers, comma-separated.")
    ] = "",
    allowed_origins: Annotated[
        str, _option("--allowed-origins", panel=_HTTP, text="Web pages that may call.")
    ] = "",
    max_body_size: Annotated[int, _option("--max-body-size", panel=_HTTP, text="Bytes.")] = 8
    * 2**20,
    request_timeout: Annotated[
        float, _option("--request-timeout", panel=_HTTP, text="Seconds; 0 = none.")
    ] = 0.0,
    shutdown_timeout: Annotated[
        float, _option("--shutdown-timeout", panel=_HTTP, text="Seconds to drain.")
    ] = 30.0,
    watchdog_timeout: Annotated[
        float, _option("--watchdog-timeout", panel=_HTTP, text="Seconds until /health fails.")
    ] = 300.0,
    sse_keep_alive_interval: Annotated[
        float, _option("--sse-keep-alive-interval", panel=_HTTP, text="Seconds; 0 = never.")
    ] = 15.0,
    allow_unknown_fields: Annotated[
        bool, _option("--allow-unknown-fields", panel=_HTTP, text="Ignore unknown fields.")
    ] = False,
    accept_any_model: Annotated[
        bool, _option("--accept-any-model", panel=_HTTP, text="Serve any model name.")
    ] = False,
    ui: Annotated[
        bool | None,
        _option("--ui/--no-ui", panel=_HTTP, text="Serve /ui (default: on loopback only)."),
    ] = None,
    constrained_json_max_whitespace_cnt: Annotated[
        int | None,
        _option(
            "--constrained-json-max-whitespace-cnt",
            panel=_HTTP,
            text="Longest run of whitespace in generated JSON.",
        ),
    ] = None,
    constrained_json_disable_any_whitespace: Annotated[
        bool,
        _option("--constrained-json-disable-any-whitespace", panel=_HTTP, text="Compact JSON."),
    ] = False,
    constrained_json_max_digits: Annotated[
        int,
        _option(
            "--constrained-json-max-digits",
            panel=_HTTP,
            text="Digits of numbers that a schema leaves unbounded; 0 = no cap.",
        ),
    ] = 40,
    print_config: Annotated[
        bool, _option("--print-config", panel=LOGGING, text="Print the settings and exit.")
    ] = False,
    **engine: Any,
) -> None:
    """Serve a model over HTTP: OpenAI's API and SGLang's.

    Every option can also be set as SGLANG_LITE_<NAME>.
    """
    from sglang_lite.runtime.server.config import ServerConfig

    whitespace = 0 if constrained_json_disable_any_whitespace else None
    if whitespace is None:
        whitespace = constrained_json_max_whitespace_cnt
    config = ServerConfig(
        host=host,
        port=port,
        served_model_name=engine["served_model_name"] or "",
        api_key=api_key,
        allowed_hosts=_listed(allowed_hosts),
        allowed_origins=_listed(allowed_origins),
        max_body_bytes=max_body_size,
        request_timeout=request_timeout,
        shutdown_timeout=shutdown_timeout,
        keep_alive_interval=sse_keep_alive_interval,
        watchdog_timeout=watchdog_timeout,
        json_max_whitespace=whitespace,
        json_max_digits=constrained_json_max_digits or None,
        allow_unknown_fields=allow_unknown_fields,
        accept_any_model=accept_any_model,
        ui=ui,
    )
    if print_config:
        _print_config(config, engine)
        return
    _run(config, engine)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


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
