"""Weights in the 4-bit kernel's own layout, kept on disk: packing them takes longer than loading.

The file lies beside the GGUF file that the numbers come from.  It is only ever a copy: whatever is
wrong with it, or with writing it, the weights are packed anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from sglang_lite.runtime.models.linear import Int4Linear, int4_linear
from sglang_lite.runtime.models.quantize import Int4Weight

log = logging.getLogger("sglang_lite")

_Packed = tuple[torch.Tensor, torch.Tensor]


class PackedWeights:
    """The 4-bit kernels of one GGUF file, by name; None where it has other numbers or shapes.

    The layout is torch's and the CPU's: both are part of the file's name.
    """

    def __init__(self, gguf: Path) -> None:
        status = gguf.stat()
        origin = (status.st_size, status.st_mtime_ns, torch.__version__)
        identity = repr((*origin, torch.backends.cpu.get_cpu_capability()))
        digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
        self._path = gguf.with_name(f"packed-{digest}.pt")
        self._known: dict[str, _Packed | None] = {}
        self._changed = False
        with contextlib.suppress(OSError, RuntimeError, ValueError, EOFError, pickle.PickleError):
            # Mapped: pages are read when they are used, and shared between processes.
            self._known = torch.load(self._path, mmap=True, weights_only=True)

    def kernel(self, name: str, read: Callable[[], Int4Weight | None]) -> Int4Linear | None:
        """The kernel of this name; made from what ``read`` returns if it isn't known yet."""
        if name not in self._known:
            weight = read()
            linear = None if weight is None else int4_linear(weight)
            self._known[name] = None
            if isinstance(linear, Int4Linear):
                self._known[name] = (linear.weight, linear.scales_and_zeros)
            self._changed = True
        packed = self._known[name]
        return None if packed is None else Int4Linear(*packed)

    def save(self) -> None:
        """Keep what was packed in this process for the next one; a failure is only logged."""
        if not self._changed:
            return
        try:
            with tempfile.NamedTemporaryFile(dir=self._path.parent, delete=False) as file:
                try:
                    torch.save(self._known, file)
                    file.close()
                    os.replace(file.name, self._path)
                except BaseException:
                    os.unlink(file.name)
                    raise
        except (OSError, RuntimeError) as error:
            log.info("packed weights are not kept in %s: %s", self._path, error)
