"""A checkpoint's tensors by name, memory-mapped from safetensors files (and its 4-bit twin)."""

from __future__ import annotations

import json
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


class NativeInt4:
    """The 4-bit numbers of a folder that was converted from a GGUF file and keeps it.

    The folder's bfloat16 weights are these numbers, rounded: running on them is no further loss.
    """

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        self._config = config
        path = folder / GGUF_FILE
        self._gguf = GGUF(path) if path.is_file() else None
        self._tensors = {
            weight_name(tensor.name): tensor
            for tensor in (self._gguf.tensors.values() if self._gguf else ())
            if tensor.format.name in ("Q4_0", "Q4_1")
        }

    def matrix(self, *names: str) -> Int4Weight | None:
        """The matrices one above the other, or None if one of them isn't kept in 4 bits."""
        if not all(name in self._tensors for name in names):
            return None
        parts = [self._read(self._tensors[name]) for name in names]
        return Int4Weight(
            *(torch.from_numpy(np.concatenate(part)) for part in zip(*parts, strict=True))
        )

    def _read(self, tensor: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows, columns = tensor.shape
        header = 4 if tensor.format.name == "Q4_1" else 2
        quants = nibbles(tensor.blocks[:, header:]).reshape(rows, columns)
        halves = np.ascontiguousarray(tensor.blocks[:, :header]).view("<f2").astype(np.float32)
        scales = halves[:, 0].reshape(rows, columns // GROUP)
        low = halves[:, 1] if header == 4 else -8 * halves[:, 0]
        minimums = low.reshape(rows, columns // GROUP)
        order = row_order(tensor.name, self._config.raw)
        if order is None:
            return quants, scales, minimums
        return quants[order], scales[order], minimums[order]


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
