"""The attention backend made of torch's operators, for a CPU and any device without Triton."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sglang_lite.runtime.attention.calls import Call, attend
from sglang_lite.runtime.attention.plan import Segment, plan_segments
from sglang_lite.runtime.batch import Row


@dataclass(frozen=True)
class TorchPlan:
    """The calls of a step; ``parts`` is the largest number of partial results of a token."""

    calls: list[Call]
    parts: int


class TorchAttention:
    """The :class:`~sglang_lite.runtime.attention.plan.AttentionBackend` made of torch calls."""

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self.device = torch.device(device)

    def plan(self, rows: Sequence[Row], window: int | None) -> TorchPlan:
        """Plan the step's segments and turn them into kernel calls."""
        segments = plan_segments(rows, window)
        # Equal parts of neighbouring tokens side by side, so that one call can do several.
        segments.sort(key=lambda segment: (segment.part, segment.tokens[0]))
        calls: list[Call] = []
        while segments:
            batch = _equally_spaced(segments)
            calls.append(self._call(segments[:batch]))
            del segments[:batch]
        return self._planned(calls)

    def _planned(self, calls: list[Call]) -> TorchPlan:
        return TorchPlan(calls, 1 + max(call.part for call in calls))

    def _call(self, segments: Sequence[Segment]) -> Call:
        """One segment, or several that are equally spaced, as a call."""
        segment, tokens, slots, bias, blind = segments[0], None, None, None, None
        if not isinstance(segment.tokens, range):
            tokens = self._sent(segment.tokens)
        start, keys = 0, 0
        if isinstance(segment.keys, slice):
            start, keys = _first(segment), segment.keys.stop - segment.keys.start
        elif segment.keys is not None:
            slots = self._sent(segment.keys)
        if segment.mask is not None:
            seen = self._sent(segment.mask)
            bias = torch.zeros(seen.shape, device=self.device).masked_fill_(~seen, -torch.inf)
            blind = ~seen.any(dim=1)
        batch = len(segments)
        return Call(
            first=int(segment.tokens[0]),
            queries=batch if batch > 1 else len(segment.tokens),
            tokens=tokens,
            own=segment.keys is None,
            slots=slots,
            start=start,
            keys=keys,
            causal=segment.causal,
            bias=bias,
            blind=blind,
            part=segment.part,
            batch=batch,
            stride=_first(segments[1]) - start if batch > 1 else 0,
        )

    def _sent(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        plan: TorchPlan,
        *,
        scale: float,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See :class:`AttentionBackend`."""
        calls, parts = plan.calls, plan.parts
        caches = (key_cache, value_cache)
        return attend(query, key, value, *caches, calls, parts, scale, softcap, sinks)


def _equally_spaced(segments: list[Segment]) -> int:
    """How many of the first segments are one token each, with runs of equal length and distance.

    Forks and equal requests in lock step look like this; one call on a strided view does them all.
    """
    first = segments[0]
    if not isinstance(first.keys, slice) or len(first.tokens) != 1 or len(segments) == 1:
        return 1
    length = first.keys.stop - first.keys.start
    count, stride = 1, None
    for segment in segments[1:]:
        fits = (
            isinstance(segment.keys, slice)
            and len(segment.tokens) == 1
            and segment.part == first.part
            and segment.tokens[0] == first.tokens[0] + count
            and segment.keys.stop - segment.keys.start == length
        )
        if not fits:
            break
        step = _first(segment) - _first(segments[count - 1])
        if step <= 0 or step != (stride or step):
            break
        stride = step
        count += 1
    return count


def _first(segment: Segment) -> int:
    assert isinstance(segment.keys, slice)
    return int(segment.keys.start)
