"""A reader of GGUF files: metadata, and tensors dequantised with vectorised numpy.

The layouts are those of the GGUF and ggml specifications.  Numbers are little-endian; a quantised
tensor is a sequence of blocks along its last dimension.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sglang_lite.errors import ModelNotFound, UnsupportedModel

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class BlockFormat:
    """A tensor type: ``size`` bytes hold ``values`` numbers; ``decode`` turns blocks to float32.

    ``decode``: uint8[blocks, size] -> float32[blocks, values].
    """

    name: str
    values: int
    size: int
    decode: Callable[[np.ndarray], np.ndarray]


def _halves(blocks: np.ndarray, start: int, count: int = 1) -> np.ndarray:
    """``count`` float16 numbers at byte ``start`` of each block, as float32 ``[blocks, count]``."""
    raw = np.ascontiguousarray(blocks[:, start : start + 2 * count])
    return raw.view("<f2").astype(np.float32)


def nibbles(packed: np.ndarray) -> np.ndarray:
    """4-bit numbers ``[..., 2n]`` of bytes ``[..., n]``: all low halves, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _decode_q4_0(blocks: np.ndarray) -> np.ndarray:
    return (nibbles(blocks[:, 2:]).astype(np.float32) - 8) * _halves(blocks, 0)


def _decode_q4_1(blocks: np.ndarray) -> np.ndarray:
    return nibbles(blocks[:, 4:]).astype(np.float32) * _halves(blocks, 0) + _halves(blocks, 2)


def _decode_q8_0(blocks: np.ndarray) -> np.ndarray:
    return blocks[:, 2:].view(np.int8).astype(np.float32) * _halves(blocks, 0)


def _decode_q4_k(blocks: np.ndarray) -> np.ndarray:
    """256 numbers in 8 groups of 32, each with a 6-bit scale and minimum."""
    count = len(blocks)
    scale, minimum = _halves(blocks, 0), _halves(blocks, 2)
    packed = blocks[:, 4:16].astype(np.uint8)
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6) << 4], axis=1)
    minimums = np.concatenate([middle & 63, (high >> 4) | (middle >> 6) << 4], axis=1)
    values = nibbles(blocks[:, 16:].reshape(count, 4, 32)).reshape(count, 8, 32)
    factors = (scale * scales)[..., None]
    return (values * factors - (minimum * minimums)[..., None]).reshape(count, 256)


def _decode_q6_k(blocks: np.ndarray) -> np.ndarray:
    """256 numbers of 6 bits in 16 groups of 16, each with an 8-bit scale."""
    count = len(blocks)
    low = blocks[:, :128].reshape(count, 2, 64)
    high = blocks[:, 128:192].reshape(count, 2, 1, 32)
    lows = np.stack([low & 15, low >> 4], axis=2).reshape(count, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
    values = (lows | ((high >> shifts) & 3) << 4).astype(np.float32) - 32
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32) * _halves(blocks, 208)
    return (values.reshape(count, 16, 16) * scales[..., None]).reshape(count, 256)


