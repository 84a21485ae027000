"""Linear layers on a CPU: one weight, the kernel that suits its format and the number of rows.

For few rows a matrix product is bound by reading the weight, so 4 and 8 bits win; for many rows
by arithmetic, where bfloat16 in the CPU library's own blocked layout wins.  The fast operators of
torch are private: each has one class here, is tried on a small product before it is used, and
falls back to plain operators.
"""

# No "from __future__ import annotations": TorchScript reads the types of named tuples themselves.
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F

from sglang_lite.runtime.models.quantize import (
    GROUP,
    Int4Weight,
    Int8Weight,
    quantise_int4,
)


class Matrix(NamedTuple):
    """A weight and how to multiply by it, in the types that TorchScript knows.

    With ``scales_and_zeros`` it is 4 bits as :func:`pack_int4` makes them, ``packed`` is oneDNN's
    blocked layout, else it is torch's own ``[out, in]``.  ``halves``: for inputs ``[x, x]``.
    """

    weight: torch.Tensor
    scales_and_zeros: torch.Tensor | None = None
    packed: bool = False
    halves: bool = False
    bias: torch.Tensor | None = None


def product(x: torch.Tensor, matrix: Matrix) -> torch.Tensor:
    """``x @ weight.T + bias``: ``x [T, in]`` to ``[T, out]`` in the dtype of ``x``.

    oneDNN compiles a kernel for every shape, which takes milliseconds, and torch keeps a thousand
    of them, half a megabyte each: there, rows are padded to one of a few numbers.  The 4-bit
    kernel crawls with any input but contiguous bfloat16.
    """
    if matrix.halves:
        x = torch.cat([x, x], dim=1)
    scales_and_zeros, bias, rows = matrix.scales_and_zeros, matrix.bias, x.shape[0]
    if scales_and_zeros is not None:
        y = torch._weight_int4pack_mm_for_cpu(x.contiguous(), matrix.weight, 32, scales_and_zeros)
    elif matrix.packed:
        padding = padded_rows(rows) - rows
        if padding > 0:
            x = F.pad(x, [0, 0, 0, padding])
        y = torch.ops.mkldnn._linear_pointwise(x, matrix.weight, None, "none", [], "")
        if padding > 0:
            y = y.narrow(0, 0, rows)
    else:
        y = F.linear(x, matrix.weight)
    return y if bias is None else y + bias


def padded_rows(rows: int) -> int:
    """``rows`` rounded up to one of eight numbers per power of two (..., 120, 128, 144, 160)."""
    step = 1
    while rows > 16 * step:
        step *= 2
    return (rows + step - 1) // step * step


class Linear(Protocol):
    """``x @ weight.T``: ``x [T, in]`` to ``[T, out]``."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class LayerLinear(Linear, Protocol):
    """A linear layer that is one matrix for a given number of rows."""

    def matrix(self, rows: int) -> Matrix:
        """What multiplies so many rows."""
        ...


class MatrixLinear:
    """A linear layer that is always the same matrix."""

    def __init__(self, matrix: Matrix) -> None:
        self._matrix = matrix

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return product(x, self._matrix)

    def matrix(self, rows: int) -> Matrix:
        """See :class:`LayerLinear`."""
        return self._matrix


class PlainLinear(MatrixLinear):
    """torch's own linear, any dtype and device."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__(Matrix(weight))


class PackedLinear(MatrixLinear):
    """bfloat16 in oneDNN's blocked layout, reordered once instead of at every call."""

    def __init__(self, weight: torch.Tensor) -> None:
        reordered = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        super().__init__(Matrix(reordered, packed=True))


class Int4Linear(MatrixLinear):
    """Groupwise 4-bit weights, ``weight`` and ``scales_and_zeros`` of :func:`pack_int4`.

    With ``halves`` they are the high and low halves of groupwise 8-bit weights: one 4-bit product
    of twice the length is faster than torch's own 8-bit product, and has a scale per group
    instead of one per row.
    """

    def __init__(
        self, weight: torch.Tensor, scales_and_zeros: torch.Tensor, *, halves: bool = False
    ) -> None:
        super().__init__(Matrix(weight, scales_and_zeros, halves=halves))
        self.weight, self.scales_and_zeros = weight, scales_and_zeros


