"""Tiny random models with a byte-level tokenizer, as Hugging Face folders; no network needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

END = "<|end|>"
START = "<|start|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|start|>' + message['role'] + '\n' + message['content'] + '<|end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)


def save_byte_tokenizer(folder: Path) -> int:
    """Write a tokenizer of the 256 bytes and two control tokens; returns the vocabulary size."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (END, START)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer.get_vocab_size()


def llama_config(**changes: Any) -> dict[str, Any]:
    """`config.json` of a tiny Llama with grouped heads (4 query heads, 2 KV heads)."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 258,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "eos_token_id": 256,
        "bos_token_id": None,
        "dtype": "float32",
    }
    return {**config, **changes}


def make_tiny_model(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Write a random tiny Llama (or Mistral, Qwen2, Qwen3 by ``model_type``) and its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    config = llama_config(**changes)
    (folder / "config.json").write_text(json.dumps(config))
    save_byte_tokenizer(folder)
    save_file(random_weights(config, seed), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def random_weights(config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """Weights large enough that logits differ clearly, so that greedy choices are not near ties."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 0.2) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * scale

    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    weights = {
        "model.embed_tokens.weight": normal(config["vocab_size"], hidden, scale=1.0),
        "model.norm.weight": 1 + normal(hidden),
    }
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = normal(config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name, rows, columns in (
            ("self_attn.q_proj", q, hidden),
            ("self_attn.k_proj", kv, hidden),
            ("self_attn.v_proj", kv, hidden),
            ("self_attn.o_proj", hidden, q),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            weights[f"{layer}{name}.weight"] = normal(rows, columns)
            if config["model_type"] == "qwen2" and name[-6:] in ("q_proj", "k_proj", "v_proj"):
                weights[f"{layer}{name}.bias"] = normal(rows)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{layer}{name}.weight"] = 1 + normal(hidden)
        if config["model_type"] == "qwen3":
            for name in ("q_norm", "k_norm"):
                weights[f"{layer}self_attn.{name}.weight"] = 1 + normal(dim)
    return weights
