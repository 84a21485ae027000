"""``python -m sglang_lite.launch_server --model-path …``, and ``sglang-lite serve``."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sglang_lite.runtime.engine import Engine
    from sglang_lite.runtime.server.config import ServerConfig

CONTEXT = {"auto_envvar_prefix": "SGLANG_LITE", "max_content_width": 100}
_MODEL, _MEMORY, _HTTP, _LOG = "Model", "Memory and scheduling", "HTTP", "Logging"


def _tokens(text: str) -> int:
    """A number of tokens; ``32k`` is 32768."""
    digits, unit = (text[:-1], 1024) if text[-1:].lower() == "k" else (text, 1)
    if not digits.isdigit() or int(digits) < 1:
        raise typer.BadParameter(f"{text!r} is not a number of tokens, such as 4096 or 32k")
    return int(digits) * unit


def _option(*names: str, panel: str, text: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_envvar=False, **more)


def serve(
    model_path: Annotated[
        str | None,
        _option("--model-path", "--model", "-m", panel=_MODEL, text="Folder or hub id."),
    ] = None,
    tokenizer_path: Annotated[
        str | None, _option("--tokenizer-path", panel=_MODEL, text="If not with the model.")
    ] = None,
    served_model_name: Annotated[
        str, _option("--served-model-name", panel=_MODEL, text="Name in the API.")
    ] = "",
    chat_template: Annotated[
        str | None, _option("--chat-template", panel=_MODEL, text="A Jinja file or text.")
    ] = None,
    dtype: Annotated[str, _option("--dtype", panel=_MODEL, text="auto, bfloat16, …")] = "auto",
    device: Annotated[str, _option("--device", panel=_MODEL, text="auto, cpu, cuda.")] = "auto",
    quantization: Annotated[
        str | None, _option("--quantization", panel=_MODEL, text="For example int4.")
    ] = None,
    context_length: Annotated[
        int | None,
        _option("--context-length", panel=_MODEL, text="Longest sequence (32k).", parser=_tokens),
    ] = None,
    random_seed: Annotated[
        int, _option("--random-seed", panel=_MODEL, text="Of requests without a seed.")
    ] = 0,
    enable_deterministic_inference: Annotated[
        bool,
        _option(
            *("--enable-deterministic-inference", "--deterministic"),
            panel=_MODEL,
            text="The same text alone and in any batch; slower.",
        ),
    ] = False,
    max_running_requests: Annotated[
        int | None,
        _option("--max-running-requests", "--max-running", panel=_MEMORY, text="Run at once."),
    ] = None,
    max_queued_requests: Annotated[
        int | None, _option("--max-queued-requests", panel=_MEMORY, text="More get a 503.")
    ] = None,
    max_total_tokens: Annotated[
        int | None,
        _option(
            *("--max-total-tokens", "--radix-cache-size"),
            panel=_MEMORY,
            text="KV slots for running requests and cached prefixes.",
            parser=_tokens,
        ),
    ] = None,
    mem_fraction_static: Annotated[
        float | None, _option("--mem-fraction-static", panel=_MEMORY, text="Of free memory.")
    ] = None,
    chunked_prefill_size: Annotated[
        int | None,
        _option("--chunked-prefill-size", panel=_MEMORY, text="Tokens of one step."),
    ] = None,
    schedule_policy: Annotated[
        str, _option("--schedule-policy", panel=_MEMORY, text="fcfs, lpm or dfs-weight.")
    ] = "fcfs",
    disable_radix_cache: Annotated[
        bool, _option("--disable-radix-cache", panel=_MEMORY, text="Share no prefixes.")
    ] = False,
    enable_hierarchical_cache: Annotated[
        bool,
        _option(
            "--enable-hierarchical-cache", panel=_MEMORY, text="Keep evicted prefixes on the host."
        ),
    ] = False,
    hicache_ratio: Annotated[
        float, _option("--hicache-ratio", panel=_MEMORY, text="Host slots per device slot.")
    ] = 2.0,
    hicache_size: Annotated[
        float, _option("--hicache-size", panel=_MEMORY, text="GB of host memory instead.")
    ] = 0.0,
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
    log_level: Annotated[str, _option("--log-level", panel=_LOG, text="info, …")] = "info",
    decode_log_interval: Annotated[
        int, _option("--decode-log-interval", panel=_LOG, text="Steps between load lines.")
    ] = 40,
    print_config: Annotated[
        bool, _option("--print-config", panel=_LOG, text="Print the settings and exit.")
    ] = False,
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
        served_model_name=served_model_name,
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
    options = {
        "tokenizer_path": tokenizer_path,
        "chat_template": chat_template,
        "dtype": dtype,
        "device": device,
        "quantization": quantization,
        "context_length": context_length,
        "random_seed": random_seed,
        "max_running_requests": max_running_requests,
        "max_queued_requests": max_queued_requests,
        "max_total_tokens": max_total_tokens,
        "mem_fraction_static": mem_fraction_static,
        "chunked_prefill_size": chunked_prefill_size,
        "schedule_policy": schedule_policy,
        "disable_radix_cache": disable_radix_cache,
        "enable_hierarchical_cache": enable_hierarchical_cache,
        "hicache_ratio": hicache_ratio,
        "hicache_size": hicache_size,
        "deterministic": enable_deterministic_inference,
        "log_level": log_level,
        "decode_log_interval": decode_log_interval,
    }
    if print_config:
        _print_config(model_path, config, options)
        return
    _run(model_path, config, options)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _print_config(model_path: str | None, config: ServerConfig, options: dict[str, Any]) -> None:
    import json
    from dataclasses import asdict

    shown = {"model_path": model_path, **options, **asdict(config)}
    shown["api_key"] = "set" if config.api_key else ""
    print(json.dumps(shown, indent=2))


def _run(model_path: str | None, config: ServerConfig, options: dict[str, Any]) -> None:
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

        folder = resolve_model_path(model_path)
        own_name = folder.name if model_path is not None else DEFAULT_MODEL_NAME
        name = config.served_model_name or own_name
        return Engine(folder, served_model_name=name, **options), str(folder)

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
