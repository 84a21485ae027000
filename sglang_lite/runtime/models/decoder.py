"""The Llama family in one fused decoder: Llama, SmolLM2/3, Mistral, Qwen2, Qwen3.

They differ in flags only: biases, normalised queries and keys, a sliding window or no positions in
some layers, tied embeddings.  Queries, keys and values are one matrix here, gate and up another;
all tokens of a step are rows of one matrix, and attention reads the KV pool through the step's
plan.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from sglang_lite.errors import UnsupportedModel
from sglang_lite.runtime.attention.cpu import TorchAttention
from sglang_lite.runtime.attention.plan import AttentionBackend
from sglang_lite.runtime.batch import Batch
from sglang_lite.runtime.kv_cache import KVCache
from sglang_lite.runtime.models.config import ModelConfig
from sglang_lite.runtime.models.kernels import LinearFactory
from sglang_lite.runtime.models.layer_ops import TorchOps, layer_ops
from sglang_lite.runtime.models.layers import Cache, LayerWeights, Step, layer_runner, mirrored
from sglang_lite.runtime.models.linear import LayerLinear
from sglang_lite.runtime.models.norm import RMSNorm
from sglang_lite.runtime.models.rope import rope_tables
from sglang_lite.runtime.models.weights import Weights

FUSED_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3", "smollm3"})


@dataclass(frozen=True)
class Layer:
    """One decoder layer's weights; ``qk_norm [heads + kv_heads, head_dim]`` or None."""

    input_norm: RMSNorm
    qkv: LayerLinear
    qk_norm: torch.Tensor | None
    output: LayerLinear
    mlp_norm: RMSNorm
    gate_up: LayerLinear
    down: LayerLinear
    window: int | None
    rotary: bool


