"""The device of this thread, and host arrays brought there without making the host wait."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch


def on(device: torch.device) -> AbstractContextManager[object]:
    """Make a CUDA device the thread's current one, which is where kernels and graphs go."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def send(numbers: np.ndarray, device: torch.device | str) -> torch.Tensor:
    """``numbers`` as a tensor on ``device``.

    On a CPU it shares the array's memory.  Elsewhere the numbers are copied to page-locked memory
    first and then to the device by a copy that is queued behind the work already there: ordinary
    memory would make the host wait for all of that.  torch's allocator of page-locked memory
    reuses a buffer only when the copies out of it are done, so several steps may be on their way.
    """
    target = torch.device(device)
    if target.type == "cpu":
        return torch.from_numpy(numbers)
    return _locked(numbers).to(target, non_blocking=True)


def send_into(numbers: np.ndarray, target: torch.Tensor) -> None:
    """Copy ``numbers`` to the beginning of ``target`` (one dimension, the same dtype)."""
    source = torch.from_numpy(numbers) if target.device.type == "cpu" else _locked(numbers)
    target[: len(numbers)].copy_(source, non_blocking=True)


def _locked(numbers: np.ndarray) -> torch.Tensor:
    dtype = torch.from_numpy(numbers[:0]).dtype
    staged = torch.empty(numbers.shape, dtype=dtype, pin_memory=True)
    staged.numpy()[...] = numbers
    return staged
