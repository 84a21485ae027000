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


class MirroredResidual(Residual):
    """The stream x kept as [x, -x], whose mean is 0 and whose variance is the mean square of x.

    torch has a fused layer norm on CPUs, but its RMS norm is a dozen operators.
    """

    def __init__(self, x: torch.Tensor) -> None:
        self._both = torch.cat([x, -x], dim=-1)
        self._shape, self._size = self._both.shape[-1:], x.shape[-1]
        self.x, self._minus = self._both.chunk(2, dim=-1)

    def add(self, y: torch.Tensor) -> None:
        """Add a layer's output ``[T, size]``."""
        self.x.add_(y)
        torch.neg(self.x, out=self._minus)

    def normed(self, norm: RMSNorm) -> torch.Tensor:
        """The normalised stream ``[T, size]``."""
        normed = torch.layer_norm(self._both, self._shape, norm.doubled, None, norm.eps, False)
        return normed.narrow(1, 0, self._size)


def residual_stream(x: torch.Tensor) -> Residual:
    """The kind of stream that is fastest for the embeddings ``x [T, size]``.

    float32 keeps to the arithmetic of the models' reference code.
    """
    mirrored = x.device.type == "cpu" and x.dtype == torch.bfloat16
    return MirroredResidual(x) if mirrored else Residual(x)
