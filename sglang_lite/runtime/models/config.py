"""What the runtime needs to know about a model before its weights are read."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_lite.errors import ModelNotFound, UnsupportedModel


@dataclass(frozen=True)
class ModelConfig:
    """Shape and limits of a causal language model, read from a Hugging Face folder.

    ``windows`` has one entry per layer: a token attends to so many keys including itself, or None
    for all.  ``eos_token_ids`` are the ids that end a generation.  ``raw`` is `config.json`.
    """

    model_type: str
    vocab_size: int
    context_length: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    torch_dtype: str | None
    raw: dict[str, Any] = field(repr=False)

    @classmethod
    def from_folder(cls, path: str | Path) -> ModelConfig:
        """Read ``config.json`` and, if present, ``generation_config.json`` of a model folder."""
        folder = Path(path)
        raw = _read_json(folder / "config.json")
        if raw is None:
            raise ModelNotFound(f"no model at {str(folder)!r}: {folder / 'config.json'} is missing")
        generation = _read_json(folder / "generation_config.json") or {}
        return cls.from_dict(raw, generation)

    @classmethod
    def from_dict(
        cls, raw: dict[str, Any], generation: dict[str, Any] | None = None
    ) -> ModelConfig:
        """Read the fields from ``config.json``'s content; families differ in some names."""
        generation = generation or {}
        text = {**raw, **raw.get("text_config", {})}
        layers = _first(text, "num_hidden_layers", "n_layer", "num_layers")
        heads = _first(text, "num_attention_heads", "n_head")
        hidden = _first(text, "hidden_size", "n_embd", "d_model")
        eos = _ids(generation.get("eos_token_id")) or _ids(text.get("eos_token_id"))
        return cls(
            model_type=text.get("model_type", ""),
            vocab_size=_first(text, "vocab_size"),
            context_length=_first(text, "max_position_embeddings", "n_positions", "n_ctx"),
            hidden_size=hidden,
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=text.get("num_key_value_heads") or heads,
            head_dim=text.get("head_dim") or hidden // heads,
            windows=_windows(text, layers),
            eos_token_ids=eos,
            bos_token_id=text.get("bos_token_id"),
            torch_dtype=text.get("dtype") or text.get("torch_dtype"),
            raw=raw,
        )

    def kv_bytes_per_token(self, element_size: int) -> int:
        """Size of one token's keys and values, in bytes, with elements of this size."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_size


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelNotFound(f"{path} cannot be read as JSON: {error}") from error


def _first(text: dict[str, Any], *names: str) -> int:
    for name in names:
        if text.get(name) is not None:
            return int(text[name])
    kind = text.get("model_type", "unknown")
    raise UnsupportedModel(f"model type {kind!r}: config.json has none of {', '.join(names)}")


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)


def _windows(text: dict[str, Any], layers: int) -> tuple[int | None, ...]:
    window = text.get("sliding_window")
    if not window or text.get("use_sliding_window") is False:
        return (None,) * layers
    kinds = text.get("layer_types")
    if kinds is None:
        first = text.get("max_window_layers", 0) if "use_sliding_window" in text else 0
        kinds = ["full_attention" if i < first else "sliding_attention" for i in range(layers)]
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)
