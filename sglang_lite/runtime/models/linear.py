"""Linear layers: one weight, one callable, chosen by dtype and quantization."""

from __future__ import annotations

import torch
import torch.nn.functional as F


class Linear:
    """``x @ weight.T + bias`` in the weight's dtype."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``x [T, in]`` to ``[T, out]``."""
        return F.linear(x, self.weight, self.bias)
