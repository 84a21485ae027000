"""Packed token masks that stay on the device, so that a state seen before costs no copy."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch

from sglang_lite.runtime.device import send
from sglang_lite.runtime.sampler import SamplingRow

LINES = 1024
"""So many masks are kept at least; the one used longest ago makes room for a new one."""


class MaskTable:
    """Masks as lines of one tensor ``table`` int32[lines, words], by who they are.

    A matcher's mask is an array that is never written again, so the object is its name (it is kept
    with the line, so that no other can get its address); a short list of allowed ids is named by
    its contents.
    """

    def __init__(self, device: torch.device, words: int, lines: int = LINES) -> None:
        self.device, self.words = device, words
        self._resize(lines)

    def _resize(self, lines: int) -> None:
        self.table = torch.zeros((lines, self.words), dtype=torch.int32, device=self.device)
        self._lines: OrderedDict[int | bytes, tuple[int, np.ndarray]] = OrderedDict()
        self.sent = 0

    def lines(self, rows: Sequence[SamplingRow]) -> np.ndarray:
        """The line of each row's mask, -1 without one: int32[rows]; unknown ones are sent."""
        if len(rows) > len(self.table):
            self._resize(2 * len(rows))
        found = np.full(len(rows), -1, dtype=np.int32)
        new: dict[int | bytes, np.ndarray] = {}
        wanting: list[tuple[int, int | bytes]] = []
        for at, row in enumerate(rows):
            mask = row.mask if row.allowed is None else row.allowed
            if mask is None:
                continue
            name = id(mask) if row.allowed is None else mask.tobytes()
            if name in self._lines:
                self._lines.move_to_end(name)
                found[at] = self._lines[name][0]
            else:
                wanting.append((at, name))
                new[name] = mask
        if new:
            self._send(new)
            for at, name in wanting:
                found[at] = self._lines[name][0]
        return found

    def _send(self, new: dict[int | bytes, np.ndarray]) -> None:
        """Give new masks lines.  Those of this step were used last, so none of them is taken."""
        host = np.zeros((len(new), self.words), dtype=np.int32)
        places = np.empty(len(new), dtype=np.int64)
        for i, (name, mask) in enumerate(new.items()):
            if len(self._lines) < len(self.table):
                line = len(self._lines)
            else:
                line = self._lines.popitem(last=False)[1][0]
            self._lines[name] = (line, mask)
            places[i] = line
            if isinstance(name, bytes):
                bits = np.uint32(1) << (mask & 31).astype(np.uint32)
                np.bitwise_or.at(host[i].view(np.uint32), mask >> 5, bits)
            else:
                words = min(len(mask), self.words)
                host[i, :words] = mask[:words]
        self.table.index_copy_(0, send(places, self.device), send(host, self.device))
        self.sent += len(new)
