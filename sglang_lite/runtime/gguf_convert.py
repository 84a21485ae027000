"""From a GGUF file to a Hugging Face folder that every loader opens fast."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from sglang_lite.errors import UnsupportedModel
from sglang_lite.runtime.gguf import GGUF, Tensor

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OTHER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

_SPLIT_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLIT_QWEN2 = _SPLIT_LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_CONTROL, _USER_DEFINED = 3, 4


def convert_gguf(source: Path, folder: Path, keep_source: bool = True) -> None:
    """Write config, tokenizer and bfloat16 weights of ``source`` into the existing ``folder``.

    ``keep_source`` copies the file to ``model.gguf`` there: its 4-bit blocks are what the int4
    kernels run best.  Raises :class:`UnsupportedModel` for what cannot be converted exactly.
    """
    gguf = GGUF(source)
    config = model_config(gguf)
    _write_json(folder / "config.json", config)
    ids = {name: config[f"{name}_token_id"] for name in ("bos", "eos", "pad")}
    generation = {f"{name}_token_id": i for name, i in ids.items() if i is not None}
    _write_json(folder / "generation_config.json", generation)
    write_tokenizer(gguf, folder)
    _write_weights(gguf, config, folder / "model.safetensors")
    if keep_source:
        shutil.copyfile(source, folder / "model.gguf")


def model_config(gguf: GGUF) -> dict[str, Any]:
    """`config.json` for the file's metadata."""
    arch = gguf.metadata.get("general.architecture")
    if arch not in _ARCHITECTURES:
        supported = ", ".join(_ARCHITECTURES)
        raise UnsupportedModel(f"GGUF architecture {arch!r} (supported: {supported})")
    if "rope_freqs.weight" in gguf.tensors or f"{arch}.rope.scaling.type" in gguf.metadata:
        raise UnsupportedModel(f"{gguf.path}: GGUF files with scaled RoPE are not supported")

    def value(key: str, default: Any = None) -> Any:
        found = gguf.metadata.get(f"{arch}.{key}", default)
        if found is None:
            raise UnsupportedModel(f"{gguf.path} has no metadata {arch}.{key}")
        return found

    heads = value("attention.head_count")
    token = {k: gguf.metadata.get(f"tokenizer.ggml.{k}_token_id") for k in ("bos", "eos", "pad")}
    token["pad"] = gguf.metadata.get("tokenizer.ggml.padding_token_id", token["pad"])
    return {
        "architectures": [_ARCHITECTURES[arch]],
        "model_type": arch,
        "vocab_size": gguf.tensors["token_embd.weight"].shape[0],
        "hidden_size": value("embedding_length"),
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("attention.head_count_kv", heads),
        "head_dim": value("attention.key_length", value("embedding_length") // heads),
        "max_position_embeddings": value("context_length"),
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon"),
        "rope_theta": value("rope.freq_base", 10000.0),
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "attention_bias": "blk.0.attn_q.bias" in gguf.tensors,
        **{f"{name}_token_id": i for name, i in token.items()},
        "dtype": "bfloat16",
    }


def weight_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor of the Llama family."""
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    block, layer, kind, suffix = ([*name.split("."), "", "", ""])[:4]
    if block != "blk" or kind not in _LAYER_NAMES:
        raise UnsupportedModel(f"GGUF tensor {name!r} has no place in the Llama family")
    return f"model.layers.{layer}.{_LAYER_NAMES[kind]}.{suffix}"


def row_order(name: str, config: dict[str, Any]) -> np.ndarray | None:
    """Which GGUF row is each Hugging Face row of a tensor; None = the same order.

    llama.cpp stores the query and key rows of Llama files pair by pair, for its interleaved RoPE.
    """
    kind = name.split(".")[2] if name.startswith("blk.") else ""
    if config["model_type"] != "llama" or kind not in ("attn_q", "attn_k"):
        return None
    heads = config["num_attention_heads" if kind == "attn_q" else "num_key_value_heads"]
    rows = np.arange(heads * config["head_dim"]).reshape(heads, config["head_dim"] // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)


def _write_weights(gguf: GGUF, config: dict[str, Any], path: Path) -> None:
    """Write a safetensors file tensor by tensor, so that memory holds only one at a time."""
    tensors = {weight_name(t.name): t for t in gguf.tensors.values()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + 2 * int(np.prod(tensor.shape))
        header[name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for chunk in tqdm(_bfloat16(tensors, config), "converting", len(tensors), unit="tensor"):
            file.write(chunk)


def _bfloat16(tensors: dict[str, Tensor], config: dict[str, Any]) -> Iterator[memoryview]:
    for tensor in tensors.values():
        values = tensor.dequantise()
        order = row_order(tensor.name, config)
        values = np.ascontiguousarray(values if order is None else values[order])
        yield torch.from_numpy(values).bfloat16().view(torch.int16).numpy().data


def write_tokenizer(gguf: GGUF, folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` of a byte-level BPE vocabulary."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
    from tokenizers import pre_tokenizers as pre

    data = {
        key.removeprefix("tokenizer.ggml."): value
        for key, value in gguf.metadata.items()
        if key.startswith("tokenizer.ggml.")
    }
    if data.get("model") != "gpt2":
        raise UnsupportedModel(
            f"GGUF tokenizer kind {data.get('model')!r} (supported: 'gpt2', a byte-level BPE)"
        )
    byte_level = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    splitters: dict[str, list[Any]] = {
        "smollm": [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)],
        "gpt-2": [pre.ByteLevel(add_prefix_space=False)],
        "default": [pre.ByteLevel(add_prefix_space=False)],
        "qwen2": [pre.Split(Regex(_SPLIT_QWEN2), "isolated"), byte_level],
        "llama-bpe": [pre.Split(Regex(_SPLIT_LLAMA3), "isolated"), byte_level],
    }
    kind = data.get("pre", "default")
    if kind not in splitters:
        raise UnsupportedModel(f"GGUF pre-tokenizer {kind!r} (supported: {', '.join(splitters)})")
    tokens = data["tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in data["merges"]]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    bpe = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=kind == "llama-bpe")
    tokenizer = Tokenizer(bpe)
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre.Sequence(splitters[kind])
    tokenizer.decoder = decoders.ByteLevel()
    added = [(t, k) for t, k in zip(tokens, data["token_type"], strict=True)]
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t, k in added if k == _CONTROL])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, k in added if k == _USER_DEFINED])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {name: data.get(f"{key}_token_id") for name, key in names.items()}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bool(data.get("add_bos_token", False)),
        **{f"{name}_token": tokens[i] for name, i in ids.items() if i is not None},
    }
    template = gguf.metadata.get("tokenizer.chat_template")
    if template is not None:
        config["chat_template"] = template
    _write_json(folder / "tokenizer_config.json", config)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
