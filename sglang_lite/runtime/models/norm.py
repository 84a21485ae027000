"""The residual stream of a step's tokens, and the RMS norms through which the layers read it."""

from __future__ import annotations

import torch
import torch.nn.functional as F


class RMSNorm:
    """``x / sqrt(mean(x ** 2) + eps) * weight`` over the last dimension, of a residual stream."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps
        self.doubled = torch.cat([weight, weight])


class Residual:
    """What the layers add to and read: ``[T, size]``."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def add(self, y: torch.Tensor) -> None:
        """Add a layer's output ``[T, size]``."""
        self.x = self.x + y

    def normed(self, norm: RMSNorm) -> torch.Tensor:
        """The normalised stream ``[T, size]``."""
        return F.rms_norm(self.x, self.x.shape[-1:], norm.weight, norm.eps)
