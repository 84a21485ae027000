"""Rotary position tables, computed once at load."""

from __future__ import annotations

import math
from typing import Any

import torch

from sglang_lite.errors import UnsupportedModel


def rope_tables(
    raw: dict[str, Any], head_dim: int, positions: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and signed sines ``[positions, 1, head_dim]`` of the model's RoPE.

    The first half of the sines is negated, so that rotating is
    ``x * cos + swap_halves(x) * sin``.  ``raw`` is `config.json`; an unknown kind is refused.
    """
    parameters = rope_parameters(raw)
    rotary_dim = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
    if rotary_dim != head_dim:
        raise UnsupportedModel(f"RoPE over {rotary_dim} of {head_dim} dimensions is not supported")
    frequencies, scale = _frequencies(parameters, head_dim, raw)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    cos, sin = angles.cos() * scale, angles.sin() * scale
    tables = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
    return tables[0].to(dtype).unsqueeze(1), tables[1].to(dtype).unsqueeze(1)


def rope_parameters(raw: dict[str, Any]) -> dict[str, Any]:
    """RoPE parameters under one set of names; `config.json` has had two layouts."""
    nested = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = nested.get("rope_type") or nested.get("type") or "default"
    theta = nested.get("rope_theta") or raw.get("rope_theta") or 10000.0
    partial = nested.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0
    return {**nested, "rope_type": kind, "rope_theta": theta, "partial_rotary_factor": partial}


def _frequencies(
    parameters: dict[str, Any], dim: int, raw: dict[str, Any]
) -> tuple[torch.Tensor, float]:
    """Inverse frequencies ``[dim / 2]`` and a factor on cosines and sines."""
    base = float(parameters["rope_theta"])
    plain = 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)
    kind = parameters["rope_type"]
    if kind == "default":
        return plain, 1.0
    if kind == "linear":
        return plain / float(parameters["factor"]), 1.0
    if kind == "llama3":
        return _llama3(plain, parameters), 1.0
    if kind == "yarn":
        return _yarn(plain, parameters, dim, raw)
    raise UnsupportedModel(
        f"RoPE type {kind!r} is not supported (supported: default, linear, llama3, yarn)"
    )


def _llama3(plain: torch.Tensor, parameters: dict[str, Any]) -> torch.Tensor:
    """Llama 3.1: long waves are slowed by ``factor``, short ones kept, a ramp between."""
    factor = float(parameters["factor"])
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    original = float(parameters["original_max_position_embeddings"])
    waves_in_context = original * plain / (2 * math.pi)
    keep = ((waves_in_context - low) / (high - low)).clamp(0.0, 1.0)
    return keep * plain + (1.0 - keep) * plain / factor


def _yarn(
    plain: torch.Tensor, parameters: dict[str, Any], dim: int, raw: dict[str, Any]
) -> tuple[torch.Tensor, float]:
    """YaRN (arXiv:2309.00071): interpolate slow dimensions, keep fast ones, sharpen attention."""
    original = parameters.get("original_max_position_embeddings") or raw["max_position_embeddings"]
    factor = float(parameters.get("factor") or raw["max_position_embeddings"] / original)
    base = float(parameters["rope_theta"])

    def dimension_of(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = dimension_of(float(parameters.get("beta_fast") or 32))
    high = dimension_of(float(parameters.get("beta_slow") or 1))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = max(high - low, 0.001)
    slow = ((torch.arange(dim // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
    frequencies = plain / factor * slow + plain * (1 - slow)
    return frequencies, _yarn_attention_factor(parameters, factor)


def _yarn_attention_factor(parameters: dict[str, Any], factor: float) -> float:
    given = parameters.get("attention_factor")
    if given is not None:
        return float(given)

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    scale, all_dims = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if scale and all_dims:
        return magnitude(float(scale)) / magnitude(float(all_dims))
    return magnitude(1.0)
