"""The engine's limits: every option's default and range in one place."""

from __future__ import annotations

import math
import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime.policy import POLICIES

if TYPE_CHECKING:
    import torch

    from sglang_lite.runtime.models.config import ModelConfig

CPU_MEMORY_FRACTION = 0.25
"""Share of the free memory for KV slots on a CPU; pages are only taken as slots are used."""

GPU_MEMORY_FRACTION = 0.85
"""Share of the free device memory for weights and KV slots together."""

MOST_CPU_SLOTS = 65_536


@dataclass(frozen=True)
class EngineConfig:
    """What the scheduler and the loop go by; see :class:`~sglang_lite.runtime.engine.Engine`."""

    context_length: int
    max_total_tokens: int
    max_running_requests: int
    chunked_prefill_size: int
    max_queued_requests: int
    schedule_policy: str
    disable_radix_cache: bool
    enable_hierarchical_cache: bool
    hicache_ratio: float
    hicache_size: float
    deterministic: bool
    random_seed: int
    decode_log_interval: int
    disable_overlap_schedule: bool

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        slots: int,
        device: torch.device,
        *,
        context_length: int | None = None,
        max_total_tokens: int | None = None,
        max_running_requests: int | None = None,
        chunked_prefill_size: int | None = None,
        max_queued_requests: int | None = None,
        schedule_policy: str = "fcfs",
        disable_radix_cache: bool = False,
        enable_hierarchical_cache: bool = False,
        hicache_ratio: float = 2.0,
        hicache_size: float = 0.0,
        deterministic: bool = False,
        random_seed: int | None = 0,
        decode_log_interval: int = 40,
        disable_overlap_schedule: bool | None = None,
    ) -> EngineConfig:
        """Check the options against the model and its KV slots, and fill in defaults.

        Raises :class:`InvalidRequest`.
        """
        limit, on_cpu = model.context_length, device.type == "cpu"
        if schedule_policy not in POLICIES:
            accepted = f"one of {', '.join(map(repr, POLICIES))}"
            raise InvalidRequest("schedule_policy", schedule_policy, accepted)
        if enable_hierarchical_cache and disable_radix_cache:
            reason = "False where disable_radix_cache is set: there is no prefix to keep"
            raise InvalidRequest("enable_hierarchical_cache", True, reason)
        return cls(
            context_length=_count("context_length", context_length, limit, 2, limit),
            max_total_tokens=_count("max_total_tokens", max_total_tokens, slots, 2, slots),
            max_running_requests=_count(
                "max_running_requests", max_running_requests, 64 if on_cpu else 256
            ),
            chunked_prefill_size=_count(
                "chunked_prefill_size", chunked_prefill_size, 256 if on_cpu else 4096
            ),
            max_queued_requests=_count("max_queued_requests", max_queued_requests, 16_384),
            schedule_policy=schedule_policy,
            disable_radix_cache=disable_radix_cache,
            enable_hierarchical_cache=enable_hierarchical_cache,
            hicache_ratio=_positive("hicache_ratio", hicache_ratio),
            hicache_size=_positive("hicache_size", hicache_size, zero=True),
            deterministic=deterministic,
            random_seed=secrets.randbits(63) if random_seed is None else random_seed,
            decode_log_interval=_count("decode_log_interval", decode_log_interval, 40),
            # On a CPU there is nobody to overlap with.
            disable_overlap_schedule=(
                on_cpu if disable_overlap_schedule is None else disable_overlap_schedule
            ),
        )


def kv_slots(
    model: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    *,
    weight_bytes: int,
    max_total_tokens: int | None = None,
    mem_fraction_static: float | None = None,
) -> int:
    """How many KV slots to make: ``max_total_tokens``, or what fits the memory.

    ``weight_bytes``: size of the weights, which are not loaded yet.
    """
    if max_total_tokens is not None:
        return _count("max_total_tokens", max_total_tokens, 0, 2)
    fraction = mem_fraction_static
    if fraction is not None and not 0.0 < fraction < 1.0:
        raise InvalidRequest("mem_fraction_static", fraction, "a number between 0 and 1")
    per_slot = model.kv_bytes_per_token(dtype.itemsize)
    if device.type == "cpu":
        budget = _free_memory() * (fraction or CPU_MEMORY_FRACTION)
        slots = min(int(budget / per_slot), MOST_CPU_SLOTS)
    else:
        import torch

        free = torch.cuda.mem_get_info(device)[0]
        slots = int((free * (fraction or GPU_MEMORY_FRACTION) - weight_bytes) / per_slot)
    if slots < 2:
        needed = f"more: the weights take {weight_bytes:,} bytes and each token {per_slot:,}"
        raise InvalidRequest("mem_fraction_static", fraction, needed)
    return slots


def _positive(name: str, value: float, *, zero: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidRequest(name, value, "a number")
    if not (0 < value < math.inf or (zero and value == 0)):
        raise InvalidRequest(name, value, "a number of at least 0" if zero else "a positive number")
    return value


def _free_memory() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _count(name: str, value: int | None, default: int, low: int = 1, high: int = 2**31) -> int:
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequest(name, value, f"an integer from {low} to {high}")
    return value