class FusedDecoder:
    """A :class:`~sglang_lite.runtime.models.base.Model` of the Llama family.

    Weights come in the checkpoint's dtype and are used as ``dtype`` on ``device``; ``linears``
    chooses the kernels of the matrices.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        attention: AttentionBackend,
        linears: LinearFactory,
        *,
        dtype: torch.dtype,
        device: torch.device,
        kv_slots: int,
    ) -> None:
        self.config, self.dtype, self.device = config, dtype, device
        self.attention = attention
        self.scale = config.head_dim**-0.5
        self.eps = float(config.raw["rms_norm_eps"])
        if config.raw.get("hidden_act", "silu") != "silu":
            raise UnsupportedModel(f"activation {config.raw['hidden_act']!r} (supported: 'silu')")
        self.ops = layer_ops(device, config.num_heads, config.num_kv_heads, self.eps)
        # No sequence is longer than the pool, so no longer table of positions is needed.
        self.positions = min(config.context_length, kv_slots)
        self.cos, self.sin = (
            table.to(device)
            for table in rope_tables(config.raw, config.head_dim, self.positions, dtype)
        )
        self.kv_cache = KVCache(
            [(config.num_kv_heads, config.head_dim)] * config.num_layers, kv_slots, dtype, device
        )
        layers = (self.kv_cache.layers, self.kv_cache.keys, self.kv_cache.values)
        self._caches = [Cache(*parts) for parts in zip(*layers, strict=True)]
        self._load(weights, linears)

    def _load(self, weights: Weights, linears: LinearFactory) -> None:
        def tensor(name: str) -> torch.Tensor:
            # A copy: a view would keep the whole mapped file in memory.
            return weights[name].to(self.device, self.dtype, copy=True)

        def norm(name: str) -> RMSNorm:
            return RMSNorm(tensor(name), self.eps)

        embedding = weights.mapped_afresh("model.embed_tokens.weight")
        weights.skip("model.embed_tokens.weight")
        self.embedding = embedding.to(self.device, self.dtype)
        self.final_norm = norm("model.norm.weight")
        tied = self.config.raw.get("tie_word_embeddings", False) or "lm_head.weight" not in weights
        weights.skip("lm_head.weight")
        rotary = self.config.raw.get("no_rope_layers") or [1] * self.config.num_layers
        self.layers = []
        for i in range(self.config.num_layers):
            name = f"model.layers.{i}."
            self.layers.append(
                Layer(
                    input_norm=norm(f"{name}input_layernorm.weight"),
                    qkv=linears.layer(f"{name}self_attn.", "q_proj", "k_proj", "v_proj"),
                    qk_norm=self._qk_norm(weights, f"{name}self_attn."),
                    output=linears.layer(f"{name}self_attn.", "o_proj"),
                    mlp_norm=norm(f"{name}post_attention_layernorm.weight"),
                    gate_up=linears.layer(f"{name}mlp.", "gate_proj", "up_proj"),
                    down=linears.layer(f"{name}mlp.", "down_proj"),
                    window=self.config.windows[i],
                    rotary=bool(rotary[i]),
                )
            )
        # What a norm puts out has at most the size of its weight times the root of their number.
        limit = float(self.final_norm.weight.abs().max()) * embedding.shape[1] ** 0.5
        self.head = linears.head("model.embed_tokens.weight" if tied else "lm_head.weight", limit)
        self._windows = sorted({layer.window for layer in self.layers}, key=str)
        linears.finish()
        weights.refuse_unread(ignored_suffixes=("rotary_emb.inv_freq",))

    def _qk_norm(self, weights: Weights, prefix: str) -> torch.Tensor | None:
        query, key = weights.get(f"{prefix}q_norm.weight"), weights.get(f"{prefix}k_norm.weight")
        if query is None or key is None:
            return None
        heads = [query.expand(self.config.num_heads, -1), key.expand(self.config.num_kv_heads, -1)]
        return torch.cat(heads).to(self.device, self.dtype)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor:
        """See :class:`~sglang_lite.runtime.models.base.Model`."""
        x = F.embedding(batch.input_ids, self.embedding)
        cos, sin = self.cos[batch.positions], self.sin[batch.positions]
        if isinstance(self.attention, TorchAttention) and isinstance(self.ops, TorchOps):
            return self._as_script(x, cos, sin, batch)
        stream = self.ops.stream(x)
        for index, layer in enumerate(self.layers):
            stream.add(self._attend(index, layer, stream.normed(layer.input_norm), cos, sin, batch))
            gated = self.ops.gated(layer.gate_up(stream.normed(layer.mlp_norm)))
            stream.add(layer.down(gated))
        return stream.normed(self.final_norm)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See :class:`~sglang_lite.runtime.models.base.Model`."""
        return self.head(hidden).float()

    def _as_script(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, batch: Batch
    ) -> torch.Tensor:
        plans = [batch.plan(self.attention, window) for window in self._windows]
        step = Step(cos, sin, batch.write_slots, [p.calls for p in plans], [p.parts for p in plans])
        norm = self._norm_weight(self.final_norm)
        run, weights = layer_runner(), self._weights(len(x))
        args = (self._caches, step, self.config.num_heads, self.eps, self.scale)
        with torch.jit.optimized_execution(False):
            return run(x, weights, norm, *args)

    def _weights(self, rows: int) -> list[LayerWeights]:
        return [
            LayerWeights(
                self._norm_weight(layer.input_norm),
                layer.qkv.matrix(rows),
                layer.qk_norm,
                layer.output.matrix(rows),
                self._norm_weight(layer.mlp_norm),
                layer.gate_up.matrix(rows),
                layer.down.matrix(rows),
                layer.rotary,
                self._windows.index(layer.window),
            )
            for layer in self.layers
        ]

    def _norm_weight(self, norm: RMSNorm) -> torch.Tensor:
        return norm.doubled if mirrored(norm.weight) else norm.weight

    def _attend(
        self,
        index: int,
        layer: Layer,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        batch: Batch,
    ) -> torch.Tensor:
        heads, kv_heads, dim = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        tokens = x.shape[0]
        qkv = layer.qkv(x).view(tokens, heads + 2 * kv_heads, dim)
        query, key, value = self.ops.turn_and_store(
            qkv,
            layer.qk_norm,
            (cos, sin) if layer.rotary else None,
            self.kv_cache,
            index,
            batch.write_slots,
        )
        attended = self.attention.attend(
            query,
            key,
            value,
            self.kv_cache.keys[index],
            self.kv_cache.values[index],
            batch.plan(self.attention, layer.window),
            scale=self.scale,
        )
        return layer.output(attended.view(tokens, heads * dim))
