"""A checkpoint's tensors by name, memory-mapped: safetensors, and the GGUF blocks behind them."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

from sglang_lite.errors import ModelNotFound, UnsupportedModel
from sglang_lite.runtime.gguf import GGUF, Tensor, nibbles
from sglang_lite.runtime.gguf_convert import row_order, weight_name
from sglang_lite.runtime.models.config import ModelConfig
from sglang_lite.runtime.models.quantize import GROUP, Int4Weight

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
GGUF_FILE = "model.gguf"


class Weights:
    """Reads tensors of a model folder one at a time; nothing is loaded before it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        files = {name: safe_open(folder / name, framework="pt") for name in _weight_files(folder)}
        self._file_names = {key: name for name, file in files.items() for key in file.keys()}  # noqa: SIM118
        self._file_of = {key: files[name] for key, name in self._file_names.items()}
        self._unread = set(self._file_of)

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def get(self, name: str) -> torch.Tensor | None:
        """The tensor, a view of the mapped file in the file's dtype; None if there is none."""
        if name not in self._file_of:
            return None
        self._unread.discard(name)
        return self._file_of[name].get_tensor(name)

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self.get(name)
        if tensor is None:
            raise UnsupportedModel(f"the checkpoint in {str(self.folder)!r} has no weight {name!r}")
        return tensor

    def matrix(self, *names: str) -> torch.Tensor:
        """The matrices one above the other, ``[sum of rows, columns]``."""
        matrices = [self[name] for name in names]
        return torch.cat(matrices) if len(matrices) > 1 else matrices[0]

    def mapped_afresh(self, name: str) -> torch.Tensor:
        """The tensor in a mapping of its own: only pages that are used become resident.

        The mapping that a model was loaded from goes away with the last view of it.
        """
        file_name = self._file_names[name]
        return safe_open(self.folder / file_name, framework="pt").get_tensor(name)

    def skip(self, *names: str) -> None:
        """Count these as read: their numbers came from elsewhere."""
        self._unread.difference_update(names)

    def refuse_unread(self, ignored_suffixes: tuple[str, ...] = ()) -> None:
        """Refuse a checkpoint with weights that nobody asked for: they'd be silently missing."""
        unread = sorted(n for n in self._unread if not n.endswith(ignored_suffixes))
        if unread:
            raise UnsupportedModel(
                f"the checkpoint in {str(self.folder)!r} has {len(unread)} weights that this "
                f"architecture doesn't use, for example {unread[0]!r}"
            )


class NativeBlocks:
    """The quantised numbers of a folder that was converted from the GGUF file ``path``.

    The folder's bfloat16 weights are these numbers, rounded: running on them is no further loss.
    """

    def __init__(self, path: Path, config: ModelConfig) -> None:
        self._path, self._config = path, config

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        tensors = GGUF(self._path, vocabulary=False).tensors.values()
        return {weight_name(tensor.name): tensor for tensor in tensors}

    def int4(self, *names: str) -> Int4Weight | None:
        """The matrices one above the other, or None if one of them isn't kept in 4 bits."""
        tensors = [self._tensors.get(name) for name in names]
        parts = [self._read_int4(t) for t in tensors if t and t.format.name in ("Q4_0", "Q4_1")]
        if len(parts) < len(names):
            return None
        joined = [torch.from_numpy(np.concatenate(part)) for part in zip(*parts, strict=True)]
        return Int4Weight(*joined)

    def _read_int4(self, tensor: Tensor) -> list[np.ndarray]:
        rows, columns = tensor.shape
        numbers = 2 if tensor.format.name == "Q4_1" else 1
        quants = nibbles(tensor.blocks[:, 2 * numbers :]).reshape(rows, columns)
        halves = _halves(tensor, numbers)
        scales, low = halves[:, 0], halves[:, 1] if numbers == 2 else -8 * halves[:, 0]
        grouped = [x.reshape(rows, columns // GROUP) for x in (scales, low)]
        return [self._in_order(tensor, x) for x in (quants, *grouped)]

    def _in_order(self, tensor: Tensor, rows: np.ndarray) -> np.ndarray:
        order = row_order(tensor.name, self._config.raw)
        return np.array(rows) if order is None else rows[order]


def _halves(tensor: Tensor, count: int) -> np.ndarray:
    """The float16 numbers at the start of each block, as float32 ``[blocks, count]``."""
    raw = np.ascontiguousarray(tensor.blocks[:, : 2 * count])
    return raw.view("<f2").astype(np.float32)


def _weight_files(folder: Path) -> list[str]:
    index = folder / INDEX_FILE
    if index.is_file():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    else:
        names = [SINGLE_FILE]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelNotFound(
            f"no weights at {str(folder)!r}: looked for {INDEX_FILE} and {', '.join(missing)}"
        )
    return names
