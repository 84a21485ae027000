"""Where Triton's kernels and CUDA graphs run in the tests.  To be imported by tests of kernels.

On a GPU if there is one; else in Triton's interpreter, which is chosen when kernels are first
used.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")


class Rerun:
    """A graph that only runs the function again, on the same static buffers."""

    replays = 0

    def capture(self, run: Callable[[], torch.Tensor]) -> torch.Tensor:
        self._run, self._result = run, run().clone()
        return self._result

    def replay(self) -> None:
        Rerun.replays += 1
        self._result.copy_(self._run())
