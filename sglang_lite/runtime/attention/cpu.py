"""Attention on a CPU (and the plain-torch path of any device): flash primitive plus merging.

Three things make it fast: keys and values are read through views of the pool, the query heads
that share a KV head are packed as query rows of one call, and a prefix that many rows share is
read once.  Partial results are merged by their log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from sglang_lite.runtime.attention.plan import Segment, plan_segments
from sglang_lite.runtime.batch import Row

# A private operator, but the only one that returns the log-sum-exp on a CPU.
_FLASH = getattr(torch, "_scaled_dot_product_flash_attention_for_cpu", None)

MOST_PADDED_ROWS = 16
"""So few query rows are padded to an even number."""


@dataclass(frozen=True)
class Call:
    """One kernel call: a segment as tensors, or ``batch`` similar segments at equal distances.

    ``keys``: slice, int64 tensor, or None (the new keys).  With ``batch`` > 1, ``tokens`` has one
    token of each segment and segment i's keys are ``keys`` shifted by ``i * stride`` slots.
    ``bias``: float[queries, keys], -inf where not seen; ``blind``: bool[tokens], sees none.
    """

    tokens: slice | torch.Tensor
    count: int
    keys: slice | torch.Tensor | None
    causal: bool
    bias: torch.Tensor | None
    blind: torch.Tensor | None
    part: int
    batch: int = 1
    stride: int = 0


@dataclass(frozen=True)
class TorchPlan:
    """The calls of a step; ``parts`` is the largest number of partial results of a token."""

    calls: list[Call]
    parts: int
    tokens: int


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
            calls.append(self._call(segments[0], batch, segments))
            del segments[:batch]
        parts = 1 + max(call.part for call in calls)
        return TorchPlan(calls, parts, sum(row.new_tokens for row in rows))

    def _call(self, segment: Segment, batch: int, segments: list[Segment]) -> Call:
        tokens: slice | torch.Tensor
        if isinstance(segment.tokens, range):
            tokens = slice(segment.tokens.start, segment.tokens.stop)
        else:
            tokens = torch.from_numpy(segment.tokens).to(self.device)
        count, stride = len(segment.tokens), 0
        if batch > 1:
            assert isinstance(tokens, slice)
            tokens, count = slice(tokens.start, tokens.start + batch), batch
            stride = _first(segments[1]) - _first(segment)
        keys: slice | torch.Tensor | None
        if isinstance(segment.keys, np.ndarray):
            keys = torch.from_numpy(np.ascontiguousarray(segment.keys)).to(self.device)
        else:
            keys = segment.keys
        bias = blind = None
        if segment.mask is not None:
            seen = torch.from_numpy(segment.mask).to(self.device)
            bias = torch.zeros(seen.shape, device=self.device).masked_fill_(~seen, -torch.inf)
            blind = ~seen.any(dim=1)
        return Call(tokens, count, keys, segment.causal, bias, blind, segment.part, batch, stride)

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
        tokens, heads, _ = query.shape
        if len(plan.calls) == 1 and sinks is None:
            args = (query, key, value, key_cache, value_cache, scale, softcap)
            return _run(plan.calls[0], *args)[0].contiguous()
        merge = plan.parts > 1 or sinks is not None
        parts = plan.parts + (sinks is not None)
        out = query.new_empty(parts, tokens, heads, value.shape[-1])
        lse = torch.full((parts, tokens, heads), -torch.inf, device=query.device) if merge else None
        if lse is not None:
            # A token without this part has weight zero, but zero times garbage may be NaN.
            out.zero_()
        for call in plan.calls:
            part_out, part_lse = _run(
                call, query, key, value, key_cache, value_cache, scale, softcap
            )
            out[call.part, call.tokens] = part_out
            if lse is not None:
                part_lse = part_lse.reshape(call.count, heads)
                if call.blind is not None:
                    part_lse = part_lse.masked_fill(call.blind[:, None], -torch.inf)
                lse[call.part, call.tokens] = part_lse
        if lse is None:
            return out[0]
        if sinks is not None:
            lse[-1] = sinks.float()
        weights = lse.softmax(dim=0)
        return (out * weights.unsqueeze(-1)).sum(dim=0).to(query.dtype)


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


def _run(
    call: Call,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    scale: float,
    softcap: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One call's output ``[tokens, heads, dim]`` and log-sum-exp, ``[tokens, heads]`` if reshaped.

    The reshape would be a copy in every layer, and a step of one call doesn't need it.
    """
    everyone = isinstance(call.tokens, slice) and call.count == len(query)
    q = query if everyone else query[call.tokens]
    n, heads, dim = q.shape
    kv_heads = key.shape[1]
    if call.keys is None:
        k, v = (x[call.tokens].transpose(0, 1).unsqueeze(0) for x in (key, value))
        out, lse = flash_attention(
            q.transpose(0, 1).unsqueeze(0), k, v, call.causal, call.bias, scale, softcap
        )
        return out[0].transpose(0, 1), lse[0].transpose(0, 1)
    grouped = q.reshape(n, kv_heads, heads // kv_heads, dim)
    if isinstance(call.keys, slice) and n == call.batch:
        k, v = _spaced_view(key_cache, call), _spaced_view(value_cache, call)
        out, lse = flash_attention(grouped, k, v, False, None, scale, softcap)
        return out.reshape(n, heads, -1), lse
    if isinstance(call.keys, slice):
        k, v = key_cache[:, call.keys], value_cache[:, call.keys]
    else:
        k, v = key_cache.index_select(1, call.keys), value_cache.index_select(1, call.keys)
    packed = grouped.transpose(0, 1).reshape(1, kv_heads, -1, dim)
    bias = None if call.bias is None else call.bias.repeat_interleave(heads // kv_heads, 0)
    out, lse = flash_attention(packed, k.unsqueeze(0), v.unsqueeze(0), False, bias, scale, softcap)
    out = out.view(kv_heads, n, heads // kv_heads, -1).transpose(0, 1)
    lse = lse.view(kv_heads, n, heads // kv_heads).transpose(0, 1)
    return out.reshape(n, heads, -1), lse.reshape(n, heads)


def _spaced_view(cache: torch.Tensor, call: Call) -> torch.Tensor:
    """``[batch, kv_heads, keys, dim]`` over equally spaced runs of one layer's cache."""
    assert isinstance(call.keys, slice)
    heads, _, dim = cache.shape
    by_head, by_slot, by_dim = cache.stride()
    return cache.as_strided(
        (call.batch, heads, call.keys.stop - call.keys.start, dim),
        (call.stride * by_slot, by_head, by_slot, by_dim),
        cache.storage_offset() + call.keys.start * by_slot,
    )


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    causal: bool,
    bias: torch.Tensor | None,
    scale: float,
    softcap: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention with its log-sum-exp: ``[B, heads, n, dim_v]`` and ``float32[B, heads, n]``.

    ``query [B, heads, n, dim]``, ``key``/``value [B, kv_heads, m, dim]``; ``bias [n, m]``.
    Where no key is seen, the log-sum-exp is meaningless: the caller knows these rows.
    """
    fused = softcap is None and query.device.type == "cpu" and key.shape[-1] == value.shape[-1]
    if not fused or _FLASH is None:
        return plain_attention(query, key, value, causal, bias, scale, softcap)
    if bias is not None and bias.dtype != query.dtype:
        bias = bias.to(query.dtype)
    rows = query.shape[2]
    if rows % 2 and rows < MOST_PADDED_ROWS and bias is None and not causal:
        # The products of bfloat16 inside take a fifth less time for one row more.
        padded = F.pad(query, (0, 0, 0, 1))
        out, lse = _FLASH(padded, key, value, 0.0, False, scale=scale)
        return out.narrow(2, 0, rows), lse.narrow(2, 0, rows)
    return _FLASH(query, key, value, 0.0, causal, attn_mask=bias, scale=scale)


def plain_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    causal: bool,
    bias: torch.Tensor | None,
    scale: float,
    softcap: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same as :func:`flash_attention` in public operators, in float32, on any device."""
    batch, heads, n, dim = query.shape
    kv_heads, m = key.shape[1:3]
    grouped = query.float().reshape(batch, kv_heads, heads // kv_heads * n, dim)
    scores = (grouped @ key.float().transpose(-1, -2)).view(batch, heads, n, m) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if causal:
        hidden = torch.ones(n, m, dtype=torch.bool, device=query.device).triu_(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    if bias is not None:
        scores = scores + bias
    lse = scores.logsumexp(dim=-1)
    # Where nothing is seen, -inf - -inf would be NaN; any finite number gives the weight 0.
    weights = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0.0).unsqueeze(-1))
    weights = weights.view(batch, kv_heads, heads // kv_heads * n, m)
    out = (weights @ value.float()).view(batch, heads, n, -1)
    return out.to(query.dtype), lse
