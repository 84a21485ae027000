"""Which kernel runs a model's matrices, by dtype, device and quantization."""

from __future__ import annotations

import math

import torch

from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime.models import linear as kinds
from sglang_lite.runtime.models.config import ModelConfig
from sglang_lite.runtime.models.linear import Linear
from sglang_lite.runtime.models.quantize import GROUP, Int4Weight, quantise_int4, quantise_int8
from sglang_lite.runtime.models.weights import NativeBlocks, Weights

QUANTIZATIONS = ("int4", "int8")
_BYTES_MEASURED = 100_000_000
"""More bfloat16 weights than a CPU caches."""


class LinearFactory:
    """Makes the linear layers of one model.

    * ``quantization=None``: the checkpoint's numbers.  In bfloat16 on a CPU a folder that keeps
      4- and 8-bit originals runs on them where that is faster: for few rows, how many is measured.
    * ``"int4"``, ``"int8"``: one copy of each matrix in so many bits, the smallest memory; the
      output head stays at 8 bits, because 4 there cost visible quality.
    """

    def __init__(
        self,
        weights: Weights,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        quantization: str | None,
    ) -> None:
        self._weights, self._dtype, self._device = weights, dtype, device
        self._fast = device.type == "cpu" and dtype == torch.bfloat16
        self._quantization = quantization
        if quantization is not None and quantization not in QUANTIZATIONS:
            accepted = f"None or one of {', '.join(map(repr, QUANTIZATIONS))}"
            raise InvalidRequest("quantization", quantization, accepted)
        if quantization is not None and not self._fast:
            raise InvalidRequest(
                "quantization", quantization, "None, except with dtype='bfloat16' on a CPU"
            )
        self._native = NativeBlocks(weights.folder, config) if self._fast else None
        self._switched: list[kinds.SwitchedLinear] = []

    def layer(self, prefix: str, *names: str) -> Linear:
        """The linear layer of the matrices ``names``, fused, with their biases if they have any."""
        full = [f"{prefix}{name}.weight" for name in names]
        biases = [self._weights.get(f"{prefix}{name}.bias") for name in names]
        linear = self._layer(full)
        given = [bias for bias in biases if bias is not None]
        if not given:
            return linear
        zeros = [self._weights[name].new_zeros(len(self._weights[name])) for name in full]
        filled = [zero if bias is None else bias for bias, zero in zip(biases, zeros, strict=True)]
        return kinds.BiasedLinear(linear, torch.cat(filled).to(self._device, self._dtype))

    def head(self, name: str) -> Linear:
        """The output head: hidden states to logits."""
        if self._quantization is not None:
            native = self._native.int8(name) if self._native is not None else None
            return self._int8([name]) if native is None else kinds.int8_linear(native)
        return self._dense([name])

    def tune(self) -> None:
        """Measure up to how many rows the layers' 4-bit kernels win; after the last layer."""
        if not self._switched:
            return
        largest = max((layer.shape for layer in self._switched), key=math.prod)
        sample = [layer for layer in self._switched if layer.shape == largest]
        count = _BYTES_MEASURED // (2 * math.prod(largest)) + 1
        few_rows = kinds.measure_crossover(sample[:count])
        for layer in self._switched:
            layer.few_rows = few_rows

    def _layer(self, names: list[str]) -> Linear:
        native = self._native.int4(*names) if self._native is not None else None
        if self._quantization == "int8":
            return self._int8(names)
        if self._quantization == "int4":
            self._weights.skip(*names)
            return self._int4(native, names)
        dense = self._dense(names)
        if native is None:
            return dense
        layer = kinds.SwitchedLinear(kinds.int4_linear(native), dense, native.quants.shape)
        self._switched.append(layer)
        return layer

    def _int4(self, native: Int4Weight | None, names: list[str]) -> Linear:
        if native is not None:
            return kinds.int4_linear(native)
        weight = self._weights.matrix(*names)
        if weight.shape[1] % GROUP:
            return self._dense(names)
        return kinds.int4_linear(quantise_int4(weight))

    def _int8(self, names: list[str]) -> Linear:
        weight = self._weights.matrix(*names)
        if weight.shape[1] % GROUP:
            return self._dense(names)
        return kinds.int8_linear(quantise_int8(weight))

    def _dense(self, names: list[str]) -> Linear:
        weight = self._weights.matrix(*names).to(self._device, self._dtype)
        return kinds.packed_linear(weight) if self._fast else kinds.PlainLinear(weight)
