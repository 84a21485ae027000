"""What the engine's options come to for one model on one device."""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime.engine_args import EngineArgs, engine_options

if TYPE_CHECKING:
    import torch

    from sglang_lite.runtime.models.config import ModelConfig

CPU_MEMORY_FRACTION = 0.25
"""Share of the free memory for KV slots on a CPU; pages are only taken as slots are used."""

GPU_MEMORY_FRACTION = 0.85
"""Share of the free device memory for weights and KV slots together."""

MOST_CPU_SLOTS = 65_536


@dataclass(frozen=True, kw_only=True)
class EngineConfig(EngineArgs):
    """The options with everything decided that they left open; what scheduler and loop go by."""

    context_length: int
    max_total_tokens: int
    max_running_requests: int
    chunked_prefill_size: int
    random_seed: int
    disable_overlap_schedule: bool

    @classmethod
    def of(
        cls, args: EngineArgs, model: ModelConfig, slots: int, device: torch.device
    ) -> EngineConfig:
        """Fit the options to the model, its KV slots and its device.

        Raises :class:`InvalidRequest`.
        """
        on_cpu, seed = device.type == "cpu", args.random_seed
        decided = {
            "context_length": _at_most("context_length", args.context_length, model.context_length),
            "max_total_tokens": _at_most("max_total_tokens", args.max_total_tokens, slots),
            "max_running_requests": args.max_running_requests or (64 if on_cpu else 256),
            "chunked_prefill_size": args.chunked_prefill_size or (256 if on_cpu else 4096),
            "random_seed": secrets.randbits(63) if seed is None else seed,
            # On a CPU there is nobody to overlap with.
            "disable_overlap_schedule": (
                on_cpu if args.disable_overlap_schedule is None else args.disable_overlap_schedule
            ),
        }
        given = {name: getattr(args, name) for name in engine_options()}
        return cls(**{**given, **decided})


def kv_slots(
    args: EngineArgs,
    model: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    *,
    weight_bytes: int,
) -> int:
    """How many KV slots to make: ``max_total_tokens``, or what fits the memory.

    ``weight_bytes``: size of the weights, which are not loaded yet.
    """
    if args.max_total_tokens is not None:
        return args.max_total_tokens
    fraction = args.mem_fraction_static
    per_slot = model.kv_bytes_per_token(dtype.itemsize)
    if device.type == "cpu":
        budget = free_memory() * (fraction or CPU_MEMORY_FRACTION)
        slots = min(int(budget / per_slot), MOST_CPU_SLOTS)
    else:
        import torch

        free = torch.cuda.mem_get_info(device)[0]
        slots = int((free * (fraction or GPU_MEMORY_FRACTION) - weight_bytes) / per_slot)
    if slots < 2:
        needed = f"more: the weights take {weight_bytes:,} bytes and each token {per_slot:,}"
        raise InvalidRequest("mem_fraction_static", fraction, needed)
    return slots


def free_memory() -> int:
    """Bytes of host memory that could be had: what is not in use, or holds only copies of files."""
    with contextlib.suppress(OSError), open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            name, _, amount = line.partition(":")
            if name == "MemAvailable":
                return int(amount.split()[0]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _at_most(name: str, value: int | None, limit: int) -> int:
    if value is not None and value > limit:
        raise InvalidRequest(name, value, f"an integer from 2 to {limit}")
    return limit if value is None else value
