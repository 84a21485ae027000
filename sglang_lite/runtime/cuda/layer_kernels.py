"""Triton kernels of a decoder layer's small operations; imported only where Triton is.

Each does in one pass what torch does in several: in a decode step of a small model these passes,
not the matrices, would be most of the time.
"""

# mypy: disable-error-code="no-untyped-def,attr-defined"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_and_norm(
    stream,
    added,
    weight,
    out,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
):
    """``stream += added`` (with ADD), then its RMS norm to ``out``; one row of SIZE numbers."""
    at = tl.program_id(0).to(tl.int64) * SIZE
    i = tl.arange(0, BLOCK)
    x = tl.load(stream + at + i, mask=i < SIZE, other=0.0)
    if ADD:
        # Rounded like the stream itself, which the next layers read.
        x = (
            x.to(tl.float32) + tl.load(added + at + i, mask=i < SIZE, other=0.0).to(tl.float32)
        ).to(stream.dtype.element_ty)
        tl.store(stream + at + i, x, mask=i < SIZE)
    x = x.to(tl.float32)
    x *= tl.rsqrt(tl.sum(x * x, 0) / SIZE + eps)
    w = tl.load(weight + i, mask=i < SIZE, other=0.0).to(tl.float32)
    tl.store(out + at + i, (x * w).to(out.dtype.element_ty), mask=i < SIZE)


@triton.jit
def turn_and_store(
    qkv,
    norm_weight,
    cos,
    sin,
    slots,
    turned,
    cache,
    cache_by_head,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    NORM: tl.constexpr,
    ROTARY: tl.constexpr,
):
    """One head of one token: queries and keys are normalised and rotated, to ``turned``; keys and
    values are stored in the cache.

    ``qkv [T, HEADS + 2 * KV_HEADS, DIM]``, ``norm_weight`` and ``turned [.., HEADS + KV_HEADS,
    DIM]``, ``cos`` and ``sin [T, DIM]`` (the first half of the sines negated), ``slots`` int64[T],
    ``cache [2 * KV_HEADS, slots, DIM]`` with the values above the keys.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i = tl.arange(0, BLOCK)
    is_dim = i < DIM
    row = qkv + (token * (HEADS + 2 * KV_HEADS) + head) * DIM
    x = tl.load(row + i, mask=is_dim, other=0.0).to(tl.float32)
    if head < HEADS + KV_HEADS:
        scale = 1.0
        if NORM:
            scale = tl.rsqrt(tl.sum(x * x, 0) / DIM + eps)
            x = x * scale * tl.load(norm_weight + head * DIM + i, mask=is_dim, other=0.0)
        if ROTARY:
            other = (i + DIM // 2) % DIM
            swapped = tl.load(row + other, mask=is_dim, other=0.0).to(tl.float32)
            if NORM:
                swapped *= scale * tl.load(norm_weight + head * DIM + other, mask=is_dim, other=0.0)
            c = tl.load(cos + token * DIM + i, mask=is_dim, other=0.0).to(tl.float32)
            s = tl.load(sin + token * DIM + i, mask=is_dim, other=0.0).to(tl.float32)
            x = x * c + swapped * s
        at = turned + (token * (HEADS + KV_HEADS) + head) * DIM
        tl.store(at + i, x.to(turned.dtype.element_ty), mask=is_dim)
    if head >= HEADS:
        slot = tl.load(slots + token)
        at = cache + (head - HEADS).to(tl.int64) * cache_by_head + slot * DIM
        tl.store(at + i, x.to(cache.dtype.element_ty), mask=is_dim)


@triton.jit
def gate_and_multiply(gate_up, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """``silu(gate) * up`` of rows [gate, up] of twice SIZE numbers."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = gate_up + row * 2 * SIZE + i
    gate = tl.load(at, mask=i < SIZE, other=0.0).to(tl.float32)
    up = tl.load(at + SIZE, mask=i < SIZE, other=0.0).to(tl.float32)
    value = gate / (1 + tl.exp(-gate)) * up
    tl.store(out + row * SIZE + i, value.to(out.dtype.element_ty), mask=i < SIZE)
