"""Where a process's memory is: what fills up to a bound is told apart from what may grow.

Linux only: the figures are the kernel's, from ``/proc/self``.
"""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sglang_lite.runtime.engine import Engine

PAGE = resource.getpagesize()
PRESENT = np.uint64(1 << 63)
MIB = 2**20


@dataclass(frozen=True)
class Memory:
    """Resident memory in MiB.

    * ``files``: pages of files, which the system takes back when it needs them.
    * ``pool``: pages of the KV pool that have been written; at most the pool's size.
    * ``grammars``: the compile cache's own estimate; at most its bound.
    * ``rest``: everything else; only this can leak.
    """

    total: float
    files: float
    pool: float
    grammars: float

    @property
    def rest(self) -> float:
        """What nothing bounds."""
        return self.total - self.files - self.pool - self.grammars

    def __str__(self) -> str:
        parts = f"files {self.files:.0f} + pool {self.pool:.0f} + grammars {self.grammars:.1f}"
        return f"{self.total:.0f} MiB = {parts} + rest {self.rest:.1f}"

    @classmethod
    def of(cls, engine: Engine) -> Memory:
        """The memory of this process, in which ``engine`` runs."""
        gc.collect()
        fields = dict(
            line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
        )
        total, files = (int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "RssFile"))
        pool = resident_bytes(engine._loop.core.model.kv_cache.layers) / MIB
        return cls(total, files, pool, engine.compiler.cache_size_bytes / MIB)


def resident_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the pages of CPU tensors that have memory: pages never written have none."""
    pages = 0
    with open("/proc/self/pagemap", "rb") as pagemap:
        for tensor in tensors:
            first = tensor.data_ptr() // PAGE
            last = (tensor.data_ptr() + tensor.nbytes - 1) // PAGE
            pagemap.seek(8 * first)
            entries = np.frombuffer(pagemap.read(8 * (last - first + 1)), dtype=np.uint64)
            pages += int(np.count_nonzero(entries & PRESENT))
    return pages * PAGE


def growth(sizes: Sequence[float]) -> float:
    """How much a series grows from its middle to its end, by a line through its second half."""
    half = np.asarray(sizes[len(sizes) // 2 :])
    if len(half) < 2:
        return 0.0
    slope = np.polyfit(np.arange(len(half)), half, 1)[0]
    return float(slope * (len(half) - 1))
