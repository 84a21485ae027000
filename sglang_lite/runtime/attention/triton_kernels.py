"""The two GPU kernels of attention; imported only where Triton is.

Softmax is computed online, in float32 and in base 2: a log-sum-exp is a base-2 logarithm.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
# For float32: three products of tensor cores, as exact as ordinary float32 arithmetic.
PRECISION: tl.constexpr = tl.constexpr("tf32x3")


@triton.jit
def attend_items(
    query,
    key_cache,
    value_cache,
    out,
    partial_out,
    partial_lse,
    sinks,
    items,
    tokens,
    places,
    slots,
    positions,
    query_by_token,
    query_by_head,
    cache_by_head,
    cache_by_slot,
    scale,
    softcap,
    window,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
):
    """One work item for the query heads of one KV head; see `items.py` for the arrays.

    The query heads of a KV head are rows beside each other: row r is token r // GROUP, head
    r % GROUP.  An item without tokens is padding.
    """
    item = items + tl.program_id(0) * 6
    kv_head = tl.program_id(1)
    first_token = tl.load(item)
    token_count = tl.load(item + 1)
    if token_count == 0:
        return
    first_key = tl.load(item + 2)
    key_count = tl.load(item + 3)
    first_position = tl.load(item + 4)
    part = tl.load(item + 5)

    row = tl.arange(0, BLOCK_M)
    dim = tl.arange(0, BLOCK_D)
    is_row = row < token_count * GROUP
    is_dim = dim < DIM
    token = tl.load(tokens + first_token + row // GROUP, mask=is_row, other=0)
    place = tl.load(places + first_token + row // GROUP, mask=is_row, other=-1)
    position = tl.load(positions + token, mask=is_row, other=-1)
    head = kv_head * GROUP + row % GROUP
    q_at = token.to(tl.int64) * query_by_token + head * query_by_head
    q = tl.load(
        query + q_at[:, None] + dim[None, :], mask=is_row[:, None] & is_dim[None, :], other=0.0
    )
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    of_head = kv_head.to(tl.int64) * cache_by_head
    for start in range(0, key_count, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        is_key = key < key_count
        slot = tl.load(slots + first_key + key, mask=is_key, other=0).to(tl.int64)
        at = of_head + slot * cache_by_slot
        k = tl.load(
            key_cache + at[None, :] + dim[:, None],
            mask=is_key[None, :] & is_dim[:, None],
            other=0.0,
        )
        scores = tl.dot(q, k, input_precision=PRECISION) * scale
        if SOFTCAP:
            scores = softcap * (1 - 2 / (tl.exp(2 * scores / softcap) + 1))
        key_position = first_position + key
        seen = is_key[None, :] & (key_position[None, :] <= position[:, None])
        if WINDOW:
            seen = seen & (key_position[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores * LOG2_E, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        # A row that has seen nothing yet: -inf minus -inf would be NaN.
        base = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(largest - base)
        v = tl.load(
            value_cache + at[:, None] + dim[None, :],
            mask=is_key[:, None] & is_dim[None, :],
            other=0.0,
        )
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        largest = larger

    whole = place < 0
    if SINKS:
        # A logit of its own without a value; whoever merges adds it to the others.
        sink = tl.load(sinks + head, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
        larger = tl.where(whole, tl.maximum(largest, sink), largest)
        base = tl.where(larger == float("-inf"), 0.0, larger)
        shrink = tl.exp2(largest - base)
        total = total * shrink + tl.where(whole, tl.exp2(sink - base), 0.0)
        acc = acc * shrink[:, None]
        largest = larger
    nothing = total == 0.0
    divisor = tl.where(nothing, 1.0, total)
    acc = acc / divisor[:, None]
    out_at = (token.to(tl.int64) * HEADS + head) * DIM
    tl.store(
        out + out_at[:, None] + dim[None, :],
        acc.to(out.dtype.element_ty),
        mask=(is_row & whole)[:, None] & is_dim[None, :],
    )
    lse = tl.where(nothing, float("-inf"), largest + tl.log2(divisor))
    partial_at = (place + part).to(tl.int64) * HEADS + head
    is_part = is_row & (place >= 0)
    tl.store(partial_lse + partial_at, lse, mask=is_part)
    tl.store(
        partial_out + partial_at[:, None] * DIM + dim[None, :],
        acc,
        mask=is_part[:, None] & is_dim[None, :],
    )


@triton.jit
def merge_parts(
    partial_out,
    partial_lse,
    sinks,
    out,
    merges,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_P: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Merge one token's partial results of one head by their log-sum-exp.

    ``merges`` int32[m, 3]: token, first place, number of places; none is padding.
    """
    merge = merges + tl.program_id(0) * 3
    head = tl.program_id(1)
    token = tl.load(merge).to(tl.int64)
    first = tl.load(merge + 1).to(tl.int64)
    count = tl.load(merge + 2)
    if count == 0:
        return
    dim = tl.arange(0, BLOCK_D)
    is_dim = dim < DIM
    largest = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    if SINKS:
        largest = tl.load(sinks + head).to(tl.float32) * LOG2_E
        total = total + 1.0
    merged = tl.zeros([BLOCK_D], tl.float32)
    for start in range(0, count, BLOCK_P):
        part = start + tl.arange(0, BLOCK_P)
        is_part = part < count
        place = (first + part) * HEADS + head
        lse = tl.load(partial_lse + place, mask=is_part, other=float("-inf"))
        values = tl.load(
            partial_out + place[:, None] * DIM + dim[None, :],
            mask=is_part[:, None] & is_dim[None, :],
            other=0.0,
        )
        larger = tl.maximum(largest, tl.max(lse, 0))
        base = tl.where(larger == float("-inf"), 0.0, larger)
        shrink = tl.exp2(largest - base)
        weight = tl.exp2(lse - base)
        merged = merged * shrink + tl.sum(values * weight[:, None], 0)
        total = total * shrink + tl.sum(weight, 0)
        largest = larger
    result = merged / total
    tl.store(out + (token * HEADS + head) * DIM + dim, result.to(out.dtype.element_ty), mask=is_dim)
