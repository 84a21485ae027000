"""Writes small GGUF files for tests, by the format's specification."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    kind, encode = (
        (8, _string) if isinstance(value[0], str) else (5, lambda v: struct.pack("<i", v))
    )
    return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(encode(v) for v in value)


def write_gguf(
    path: Path,
    metadata: dict[str, Any],
    tensors: dict[str, tuple[int, tuple[int, ...], bytes]],
) -> Path:
    """``tensors``: name to (type number, shape in C order, raw bytes)."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        out += _string(key) + _value(value)
    offset = 0
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        out += _string(name) + struct.pack("<I", len(shape))
        out += b"".join(struct.pack("<Q", n) for n in reversed(shape))
        out += struct.pack("<IQ", kind, offset)
        data += raw + b"\0" * (-len(raw) % 32)
        offset = len(data)
    path.write_bytes(out + b"\0" * (-len(out) % 32) + data)
    return path


def random_blocks(rng: np.random.Generator, kind: int, shape: tuple[int, ...]) -> bytes:
    """Random but harmless bytes of a tensor: scales are ordinary numbers."""
    values, size, halves = {
        0: (1, 4, ()),
        2: (32, 18, (0,)),
        3: (32, 20, (0, 2)),
        8: (32, 34, (0,)),
        12: (256, 144, (0, 2)),
        14: (256, 210, (208,)),
    }[kind]
    if kind == 0:
        return (1 + 0.1 * rng.standard_normal(shape)).astype("<f4").tobytes()
    count = int(np.prod(shape)) // values
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in halves:
        scales = (0.01 + 0.02 * rng.random(count)).astype("<f2")
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(count, 2)
    return blocks.tobytes()


def tiny_llama_gguf(path: Path, seed: int = 0, arch: str = "llama") -> Path:
    """A tiny random Llama as Q4_1 with a Q8_0 embedding and a byte-level vocabulary."""
    from tokenizers import pre_tokenizers

    rng = np.random.default_rng(seed)
    hidden, inner, heads, kv_heads, dim, layers = 64, 96, 4, 2, 16, 2
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "<|end|>"]
    metadata = {
        "general.architecture": arch,
        f"{arch}.block_count": layers,
        f"{arch}.context_length": 256,
        f"{arch}.embedding_length": hidden,
        f"{arch}.feed_forward_length": inner,
        f"{arch}.attention.head_count": heads,
        f"{arch}.attention.head_count_kv": kv_heads,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 1) + [3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
    }
    shapes = {"token_embd": (8, (len(tokens), hidden)), "output_norm": (0, (hidden,))}
    for i in range(layers):
        shapes |= {
            f"blk.{i}.attn_norm": (0, (hidden,)),
            f"blk.{i}.ffn_norm": (0, (hidden,)),
            f"blk.{i}.attn_q": (3, (heads * dim, hidden)),
            f"blk.{i}.attn_k": (3, (kv_heads * dim, hidden)),
            f"blk.{i}.attn_v": (3, (kv_heads * dim, hidden)),
            f"blk.{i}.attn_output": (3, (hidden, heads * dim)),
            f"blk.{i}.ffn_gate": (3, (inner, hidden)),
            f"blk.{i}.ffn_up": (3, (inner, hidden)),
            f"blk.{i}.ffn_down": (3, (hidden, inner)),
        }
    tensors = {
        f"{name}.weight": (kind, shape, random_blocks(rng, kind, shape))
        for name, (kind, shape) in shapes.items()
    }
    return write_gguf(path, metadata, tensors)
