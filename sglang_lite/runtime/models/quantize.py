"""Groupwise 4-bit and 8-bit weights: the numbers, before any kernel packs them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

GROUP = 32
"""Columns that share a scale (and a minimum); GGUF's block length."""


@dataclass(frozen=True)
class Int4Weight:
    """``quants * scales + minimums`` per group of 32 columns.

    ``quants``: uint8[N, K], 0 to 15; ``scales`` and ``minimums``: float32[N, K / 32].
    """

    quants: torch.Tensor
    scales: torch.Tensor
    minimums: torch.Tensor

    def dequantise(self) -> torch.Tensor:
        """The weight as float32[N, K]."""
        grouped = self.quants.unflatten(1, (-1, GROUP)).float()
        return (grouped * self.scales.unsqueeze(-1) + self.minimums.unsqueeze(-1)).flatten(1)


@dataclass(frozen=True)
class Int8Weight:
    """``quants * scales`` per group of 32 columns.

    ``quants``: int8[N, K], -127 to 127; ``scales``: float32[N, K / 32].
    """

    quants: torch.Tensor
    scales: torch.Tensor

    def dequantise(self) -> torch.Tensor:
        """The weight as float32[N, K]."""
        grouped = self.quants.unflatten(1, (-1, GROUP)).float()
        return (grouped * self.scales.unsqueeze(-1)).flatten(1)

    def halves(self) -> Int4Weight:
        """The high and the low 4 bits side by side, ``[N, 2 * K]``: for inputs ``[x, x]``."""
        offset = self.quants.view(torch.uint8) ^ 128
        high = 16 * self.scales
        return Int4Weight(
            torch.cat([offset >> 4, offset & 15], dim=1),
            torch.cat([high, self.scales], dim=1),
            torch.cat([-8 * high, torch.zeros_like(high)], dim=1),
        )


def quantise_int4(weight: torch.Tensor) -> Int4Weight:
    """Round each group to 16 levels between its smallest and largest number."""
    grouped = weight.float().unflatten(1, (-1, GROUP))
    low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
    scales = ((high - low) / 15).clamp_min(torch.finfo(torch.float32).tiny)
    quants = ((grouped - low) / scales).round_().clamp_(0, 15)
    return Int4Weight(quants.flatten(1).to(torch.uint8), scales.squeeze(-1), low.squeeze(-1))


def quantise_int8(weight: torch.Tensor) -> Int8Weight:
    """Round each group to 255 levels around zero."""
    grouped = weight.float().unflatten(1, (-1, GROUP))
    scales = (grouped.abs().amax(-1, keepdim=True) / 127).clamp_min(1e-12)
    # The kernels hold scales in bfloat16: dividing by the rounded one keeps its error out.
    scales = scales.bfloat16().float()
    quants = (grouped / scales).round_().clamp_(-127, 127)
    return Int8Weight(quants.flatten(1).to(torch.int8), scales.squeeze(-1))
