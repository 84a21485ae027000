"""Any causal language model of transformers, on our KV slots and attention.

transformers lets a registered function stand in for a model's attention.  Ours ignores the
library's caches and masks: the step's whole flat batch is one sequence to the model, and the
function keeps the rows apart by the batch's plan.  Models that bypass the interface would attend
across rows without any error, so four guards refuse them at load.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F

from sglang_lite.errors import UnsupportedModel
from sglang_lite.runtime.attention.plan import AttentionBackend
from sglang_lite.runtime.batch import Batch, Row
from sglang_lite.runtime.device import on
from sglang_lite.runtime.kv_cache import KVCache
from sglang_lite.runtime.models.config import ModelConfig
from sglang_lite.runtime.models.linear import padded_rows

ATTENTION_NAME = "sglang_lite"
"""Our function's name among transformers' attention implementations."""

_LAYER_KINDS = frozenset({"full_attention", "sliding_attention"})
# Their frequencies depend on the largest position of the whole row, so on the batch.
_REFUSED_ROPE = frozenset({"dynamic", "longrope"})
_GUARD_TOKENS = (3, 1, 41, 59, 26, 53, 58, 97, 93, 23, 84, 62, 64, 33)


class _Layers(Protocol):
    """What an attention call does with its queries, keys and values."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        window: int | None,
        **options: Any,
    ) -> torch.Tensor: ...


@dataclass
class _Step:
    """One forward pass: who handles its attention, and how many calls there were."""

    layers: _Layers
    calls: int = 0


@dataclass
class _BatchLayers:
    """Attention of a batch over the KV cache."""

    batch: Batch
    attention: AttentionBackend
    kv_cache: KVCache

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        window: int | None,
        **options: Any,
    ) -> torch.Tensor:
        # Behind the batch's own rows there may be padding.
        rows = len(self.batch.input_ids)
        padding, query, key, value = len(query) - rows, query[:rows], key[:rows], value[:rows]
        self.kv_cache.write(layer, self.batch.write_slots, torch.cat([key, value], dim=1))
        keys, values = self.kv_cache.keys[layer], self.kv_cache.values[layer]
        plan = self.batch.plan(self.attention, window)
        out = self.attention.attend(query, key, value, keys, values, plan, **options)
        return F.pad(out, (0,) * (2 * out.dim() - 1) + (padding,)) if padding else out


@dataclass
class _ShapeProbe:
    """Learns ``(kv_heads, head_dim)`` of each layer in a dry run."""

    shapes: list[tuple[int, int]] = field(default_factory=list)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        window: int | None,
        **options: Any,
    ) -> torch.Tensor:
        if key.shape != value.shape:
            sizes = f"{key.shape[-1]} and {value.shape[-1]}"
            raise UnsupportedModel(f"keys and values have different sizes ({sizes})")
        self.shapes.append((key.shape[1], key.shape[2]))
        return torch.zeros_like(query)


