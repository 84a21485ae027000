"""A checkpoint's tensors by name, memory-mapped from safetensors files."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open

from sglang_lite.errors import ModelNotFound, UnsupportedModel

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class Weights:
    """Reads tensors of a model folder one at a time; nothing is loaded before it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = {
            name: safe_open(folder / name, framework="pt") for name in _weight_files(folder)
        }
        self._file_of = {key: file for file in self._files.values() for key in file.keys()}  # noqa: SIM118
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

    def refuse_unread(self, ignored_suffixes: tuple[str, ...] = ()) -> None:
        """Refuse a checkpoint with weights that nobody asked for: they'd be silently missing."""
        unread = sorted(n for n in self._unread if not n.endswith(ignored_suffixes))
        if unread:
            raise UnsupportedModel(
                f"the checkpoint in {str(self.folder)!r} has {len(unread)} weights that this "
                f"architecture doesn't use, for example {unread[0]!r}"
            )


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
