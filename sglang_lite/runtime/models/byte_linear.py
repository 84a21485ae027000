"""A matrix of 8-bit weights for inputs of 16 bits: the output head of a quantised checkpoint.

Half the bytes of bfloat16, and exacter: the integer product adds up without rounding and comes out
as float32, while half of what a bfloat16 head costs is the rounding of its output.
"""

from __future__ import annotations

from functools import cache

import torch

SECOND_BYTES = 32
"""Columns whose weights have a second byte: with the scale of a whole row, the first is coarse,
and a few columns carry most of the product."""

_BLOCK = 2048
_FULL = 32000
"""The input ``limit`` as an integer; 32639 is the largest that two offset bytes hold."""


class ByteLinear:
    """``x @ weight.T`` as float32, for ``x`` with numbers of at most ``limit`` in size.

    A weight is a byte times its row's scale; in the largest columns a second byte, stored as a
    column of its own, counts 1/254 of the first.  An input is two bytes, high and low, which are
    two rows of one integer product of oneDNN.
    """

    def __init__(self, weight: torch.Tensor, limit: float) -> None:
        outputs, inputs = weight.shape
        self._to_integer = _FULL / limit
        sample = weight[:: max(1, outputs // _BLOCK)].float()
        self._columns = sample.square().sum(0).topk(min(SECOND_BYTES, inputs)).indices
        quants = torch.empty(outputs, inputs + len(self._columns), dtype=torch.int8)
        scales = torch.empty(outputs)
        for start in range(0, outputs, _BLOCK):
            block = slice(start, start + _BLOCK)
            scales[block] = _quantise(weight[block], self._columns, quants[block])
        self._weight = torch.ops.onednn.qlinear_prepack(quants, None)
        self._scales = scales / self._to_integer
        self._zeros = torch.zeros(outputs, dtype=torch.int32)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        x = x.float()
        wide = torch.cat([x, x.index_select(1, self._columns).div_(254)], dim=1)
        integers = wide.mul_(self._to_integer).round_().to(torch.int32).add_(0x8080)
        digits = torch.cat([integers >> 8, integers & 255]).to(torch.uint8)
        out = torch.ops.onednn.qlinear_pointwise(
            digits, 1.0, 128, self._weight, self._scales, self._zeros, None,
            1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        # An integer can't be infinite or NaN: a row that isn't finite must stay so.
        high = x.sum(1, keepdim=True).mul_(0).add_(256)
        return torch.addcmul(out[rows:], out[:rows], high)


def _quantise(weight: torch.Tensor, columns: torch.Tensor, quants: torch.Tensor) -> torch.Tensor:
    """Fill ``quants`` with a block's bytes and the second ones of ``columns``; the rows' scales."""
    exact = weight.float()
    scales = exact.abs().amax(1).div_(127).clamp_min_(torch.finfo(torch.float32).tiny)
    exact = exact / scales.unsqueeze(1)
    first = exact.round()
    quants[:, : exact.shape[1]] = first
    rest = exact.sub_(first).index_select(1, columns)
    quants[:, exact.shape[1] :] = rest.mul_(254).round_().clamp_(-127, 127)
    return scales


@cache
def byte_linear_works() -> bool:
    """Whether the private operator exists, and adds pairs of large products without saturating."""
    weight = torch.linspace(-3, 3, 32 * 64).sin().view(32, 64)
    weight[:16] = weight[:16].sign()
    x = torch.stack([torch.full((64,), 8.0), -torch.full((64,), 8.0), 8 * weight[20]])
    expected = x @ weight.T
    try:
        result = ByteLinear(weight, 8.0)(x)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return torch.allclose(result, expected, rtol=0.01, atol=0.01 * float(expected.abs().max()))
