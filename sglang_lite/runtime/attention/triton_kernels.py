"""The two GPU kernels of attention; imported only where Triton is."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attend_items(
    query,
    key_cache,
    value_cache,
    partial_out,
    partial_lse,
    items,
    tokens,
    slots,
    positions,
    query_by_token,
    query_by_head,
    cache_by_head,
    cache_by_slot,
    total_tokens,
    total_heads,
    scale,
    softcap,
    window,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """One work item: some query tokens against some keys, for the heads of one KV head.

    ``items`` int32[n, 6]: first token and token count (in ``tokens``), first key and key count (in
    ``slots``), position of the first key, part.  The query heads of a KV head are rows beside each
    other: row r is token r // GROUP, head r % GROUP.  Softmax is computed online, in float32.
    """
    item = items + tl.program_id(0) * 6
    kv_head = tl.program_id(1)
    first_token = tl.load(item)
    token_count = tl.load(item + 1)
    first_key = tl.load(item + 2)
    key_count = tl.load(item + 3)
    first_position = tl.load(item + 4)
    part = tl.load(item + 5)

    row = tl.arange(0, BLOCK_M)
    dim = tl.arange(0, BLOCK_D)
    is_row = row < token_count * GROUP
    is_dim = dim < DIM
    token = tl.load(tokens + first_token + row // GROUP, mask=is_row, other=0)
    position = tl.load(positions + token, mask=is_row, other=-1)
    head = kv_head * GROUP + row % GROUP
    q = tl.load(
        query + token[:, None] * query_by_token + head[:, None] * query_by_head + dim[None, :],
        mask=is_row[:, None] & is_dim[None, :],
        other=0.0,
    )
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, key_count, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        is_key = key < key_count
        slot = tl.load(slots + first_key + key, mask=is_key, other=0).to(tl.int64)
        at = kv_head.to(tl.int64) * cache_by_head + slot * cache_by_slot
        k = tl.load(
            key_cache + at[None, :] + dim[:, None],
            mask=is_key[None, :] & is_dim[:, None],
            other=0.0,
        )
        scores = tl.dot(q, k, input_precision="ieee") * scale
        if SOFTCAP:
            scores = softcap * (1 - 2 / (tl.exp(2 * scores / softcap) + 1))
        key_position = first_position + key
        seen = is_key[None, :] & (key_position[None, :] <= position[:, None])
        if WINDOW:
            seen = seen & (key_position[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        # A row that has seen nothing yet: -inf minus -inf would be NaN.
        base = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp(scores - base[:, None])
        shrink = tl.exp(largest - base)
        v = tl.load(
            value_cache + at[:, None] + dim[None, :],
            mask=is_key[:, None] & is_dim[None, :],
            other=0.0,
        )
        total = total * shrink + tl.sum(weights, 1)
        out = out * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        largest = larger
    nothing = total == 0.0
    out = out / tl.where(nothing, 1.0, total)[:, None]
    lse = tl.where(nothing, float("-inf"), largest + tl.log(tl.where(nothing, 1.0, total)))
    at = (part * total_tokens + token) * total_heads + head
    tl.store(partial_lse + at, lse, mask=is_row)
    tl.store(
        partial_out + at[:, None].to(tl.int64) * DIM + dim[None, :],
        out,
        mask=is_row[:, None] & is_dim[None, :],
    )


@triton.jit
def merge_parts(
    partial_out,
    partial_lse,
    sinks,
    out,
    total_tokens,
    total_heads,
    parts,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Merge a token's partial results of one head by their log-sum-exp, in float32.

    A part that a token doesn't have holds -inf in ``partial_lse`` and anything in ``partial_out``.
    """
    at = tl.program_id(0).to(tl.int64) * total_heads + tl.program_id(1)
    dim = tl.arange(0, BLOCK_D)
    is_dim = dim < DIM
    largest = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    if SINKS:
        largest = tl.load(sinks + tl.program_id(1)).to(tl.float32)
        total = total + 1.0
    merged = tl.zeros([BLOCK_D], tl.float32)
    for part in range(parts):
        place = at + part * total_tokens * total_heads
        lse = tl.load(partial_lse + place)
        values = tl.load(partial_out + place * DIM + dim, mask=is_dim, other=0.0)
        # Zero times whatever an absent part holds may be NaN.
        values = tl.where(lse == float("-inf"), 0.0, values)
        larger = tl.maximum(largest, lse)
        base = tl.where(larger == float("-inf"), 0.0, larger)
        shrink = tl.exp(largest - base)
        weight = tl.exp(lse - base)
        merged = merged * shrink + values * weight
        total = total * shrink + weight
        largest = larger
    result = merged / total
    tl.store(out + at * DIM + dim, result.to(out.dtype.element_ty), mask=is_dim)