class _DecoderOutput:
    """A decoder's output with hidden states; whatever else a model looks for is None."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self.last_hidden_state,)[index]


# Several models drop extra keyword arguments on the way to their attention, so the step travels
# beside the call.
_current_step: ContextVar[_Step] = ContextVar("sglang_lite_step")


class TransformersModel:
    """A :class:`~sglang_lite.runtime.models.base.Model` around a transformers causal LM.

    Raises :class:`UnsupportedModel` if the model can't be run exactly.
    """

    def __init__(
        self,
        folder: Path,
        config: ModelConfig,
        attention: AttentionBackend,
        *,
        dtype: torch.dtype,
        device: torch.device,
        kv_slots: int,
    ) -> None:
        self.config, self.dtype, self.device = config, dtype, device
        self.attention = attention
        self._model = _load(folder, dtype, device)
        self._base = getattr(self._model, self._model.base_model_prefix)
        self._kind = type(self._model).__name__
        with on(device):
            self._make_cache(kv_slots)

    def _make_cache(self, kv_slots: int) -> None:
        """Make the KV cache as a dry run shows it, and refuse what cannot be run exactly."""
        dtype, device = self.dtype, self.device
        shapes = self._probe_shapes()
        self.kv_cache = KVCache(shapes, max(kv_slots, len(_GUARD_TOKENS)), dtype, device)
        self._refuse_crosstalk()
        if kv_slots < len(_GUARD_TOKENS):
            self.kv_cache = KVCache(shapes, kv_slots, dtype, device)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor:
        """See :class:`~sglang_lite.runtime.models.base.Model`."""
        return self._run(batch, _BatchLayers(batch, self.attention, self.kv_cache))

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See :class:`~sglang_lite.runtime.models.base.Model`.

        The model's own code turns hidden states to logits, because some models scale or cap
        them; for this call its decoder is one that returns the given hidden states.
        """
        padded = F.pad(hidden, (0, 0, 0, self._padding(len(hidden))))
        given = _DecoderOutput(padded[None])
        self._base.forward = lambda *args, **kwargs: given
        try:
            ids = torch.zeros(1, len(padded), dtype=torch.int64, device=self.device)
            return self._model(input_ids=ids, use_cache=False).logits[0, : len(hidden)].float()
        finally:
            del self._base.forward

    def _run(self, batch: Batch, layers: _Layers) -> torch.Tensor:
        step = _Step(layers)
        token = _current_step.set(step)
        rows = len(batch.input_ids)
        padding = (0, self._padding(rows))
        try:
            output = self._base(
                input_ids=F.pad(batch.input_ids, padding)[None],
                position_ids=F.pad(batch.positions, padding)[None],
                use_cache=False,
            )
        finally:
            _current_step.reset(token)
        if step.calls != self.config.num_layers:
            raise UnsupportedModel(
                f"{self._kind}: {step.calls} attention calls in a forward pass of "
                f"{self.config.num_layers} layers; it goes round transformers' attention interface"
            )
        return output.last_hidden_state[0, :rows]

    def _padding(self, rows: int) -> int:
        """How many rows to add, so that oneDNN compiles and keeps kernels for few shapes only."""
        padded = self.device.type == "cpu" and self.dtype != torch.float32
        return padded_rows(rows) - rows if padded else 0

    @torch.inference_mode()
    def _probe_shapes(self) -> list[tuple[int, int]]:
        probe = _ShapeProbe()
        self._run(_batch([[0]], self.device), probe)
        return probe.shapes

    def _refuse_crosstalk(self) -> None:
        """Two sequences in one flat batch must give the same logits as each alone.

        Nothing else notices a model that attends over the whole row, or whose result depends on
        something else in it.
        """
        tokens = [token % self.config.vocab_size for token in _GUARD_TOKENS]
        sequences = [tokens[:9], tokens[9:]]
        alone = [self.logits(self.forward(_batch([s], self.device))) for s in sequences]
        together = self.logits(self.forward(_batch(sequences, self.device)))
        difference = (together - torch.cat(alone)).abs().max().item()
        spread = together.std().item()
        tolerance = 1e-3 if self.dtype == torch.float32 else 0.1
        # Written so that NaN is refused too.
        if not difference <= tolerance * max(spread, 1e-6):
            raise UnsupportedModel(
                f"{self._kind}: two sequences in one batch influence each other "
                f"(their logits differ by {difference:.2g} at a spread of {spread:.2g})"
            )


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls in each layer, ``query [1, heads, T, head_dim]`` and so on.

    Layers are numbered by the order of the calls: some models share modules between layers.
    """
    if attention_mask is not None or others.get("position_bias") is not None:
        raise UnsupportedModel(f"{type(module).__name__} brings a mask or a bias of its own")
    step = _current_step.get()
    layer, step.calls = step.calls, step.calls + 1
    out = step.layers.attend(
        layer,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        sliding_window,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        softcap=softcap,
        sinks=s_aux,
    )
    return out.unsqueeze(0), None


def _batch(sequences: list[list[int]], device: torch.device) -> Batch:
    """Whole sequences side by side, in the first KV slots."""
    rows, used = [], 0
    for sequence in sequences:
        rows.append(Row(np.arange(used, used + len(sequence)), 0))
        used += len(sequence)
    tokens = np.concatenate([np.asarray(s, dtype=np.int64) for s in sequences])
    return Batch.build(rows, tokens, np.arange(used), device)


def _load(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

    AttentionInterface.register(ATTENTION_NAME, attention_forward)
    try:
        config = AutoConfig.from_pretrained(folder)
        _refuse_by_config(config)
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=ATTENTION_NAME,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        if isinstance(error, UnsupportedModel):
            raise
        own = isinstance(error, KeyError) and error.args == (ATTENTION_NAME,)
        reason = "it doesn't know transformers' attention interface" if own else error
        raise UnsupportedModel(f"transformers can't load {str(folder)!r}: {reason}") from error
    if info["missing_keys"]:
        # transformers only warns, and runs on random numbers.
        names = ", ".join(sorted(info["missing_keys"])[:3])
        raise UnsupportedModel(f"the checkpoint in {str(folder)!r} lacks weights: {names}")
    if not model._supports_attention_backend:
        raise UnsupportedModel(
            f"{type(model).__name__} doesn't support transformers' attention interface"
        )
    # GPT-2 compares every batch with the pad id, which is a device sync in each step.
    model.config.pad_token_id = None
    return model.to(device).eval()


def _refuse_by_config(config: Any) -> None:
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ()) - _LAYER_KINDS
    if kinds:
        raise UnsupportedModel(
            f"{text.model_type} has layers of kind {', '.join(sorted(kinds))} "
            f"(supported: {', '.join(sorted(_LAYER_KINDS))})"
        )
    rope = getattr(text, "rope_parameters", None) or {}
    nested = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    for parameters in nested:
        if parameters.get("rope_type") in _REFUSED_ROPE:
            raise UnsupportedModel(
                f"{text.model_type} with RoPE type {parameters['rope_type']!r}: one sequence's "
                "length would change the others' results"
            )
