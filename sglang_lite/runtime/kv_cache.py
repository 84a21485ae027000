"""The tensors behind the KV slots; which slot belongs to whom is `kv_pool.py`'s business."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime.device import send

ALIGNMENT = 64
"""Bytes of a cache line, and of the widest vector register."""


class KVCache:
    """Keys and values of every layer, head-major: ``[kv_heads, slots, head_dim]`` per layer.

    Head-major, because attention reads one head's keys of consecutive slots in one sweep: twice
    as fast on a CPU as slot-major beyond a few hundred tokens.

    ``shapes`` has ``(kv_heads, head_dim)`` for each layer.
    Raises :class:`InvalidRequest` where the memory does not suffice.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, int]],
        slots: int,
        dtype: torch.dtype,
        device: str | torch.device = "cpu",
    ) -> None:
        self.slots = slots
        self.device = torch.device(device)
        # One tensor holds a layer's keys and, above them, its values: a step writes both at once.
        try:
            self.layers = [
                _zeros((2 * heads, slots + 1, dim), dtype, self.device) for heads, dim in shapes
            ]
        except (MemoryError, torch.OutOfMemoryError):
            size = 2 * dtype.itemsize * sum(heads * dim for heads, dim in shapes)
            accepted = f"fewer: a token takes {size:,} bytes, and these do not fit the memory"
            raise InvalidRequest("max_total_tokens", slots, accepted) from None
        self.keys = [layer[: len(layer) // 2] for layer in self.layers]
        self.values = [layer[len(layer) // 2 :] for layer in self.layers]

    def write(self, layer: int, slots: torch.Tensor, key_value: torch.Tensor) -> None:
        """Store the keys and values of new tokens at ``slots[T]``.

        ``key_value [T, 2 * kv_heads, head_dim]``: each token's keys, then its values.
        """
        self.layers[layer].index_copy_(1, slots, key_value.transpose(0, 1))

    @property
    def scratch_slot(self) -> int:
        """One slot beyond the others, that rows which only fill up a batch may write and read."""
        return self.slots

    def gather(self, slots: np.ndarray) -> torch.Tensor:
        """All layers' keys and values of some slots: ``[n, width]`` on the device, a row each."""
        index = send(slots, self.device)
        parts = [layer.index_select(1, index) for layer in self.layers]
        return torch.cat([part.transpose(0, 1).flatten(1) for part in parts], dim=1)

    def scatter(self, slots: np.ndarray, rows: torch.Tensor) -> None:
        """Write rows as :meth:`gather` gives them to other slots."""
        index = send(slots, self.device)
        for layer, part in zip(self.layers, rows.split(self._widths, dim=1), strict=True):
            heads, _, dim = layer.shape
            layer.index_copy_(1, index, part.view(len(slots), heads, dim).transpose(0, 1))

    def host_rows(self, count: int) -> torch.Tensor:
        """Host memory for ``count`` rows; pinned where the device copies from it by itself."""
        shape, dtype = (count, sum(self._widths)), self.layers[0].dtype
        if self.device.type == "cuda":
            return torch.empty(shape, dtype=dtype, pin_memory=True)
        return _zeros(shape, dtype, torch.device("cpu"))

    @property
    def _widths(self) -> list[int]:
        return [layer.shape[0] * layer.shape[2] for layer in self.layers]

    @property
    def nbytes(self) -> int:
        """Size in bytes if every slot is used."""
        return sum(t.nbytes for t in (*self.keys, *self.values))

    @property
    def bytes_per_slot(self) -> int:
        """Size in bytes of one token's keys and values over all layers."""
        return self.nbytes // (self.slots + 1)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros whose pages cost no memory and no time before they are written.

    On a CPU numpy asks the system for pages of zeros, while ``torch.zeros`` writes every byte.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.zeros(nbytes + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return torch.from_numpy(raw[start : start + nbytes]).view(dtype).view(shape)
