"""The kernel calls of a plan on one layer, merged by log-sum-exp: torch's flash primitive.

Three things make it fast: keys and values are read through views of the pool, the query heads
that share a KV head are packed as query rows of one call, and a prefix that many rows share is
read once.  The functions keep to what TorchScript understands (`models/layers.py` compiles them).
"""

# No "from __future__ import annotations": TorchScript reads the types of named tuples themselves.
from typing import NamedTuple

import torch
import torch.nn.functional as F

# A private operator, but the only one that returns the log-sum-exp on a CPU.
_HAS_FLASH = hasattr(torch, "_scaled_dot_product_flash_attention_for_cpu")


class Call(NamedTuple):
    """One kernel call: query tokens against keys, or ``batch`` similar pairs at equal distances.

    * ``first``, ``queries``: the first in the flat batch and their number; ``tokens``: their
      places, if they are not side by side.
    * ``own``: the keys are the queries' own new ones.  Otherwise they are in the pool: the
      ``slots``, or the ``keys`` slots from ``start`` on.
    * ``causal``: a query sees the own keys up to its place.  ``bias``: float[queries, keys], -inf
      where not seen; ``blind``: bool[queries], sees none.
    * ``part``: which of its tokens' partial results this is.
    * With ``batch`` > 1 each of the queries has its own keys: ``stride`` slots behind the last's.
    """

    first: int
    queries: int
    tokens: torch.Tensor | None = None
    own: bool = False
    slots: torch.Tensor | None = None
    start: int = 0
    keys: int = 0
    causal: bool = False
    bias: torch.Tensor | None = None
    blind: torch.Tensor | None = None
    part: int = 0
    batch: int = 1
    stride: int = 0


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    calls: list[Call],
    parts: int,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """The attention of a step's tokens in one layer, see `AttentionBackend.attend`.

    ``parts``: the largest number of partial results of a token.
    """
    if len(calls) == 1 and sinks is None:
        call = calls[0]
        out, _ = _run(call, query, key, value, key_cache, value_cache, scale, softcap)
        return out.contiguous()
    tokens, heads = query.size(0), query.size(1)
    merge = parts > 1 or sinks is not None
    rows = parts + 1 if sinks is not None else parts
    out = query.new_empty([rows, tokens, heads, value.size(2)])
    lse = torch.full([rows, tokens, heads], -float("inf"), device=query.device)
    if merge:
        # A token without this part has weight zero, but zero times garbage may be NaN.
        out.zero_()
    for call in calls:
        part_out, part_lse = _run(call, query, key, value, key_cache, value_cache, scale, softcap)
        _put(out, call, part_out)
        if merge:
            part_lse = part_lse.reshape(call.queries, heads)
            blind = call.blind
            if blind is not None:
                part_lse = part_lse.masked_fill(blind.unsqueeze(1), -float("inf"))
            _put(lse, call, part_lse)
    if not merge:
        return out[0]
    if sinks is not None:
        lse[rows - 1] = sinks.float()
    return (out * lse.softmax(dim=0).unsqueeze(-1)).sum(dim=0).to(query.dtype)


def _put(parts: torch.Tensor, call: Call, values: torch.Tensor) -> None:
    """Store a call's results for its tokens in ``parts [parts, T, ...]``."""
    tokens, part = call.tokens, parts[call.part]
    if tokens is None:
        part.narrow(0, call.first, call.queries).copy_(values)
    else:
        part.index_copy_(0, tokens, values.to(parts.dtype))


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
    tokens, slots = call.tokens, call.slots
    if tokens is not None:
        query = query.index_select(0, tokens)
    elif call.queries < query.size(0):
        query = query.narrow(0, call.first, call.queries)
    n, heads, dim, kv_heads = query.size(0), query.size(1), query.size(2), key.size(1)
    if call.own:
        k = key.narrow(0, call.first, n).transpose(0, 1).unsqueeze(0)
        v = value.narrow(0, call.first, n).transpose(0, 1).unsqueeze(0)
        q = query.transpose(0, 1).unsqueeze(0)
        out, lse = flash_attention(q, k, v, call.causal, call.bias, scale, softcap)
        return out[0].transpose(0, 1), lse[0].transpose(0, 1)
    grouped = query.reshape(n, kv_heads, heads // kv_heads, dim)
    if slots is None and n == call.batch:
        k, v = _spaced_view(key_cache, call), _spaced_view(value_cache, call)
        out, lse = flash_attention(grouped, k, v, False, None, scale, softcap)
        return out.reshape(n, heads, -1), lse
    if slots is None:
        k = key_cache.narrow(1, call.start, call.keys)
        v = value_cache.narrow(1, call.start, call.keys)
    else:
        k, v = key_cache.index_select(1, slots), value_cache.index_select(1, slots)
    packed = grouped.transpose(0, 1).reshape(1, kv_heads, -1, dim)
    bias = call.bias
    if bias is not None:
        bias = bias.repeat_interleave(heads // kv_heads, 0)
    out, lse = flash_attention(packed, k.unsqueeze(0), v.unsqueeze(0), False, bias, scale, softcap)
    out = out.view(kv_heads, n, heads // kv_heads, -1).transpose(0, 1)
    lse = lse.view(kv_heads, n, heads // kv_heads).transpose(0, 1)
    return out.reshape(n, heads, -1), lse.reshape(n, heads)


def _spaced_view(cache: torch.Tensor, call: Call) -> torch.Tensor:
    """``[batch, kv_heads, keys, dim]`` over equally spaced runs of one layer's cache."""
    by_slot = cache.stride(1)
    return cache.as_strided(
        [call.batch, cache.size(0), call.keys, cache.size(2)],
        [call.stride * by_slot, cache.stride(0), by_slot, cache.stride(2)],
        cache.storage_offset() + call.start * by_slot,
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
    fused = softcap is None and query.device.type == "cpu" and key.size(3) == value.size(3)
    if not torch.jit.is_scripting():
        fused = fused and _HAS_FLASH
    if not fused:
        return plain_attention(query, key, value, causal, bias, scale, softcap)
    if bias is not None:
        bias = bias.to(query.dtype)
    rows = query.size(2)
    if rows % 2 == 1 and rows < 16 and bias is None and not causal:
        # The products of bfloat16 inside take a fifth less time for one row more.
        out, lse = torch._scaled_dot_product_flash_attention_for_cpu(
            F.pad(query, [0, 0, 0, 1]), key, value, 0.0, False, scale=scale
        )
        return out.narrow(2, 0, rows), lse.narrow(2, 0, rows)
    out, lse = torch._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=bias, scale=scale
    )
    return out, lse


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
    batch, heads, n = query.size(0), query.size(1), query.size(2)
    kv_heads, m = key.size(1), key.size(2)
    grouped = query.float().reshape(batch, kv_heads, heads // kv_heads * n, query.size(3))
    scores = (grouped @ key.float().transpose(-1, -2)).view(batch, heads, n, m) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if causal:
        hidden = torch.ones([n, m], dtype=torch.bool, device=query.device).triu_(1)
        scores = scores.masked_fill(hidden, -float("inf"))
    if bias is not None:
        scores = scores + bias
    lse = scores.logsumexp(dim=-1)
    # Where nothing is seen, -inf - -inf would be NaN; any finite number gives the weight 0.
    finite = lse.masked_fill(lse == -float("inf"), 0.0)
    weights = torch.exp(scores - finite.unsqueeze(-1))
    weights = weights.view(batch, kv_heads, heads // kv_heads * n, m)
    out = (weights @ value.float()).view(batch, heads, n, -1)
    return out.to(query.dtype), lse