def pack_int4(weight: Int4Weight) -> tuple[torch.Tensor, torch.Tensor]:
    """The layout of torch's 4-bit product: quants for this CPU, bfloat16[K / 32, N, 2]."""
    quants = weight.quants.to(torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(quants, 2)
    # The kernel computes (quant - 8) * scale + zero.
    zeros = weight.minimums + 8 * weight.scales
    pairs = torch.stack([weight.scales, zeros], dim=-1).bfloat16()
    return packed, pairs.transpose(0, 1).contiguous()


FEW_ROWS = 8
"""Rows for which 4 bits are taken without a measurement."""


class SwitchedLinear:
    """4 bits for up to ``few_rows`` rows, a dense kernel for more; ``shape`` is the weight's.

    The dense kernels of a model are made when one of them is needed first: ``make_dense`` sets
    ``many`` and calls :meth:`release`.
    """

    def __init__(
        self, few: LayerLinear, shape: Sequence[int], make_dense: Callable[[], None]
    ) -> None:
        self.few, self.shape = few, tuple(shape)
        self.few_rows = FEW_ROWS
        self.many: LayerLinear | None = None
        self._make_dense: Callable[[], None] | None = make_dense

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._kernel(x.shape[0])(x)

    def matrix(self, rows: int) -> Matrix:
        """See :class:`LayerLinear`."""
        return self._kernel(rows).matrix(rows)

    def _kernel(self, rows: int) -> LayerLinear:
        if rows > self.few_rows and self._make_dense is not None:
            self._make_dense()
        return self.few if rows <= self.few_rows or self.many is None else self.many

    def release(self, few_rows: int) -> None:
        """Everything is made: forget where the weights came from."""
        self.few_rows, self._make_dense = few_rows, None


class BiasedLinear:
    """Adds a bias to what another linear computes."""

    def __init__(self, linear: LayerLinear, bias: torch.Tensor) -> None:
        self.linear, self.bias = linear, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.bias

    def matrix(self, rows: int) -> Matrix:
        """See :class:`LayerLinear`."""
        return self.linear.matrix(rows)._replace(bias=self.bias)


def packed_linear(weight: torch.Tensor) -> LayerLinear:
    """The fastest kernel for many rows of bfloat16."""
    return PackedLinear(weight) if _packed_works() else PlainLinear(weight)


def int4_linear(weight: Int4Weight) -> LayerLinear:
    """The fastest kernel for a 4-bit weight; without one, the weight is kept as bfloat16."""
    rows, columns = weight.quants.shape
    if rows % 16 == 0 and columns % GROUP == 0 and _int4_works():
        return Int4Linear(*pack_int4(weight))
    return packed_linear(weight.dequantise().bfloat16())


def int8_linear(weight: Int8Weight) -> LayerLinear:
    """The fastest kernel for an 8-bit weight; without one, the weight is kept as bfloat16."""
    if weight.quants.shape[0] % 16 == 0 and _int4_works():
        return Int4Linear(*pack_int4(weight.halves()), halves=True)
    return packed_linear(weight.dequantise().bfloat16())


@cache
def _packed_works() -> bool:
    weight = _sample_weight().bfloat16()
    return _agrees(lambda: PackedLinear(weight), weight)


@cache
def _int4_works() -> bool:
    weight = quantise_int4(_sample_weight())
    return _agrees(lambda: Int4Linear(*pack_int4(weight)), weight.dequantise())


def _sample_weight() -> torch.Tensor:
    return torch.linspace(-1, 1, 64 * 64).sin_().mul_(7).cos_().view(64, 64)


def _agrees(make: Callable[[], Linear], weight: torch.Tensor) -> bool:
    """Whether the private operator exists here and computes what plain operators do."""
    x = _sample_weight()[:3].bfloat16()
    expected = x.float() @ weight.float().T
    try:
        result = make()(x)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return torch.allclose(result.float(), expected, rtol=0.05, atol=0.05 * float(expected.std()))


_ROWS_TRIED = (12, 16, 24, 32)


def measure_crossover(layers: Sequence[SwitchedLinear]) -> int:
    """The largest number of rows up to which the layers' 4-bit kernels are not slower.

    The layers have one shape and run one after the other; together they must exceed the CPU's
    caches: their weights come from memory later, and 4 bits are fewer than 16.  Both kernels of a
    layer are timed in turn, so that another process disturbs both, and the 4-bit ones must win in
    three of four: taking them wrongly costs twice the time, the dense ones much less.
    """
    best = FEW_ROWS
    for rows in _ROWS_TRIED:
        x = torch.zeros(rows, layers[0].shape[1], dtype=torch.bfloat16)
        wins = 0
        for layer in layers:
            few = _seconds(layer.few, x)
            wins += layer.many is None or few <= _seconds(layer.many, x)
        if wins < 0.75 * len(layers):
            break
        best = rows
    return best


def _seconds(linear: Linear, x: torch.Tensor) -> float:
    start = time.perf_counter()
    linear(x)
    return time.perf_counter() - start
