"""A decoder's layers as one TorchScript function: for CPUs, and any device without Triton.

A step of one sequence is some 900 operators.  Called one by one from Python they take as long as
the matrices; TorchScript's interpreter calls them faster, and needs no compiler.  Where torch
can't make the script (it reads these sources) the functions run as they are.  Views are few, and
by the operators that are quickest to call: `narrow` is three operators.
"""

# No "from __future__ import annotations": TorchScript reads the types of named tuples themselves.
import warnings
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F

from sglang_lite.runtime.attention.calls import Call, attend
from sglang_lite.runtime.models.linear import Matrix, product


class LayerWeights(NamedTuple):
    """One layer: norms ``[size]``, matrices, ``qk_norm [heads + kv_heads, head_dim]`` or None.

    ``rotary``: whether positions are encoded; ``plan``: which of the step's attention plans it has.
    The norms come twice over, ``[2 * size]``, where :func:`mirrored` says so.
    """

    input_norm: torch.Tensor
    qkv: Matrix
    qk_norm: torch.Tensor | None
    output: Matrix
    mlp_norm: torch.Tensor
    gate_up: Matrix
    down: Matrix
    rotary: bool
    plan: int


class Cache(NamedTuple):
    """A layer's keys and values: ``both [2 * kv_heads, slots, head_dim]`` and its halves."""

    both: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


class Step(NamedTuple):
    """What the layers need to know of a step of T tokens.

    ``cos``, ``sin``: ``[T, 1, head_dim]``, the sines signed; ``slots``: int64[T], where keys and
    values go; ``calls``, ``parts``: each attention plan.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    slots: torch.Tensor
    calls: list[list[Call]]
    parts: list[int]


def run_layers(
    x: torch.Tensor,
    layers: list[LayerWeights],
    final_norm: torch.Tensor,
    caches: list[Cache],
    step: Step,
    heads: int,
    eps: float,
    scale: float,
) -> torch.Tensor:
    """The normalised output ``[T, size]`` for the embeddings ``x``, which may be overwritten.

    The new tokens' keys and values are written to the ``caches`` at ``step.slots``.
    """
    mirror = torch.empty(0)
    stream = x
    if mirrored(x):
        mirror = torch.tensor([1.0, -1.0], dtype=x.dtype).view(2, 1)
        stream = torch.stack([x, -x], dim=1)
    for i, layer in enumerate(layers):
        qkv = product(_normed(stream, layer.input_norm, eps), layer.qkv)
        y = _attention(qkv, layer, caches[i], step, heads, eps, scale)
        _add(stream, product(y, layer.output), mirror)
        y = product(_normed(stream, layer.mlp_norm, eps), layer.gate_up)
        _add(stream, product(gated(y), layer.down), mirror)
    return _normed(stream, final_norm, eps)


def mirrored(x: torch.Tensor) -> bool:
    """Whether the residual stream is [x, -x], whose mean is 0 and variance the mean square of x.

    torch has a fused layer norm on CPUs, but its RMS norm is a dozen operators.  float32 keeps to
    the arithmetic of the models' reference code.
    """
    return x.device.type == "cpu" and x.dtype == torch.bfloat16


def _add(stream: torch.Tensor, y: torch.Tensor, mirror: torch.Tensor) -> None:
    """Add a layer's output ``[T, size]`` to the stream, ``[T, size]`` or ``[T, 2, size]``."""
    if stream.dim() == 2:
        stream.add_(y)
    else:
        stream.addcmul_(y.unsqueeze(1), mirror)


def _normed(stream: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / sqrt(mean(x ** 2) + eps) * weight`` of the stream's x, ``[T, size]``."""
    rows, size = stream.size(0), stream.size(-1)
    if stream.dim() == 2:
        return torch.rms_norm(stream, [size], weight, eps)
    normed = torch.layer_norm(stream, [2, size], weight.view(2, size), None, eps, False)
    return normed.as_strided([rows, size], [2 * size, 1])


def _attention(
    qkv: torch.Tensor,
    layer: LayerWeights,
    cache: Cache,
    step: Step,
    heads: int,
    eps: float,
    scale: float,
) -> torch.Tensor:
    """What the new tokens see, ``[T, heads * head_dim]``."""
    rows, kv_heads, dim = qkv.size(0), cache.keys.size(0), cache.keys.size(2)
    qkv = qkv.view(rows, heads + 2 * kv_heads, dim)
    cos, sin = (step.cos, step.sin) if layer.rotary else (None, None)
    turn_and_store(qkv, layer.qk_norm, cos, sin, cache.both, step.slots, eps)
    query, key, value = qkv.split_with_sizes([heads, kv_heads, kv_heads], 1)
    calls, parts = step.calls[layer.plan], step.parts[layer.plan]
    y = attend(query, key, value, cache.keys, cache.values, calls, parts, scale, None, None)
    return y.view(rows, heads * dim)


def turn_and_store(
    qkv: torch.Tensor,
    norm: torch.Tensor | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    cache: torch.Tensor,
    slots: torch.Tensor,
    eps: float,
) -> None:
    """Normalise and rotate queries and keys in place; store keys and values at ``slots[T]``.

    Of ``qkv [T, heads + 2 * kv_heads, head_dim]``; a key stays beside its value, one write for
    both to ``cache [2 * kv_heads, slots, head_dim]``.
    """
    dim, stored = qkv.size(2), cache.size(0)
    turned = qkv.narrow(1, 0, qkv.size(1) - stored // 2)
    if norm is not None:
        torch.mul(torch.rms_norm(turned, [dim], None, eps), norm, out=turned)
    if cos is not None and sin is not None:
        swapped = turned.roll([dim // 2], [2])
        torch.addcmul(turned * cos, swapped, sin, out=turned)
    cache.index_copy_(1, slots, qkv.narrow(1, qkv.size(1) - stored, stored).transpose(0, 1))


def gated(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` of ``gate_up [T, 2 * size]``."""
    size = gate_up.size(1) // 2
    gate, up = gate_up.split_with_sizes([size, size], 1)
    return F.silu(gate).mul_(up)


@cache
def layer_runner() -> Callable[..., torch.Tensor]:
    """:func:`run_layers` as a script if torch can make one, else as it is."""
    with warnings.catch_warnings():
        # Deprecated, with nothing in its place that works without a compiler.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return torch.jit.script(run_layers)
        except (AttributeError, OSError, RuntimeError, ValueError, NotImplementedError):
            return run_layers
