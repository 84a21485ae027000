"""The engine's options: each one's name, default, range and help, written once.

``Engine(...)`` takes them as its arguments, the command line is made of them, and
:class:`~sglang_lite.runtime.config.EngineConfig` is what becomes of them for one model.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any

from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime.options import Described, Option, check_options, described
from sglang_lite.runtime.policy import POLICIES

MEMORY, LOGGING = "Memory and scheduling", "Logging"


@dataclass(frozen=True)
class EngineArgs:
    """The options of an engine; the names are those of SGLang's ``ServerArgs``.

    None leaves a choice to the model, the device and the memory that there is.
    Raises :class:`InvalidRequest` for values outside their range.
    """

    model_path: Annotated[
        str | Path | None,
        Option(
            "A local Hugging Face folder, a GGUF file or a hub id; without one, the default model.",
            flags=("--model-path", "--model", "-m"),
            loads=True,
        ),
    ] = None
    _: KW_ONLY
    tokenizer_path: Annotated[
        str | Path | None, Option("Where the tokenizer is, if not with the model.", loads=True)
    ] = None
    served_model_name: Annotated[str | None, Option("The model's name in the API.")] = None
    chat_template: Annotated[
        str | None,
        Option("A Jinja template, or the path of one, instead of the tokenizer's own.", loads=True),
    ] = None
    dtype: Annotated[
        str, Option("Of weights and activations: auto, bfloat16, float16 or float32.", loads=True)
    ] = "auto"
    device: Annotated[str, Option("auto, cpu or cuda.", loads=True)] = "auto"
    quantization: Annotated[
        str | None,
        Option(
            "The linear layers' format, for example int4; without one, the checkpoint's.",
            loads=True,
        ),
    ] = None
    context_length: Annotated[
        int | None,
        Option("Most tokens of a sequence, at most the model's own.", low=2, unit="tokens"),
    ] = None
    random_seed: Annotated[
        int | None,
        Option("What the seeds of requests without one derive from; None draws it."),
    ] = 0
    deterministic: Annotated[
        bool,
        Option(
            "Bit-identical results for a request alone, in any batch, cached or preempted. Each "
            "sequence is computed by itself, so a batch is no faster than its parts.",
            flags=("--enable-deterministic-inference", "--deterministic"),
        ),
    ] = False
    max_running_requests: Annotated[
        int | None,
        Option(
            "Most samples that run at once.",
            MEMORY,
            low=1,
            flags=("--max-running-requests", "--max-running"),
        ),
    ] = None
    max_queued_requests: Annotated[
        int, Option("More waiting samples are refused (QueueFull; over HTTP a 503).", MEMORY, low=1)
    ] = 16_384
    max_total_tokens: Annotated[
        int | None,
        Option(
            "KV slots, shared by running requests and cached prefixes; without a number, what "
            "fits mem_fraction_static, within reason.",
            MEMORY,
            low=2,
            unit="tokens",
            flags=("--max-total-tokens", "--radix-cache-size"),
        ),
    ] = None
    mem_fraction_static: Annotated[
        float | None,
        Option(
            "Share of the free memory for KV slots (on a GPU with the weights).",
            MEMORY,
            above=0,
            below=1,
            loads=True,
        ),
    ] = None
    chunked_prefill_size: Annotated[
        int | None, Option("Most tokens computed in one step.", MEMORY, low=1)
    ] = None
    schedule_policy: Annotated[
        str,
        Option(
            "Who is admitted first: fcfs, lpm (longest cached prefix) or dfs-weight.",
            MEMORY,
            choices=tuple(POLICIES),
        ),
    ] = "fcfs"
    disable_radix_cache: Annotated[bool, Option("Compute every prompt from its start.", MEMORY)] = (
        False
    )
    enable_hierarchical_cache: Annotated[
        bool,
        Option(
            "Keep evicted prefixes in host memory and copy them back where that beats computing "
            "them, as measured.",
            MEMORY,
        ),
    ] = False
    hicache_ratio: Annotated[float, Option("Host slots per device slot.", MEMORY, above=0)] = 2.0
    hicache_size: Annotated[
        float, Option("Gigabytes of host memory instead of a ratio; 0 = by ratio.", MEMORY, low=0)
    ] = 0.0
    disable_overlap_schedule: Annotated[
        bool | None,
        Option(
            "Hand a step's tokens out before the next forward starts, not while it runs; the "
            "default on a CPU, where nothing would overlap.",
            MEMORY,
            flags=("--disable-overlap-schedule/--enable-overlap-schedule",),
        ),
    ] = None
    disable_cuda_graph: Annotated[
        bool, Option("Never replay decode steps from CUDA graphs.", MEMORY)
    ] = False
    cuda_graph_max_bs: Annotated[
        int | None,
        Option(
            "Most rows of a decode step that there is a graph for; without a number, 256.",
            MEMORY,
            low=1,
        ),
    ] = None
    cuda_graph_bs: Annotated[
        str | Sequence[int] | None,
        Option(
            "Numbers of rows that there is a graph for, such as 1,2,4,8; other steps are padded.",
            MEMORY,
            numbers=True,
        ),
    ] = None
    log_level: Annotated[
        str, Option('Of the logger "sglang_lite": debug, info, warning, error, critical.', LOGGING)
    ] = "warning"
    decode_log_interval: Annotated[
        int, Option("A line about the load each so many steps.", LOGGING, low=1)
    ] = 40

    def __post_init__(self) -> None:
        check_options(self, engine_options())
        if not isinstance(logging.getLevelName(self.log_level.upper()), int):
            accepted = "debug, info, warning, error or critical"
            raise InvalidRequest("log_level", self.log_level, accepted)
        if self.enable_hierarchical_cache and self.disable_radix_cache:
            reason = "False where disable_radix_cache is set: there is no prefix to keep"
            raise InvalidRequest("enable_hierarchical_cache", True, reason)
        for name in ("hicache_ratio", "hicache_size"):
            value, silent = getattr(self, name), type(self).__dataclass_fields__[name].default
            if value != silent and not self.enable_hierarchical_cache:
                raise InvalidRequest(name, value, "nothing without enable_hierarchical_cache")


def engine_options() -> dict[str, Described]:
    """Each option with the type of its values (bool, int, float or str) and its default."""
    return described(EngineArgs)


def refuse_loading_options(options: Mapping[str, Any]) -> None:
    """Raise :class:`InvalidRequest` for what an engine around a loaded model can't obey."""
    for name, value in options.items():
        if name in engine_options() and engine_options()[name][0].loads:
            raise InvalidRequest(name, value, "nothing here: the model is loaded already")
