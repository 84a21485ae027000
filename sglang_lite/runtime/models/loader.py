"""From a path to a model that is ready to run."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime.attention.cpu import TorchAttention
from sglang_lite.runtime.attention.plan import AttentionBackend
from sglang_lite.runtime.attention.sequence import SequenceAttention
from sglang_lite.runtime.models.base import Model
from sglang_lite.runtime.models.config import ModelConfig
from sglang_lite.runtime.models.decoder import FUSED_FAMILIES, FusedDecoder
from sglang_lite.runtime.models.hf import TransformersModel
from sglang_lite.runtime.models.kernels import LinearFactory, give_back_freed_memory
from sglang_lite.runtime.models.weights import Weights

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def load_model(
    path: str | Path,
    *,
    kv_slots: int,
    dtype: str = "auto",
    device: str = "auto",
    quantization: str | None = None,
    deterministic: bool = False,
) -> Model:
    """Load the model folder at ``path`` with a KV cache of ``kv_slots`` tokens.

    ``deterministic``: attention that doesn't depend on where in the pool a sequence lies.
    Raises :class:`ModelNotFound` where files are missing, :class:`UnsupportedModel` where the
    model cannot be run correctly, :class:`InvalidRequest` for a wrong parameter.
    """
    folder = Path(path)
    config = ModelConfig.from_folder(folder)
    if kv_slots < 1:
        raise InvalidRequest("kv_slots", kv_slots, "at least 1")
    where = resolve_device(device)
    precision = resolve_dtype(dtype, config, where, quantization)
    attention = _attention_for(where, config, deterministic)
    if config.model_type in FUSED_FAMILIES:
        weights = Weights(folder)
        linears = LinearFactory(weights, config, precision, where, quantization)
        model = FusedDecoder(
            config,
            weights,
            attention,
            linears,
            dtype=precision,
            device=where,
            kv_slots=kv_slots,
        )
        del weights, linears
        give_back_freed_memory()
        return model
    if quantization is not None:
        families = ", ".join(sorted(FUSED_FAMILIES))
        raise InvalidRequest("quantization", quantization, f"None, except for {families}")
    return TransformersModel(
        folder, config, attention, dtype=precision, device=where, kv_slots=kv_slots
    )


def _attention_for(
    device: torch.device, config: ModelConfig, deterministic: bool
) -> AttentionBackend:
    """Triton's kernels on a GPU where Triton is installed, torch's elsewhere."""
    if deterministic:
        return SequenceAttention(device)
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from sglang_lite.runtime.attention.triton import TritonAttention

        return TritonAttention(device, config.num_heads, config.num_kv_heads)
    return TorchAttention(device)


def resolve_device(device: str) -> torch.device:
    """``"auto"`` is the first CUDA device if there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InvalidRequest("device", device, "'auto', 'cpu' or 'cuda[:index]'") from error
    if chosen.type not in ("cpu", "cuda"):
        raise InvalidRequest("device", device, "'auto', 'cpu' or 'cuda[:index]'")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest("device", device, "this torch sees no CUDA device; use 'cpu'")
    return chosen


def resolve_dtype(
    dtype: str, config: ModelConfig, device: torch.device, quantization: str | None = None
) -> torch.dtype:
    """``"auto"``: bfloat16 where the hardware multiplies it natively, else float32.

    On CUDA ``"auto"`` keeps a float16 checkpoint as it is.  Quantised kernels take bfloat16.
    """
    if dtype != "auto":
        if dtype not in DTYPES:
            raise InvalidRequest("dtype", dtype, f"one of 'auto', {', '.join(map(repr, DTYPES))}")
        if device.type == "cpu" and dtype == "float16":
            raise InvalidRequest("dtype", dtype, "'bfloat16' or 'float32' on a CPU")
        return DTYPES[dtype]
    if device.type == "cuda":
        return torch.float16 if config.torch_dtype == "float16" else torch.bfloat16
    native = quantization is not None or cpu_multiplies_bfloat16()
    return torch.bfloat16 if native else torch.float32


def cpu_multiplies_bfloat16() -> bool:
    """Whether this CPU has bfloat16 dot products (AVX-512 BF16 or AMX)."""
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in probes)
