"""Which kernel runs a model's matrices, by dtype, device and quantization."""

from __future__ import annotations

import contextlib
import ctypes
import math
import weakref

import torch

from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime.models import linear as kinds
from sglang_lite.runtime.models.byte_linear import ByteLinear, byte_linear_works
from sglang_lite.runtime.models.config import ModelConfig
from sglang_lite.runtime.models.linear import LayerLinear, Linear
from sglang_lite.runtime.models.packed import PackedWeights
from sglang_lite.runtime.models.quantize import GROUP, quantise_int4, quantise_int8
from sglang_lite.runtime.models.weights import GGUF_FILE, NativeBlocks, Weights

QUANTIZATIONS = ("int4", "int8")
_BYTES_MEASURED = 100_000_000
"""More bfloat16 weights than a CPU caches."""


class LinearFactory:
    """Makes the linear layers of one model.

    * ``quantization=None``: the checkpoint's numbers.  In bfloat16 on a CPU a folder that keeps
      4-bit originals runs on them where that is faster: for few rows, how many is measured.
    * ``"int4"``, ``"int8"``: one copy of each matrix in at most so many bits, the smallest memory.
      Originals of 4 bits are kept as they are; the output head stays at 8 bits, because 4 there
      cost visible quality.
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
        gguf = weights.folder / GGUF_FILE
        self._native = NativeBlocks(gguf, config) if self._fast and gguf.is_file() else None
        self._packed = PackedWeights(gguf) if self._native is not None else None
        # The layers hold this factory until their twins are made; it must not hold them.
        self._dense_twins: list[tuple[weakref.ref[kinds.SwitchedLinear], list[str]]] = []

    def layer(self, prefix: str, *names: str) -> LayerLinear:
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

    def head(self, name: str, limit: float) -> Linear:
        """The output head: hidden states, of numbers up to ``limit`` in size, to logits.

        It comes after the layers: it is kept in bytes if they are kept in less.
        """
        if self._quantization is None and not self._dense_twins:
            return self._dense([name])
        if byte_linear_works():
            return ByteLinear(self._weights.matrix(name), limit)
        return self._dense([name]) if self._quantization is None else self._int8([name])

    def finish(self) -> None:
        """After the last matrix: keep what took long to make."""
        if self._packed is not None:
            self._packed.save()

    def _layer(self, names: list[str]) -> LayerLinear:
        native = self._native_kernel(names)
        if self._quantization is not None:
            if native is not None:
                self._weights.skip(*names)
                return native
            return self._int8(names) if self._quantization == "int8" else self._int4(names)
        if native is None:
            return self._dense(names)
        matrices = [self._weights[name] for name in names]
        shape = (sum(len(matrix) for matrix in matrices), matrices[0].shape[1])
        layer = kinds.SwitchedLinear(native, shape, self._make_dense)
        self._dense_twins.append((weakref.ref(layer), names))
        return layer

    def _native_kernel(self, names: list[str]) -> kinds.Int4Linear | None:
        if self._native is None or self._packed is None:
            return None
        native = self._native
        return self._packed.kernel(f"4 bits of {' '.join(names)}", lambda: native.int4(*names))

    def _make_dense(self) -> None:
        """Make the dense kernels beside the 4-bit ones, and measure from how many rows they win.

        That takes as long as the rest of the load, so it waits for the first prompt that has more
        than a few tokens.
        """
        twins = [(layer, names) for ref, names in self._dense_twins if (layer := ref()) is not None]
        for layer, names in twins:
            layer.many = self._dense(names)
        largest = max((layer.shape for layer, _ in twins), key=math.prod)
        sample = [layer for layer, _ in twins if layer.shape == largest]
        count = _BYTES_MEASURED // (2 * math.prod(largest)) + 1
        few_rows = kinds.measure_crossover(sample[:count])
        for layer, _ in twins:
            layer.release(few_rows)
        self._dense_twins.clear()
        give_back_freed_memory()

    def _int4(self, names: list[str]) -> LayerLinear:
        weight = self._weights.matrix(*names)
        if weight.shape[1] % GROUP:
            return self._dense(names)
        return kinds.int4_linear(quantise_int4(weight))

    def _int8(self, names: list[str]) -> LayerLinear:
        weight = self._weights.matrix(*names)
        if weight.shape[1] % GROUP:
            return self._dense(names)
        return kinds.int8_linear(quantise_int8(weight))

    def _dense(self, names: list[str]) -> LayerLinear:
        weight = self._weights.matrix(*names).to(self._device, self._dtype)
        return kinds.packed_linear(weight) if self._fast else kinds.PlainLinear(weight)


def give_back_freed_memory() -> None:
    """Return what repacking the weights left in the allocator: glibc keeps it, a sixth of all."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