FORMATS = {
    0: BlockFormat("F32", 1, 4, lambda b: b.view("<f4").copy()),
    1: BlockFormat("F16", 1, 2, lambda b: b.view("<f2").astype(np.float32)),
    2: BlockFormat("Q4_0", 32, 18, _decode_q4_0),
    3: BlockFormat("Q4_1", 32, 20, _decode_q4_1),
    8: BlockFormat("Q8_0", 32, 34, _decode_q8_0),
    12: BlockFormat("Q4_K", 256, 144, _decode_q4_k),
    14: BlockFormat("Q6_K", 256, 210, _decode_q6_k),
    30: BlockFormat(
        "BF16", 1, 2, lambda b: (b.view("<u2").astype(np.uint32) << 16).view(np.float32)
    ),
}


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file; ``shape`` in C order, ``blocks`` a mapped view of its bytes."""

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    blocks: np.ndarray

    def dequantise(self) -> np.ndarray:
        """The tensor as float32."""
        return self.format.decode(self.blocks).reshape(self.shape)


class GGUF:
    """An opened GGUF file: ``metadata`` by key, ``tensors`` by name; the data is memory-mapped.

    ``vocabulary=False`` leaves lists of strings empty: a vocabulary's hundred thousand take longer
    to read than all the rest.
    """

    def __init__(self, path: str | Path, vocabulary: bool = True) -> None:
        self.path, self._vocabulary = Path(path), vocabulary
        try:
            with self.path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelNotFound(f"{self.path} cannot be read: {error}") from error
        self._at = 0
        try:
            self._read()
        except (struct.error, ValueError, OverflowError) as error:
            if isinstance(error, UnsupportedModel):
                raise
            raise UnsupportedModel(f"{self.path} is damaged or cut off: {error}") from error

    def _read(self) -> None:
        if self._data[:4] != b"GGUF":
            raise UnsupportedModel(f"{self.path} is not a GGUF file")
        self._at = 4
        version = self._number("I")
        if version not in (2, 3):
            raise UnsupportedModel(f"{self.path}: GGUF version {version} (supported: 2 and 3)")
        tensors, entries = self._number("Q"), self._number("Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(entries):
            (key,) = self._strings(1)
            self.metadata[key] = self._value(self._number("I"))
        headers = [self._tensor_header() for _ in range(tensors)]
        alignment = int(self.metadata.get("general.alignment", 32))
        start = math.ceil(self._at / alignment) * alignment
        self.tensors = {
            name: self._tensor(name, shape, kind, start + offset)
            for name, shape, kind, offset in headers
        }

    def _numbers(self, code: str, count: int) -> tuple[Any, ...]:
        layout = f"<{count}{code}"
        values = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return values

    def _number(self, code: str) -> Any:
        return self._numbers(code, 1)[0]

    def _strings(self, count: int) -> list[str]:
        """The next strings; a vocabulary has so many that this loop is worth being plain."""
        data, at, read_length = self._data, self._at, struct.Struct("<Q").unpack_from
        strings = []
        for _ in range(count):
            start = at + 8
            at = start + read_length(data, at)[0]
            strings.append(data[start:at].decode("utf-8", "replace"))
        if at > len(data):
            raise ValueError("a string reaches past the end")
        self._at = at
        return strings

    def _skip_strings(self, count: int) -> list[str]:
        data, at, read_length = self._data, self._at, struct.Struct("<Q").unpack_from
        for _ in range(count):
            at += 8 + read_length(data, at)[0]
        self._at = at
        return []

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._strings(1)[0]
        if kind == _ARRAY:
            kind, count = self._number("I"), self._number("Q")
            if kind == _STRING:
                return self._strings(count) if self._vocabulary else self._skip_strings(count)
            if kind in _SCALARS:
                return list(self._numbers(_SCALARS[kind], count))
            return [self._value(kind) for _ in range(count)]
        if kind not in _SCALARS:
            raise ValueError(f"unknown value type {kind}")
        return self._number(_SCALARS[kind])

    def _tensor_header(self) -> tuple[str, tuple[int, ...], int, int]:
        (name,) = self._strings(1)
        dims = self._numbers("Q", self._number("I"))
        kind, offset = self._number("I"), self._number("Q")
        return name, tuple(reversed(dims)), kind, offset

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, first: int) -> Tensor:
        if kind not in FORMATS:
            supported = ", ".join(f.name for f in FORMATS.values())
            raise UnsupportedModel(f"tensor {name!r} has type {kind} (supported: {supported})")
        form = FORMATS[kind]
        if shape[-1] % form.values:
            raise ValueError(f"tensor {name!r}: {shape} is not a multiple of {form.values}")
        count = math.prod(shape) // form.values
        if first + count * form.size > len(self._data):
            raise ValueError(f"tensor {name!r} reaches past the end")
        raw = np.frombuffer(self._data, np.uint8, count * form.size, first)
        return Tensor(name, shape, form, raw.reshape(count, form.size))
