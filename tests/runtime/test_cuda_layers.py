"""The fused operations of a decoder layer, in Triton's interpreter, against torch's."""

from __future__ import annotations

import pytest
import torch

from sglang_lite.runtime.cuda.layers import FusedOps
from sglang_lite.runtime.kv_cache import KVCache
from sglang_lite.runtime.models.layer_ops import TorchOps
from sglang_lite.runtime.models.loader import load_model
from sglang_lite.runtime.models.norm import RMSNorm
from tests.runtime.kernels import DEVICE
from tests.runtime.test_model_decoder import FAMILIES, Sequence, greedy, prompt, step
from tests.runtime.tiny import make_tiny_model

pytest.importorskip("triton")
TOLERANCE = {torch.float32: 2e-6, torch.float16: 4e-3}


def random(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("normed", "rotary"), [(True, True), (False, True), (True, False)])
def test_queries_keys_and_values(dtype, normed, rotary):
    heads, kv_heads, dim, tokens = 3, 2, 24, 5
    qkv = random(tokens, heads + 2 * kv_heads, dim, dtype=dtype)
    norm = random(heads + kv_heads, dim, dtype=dtype, seed=1) if normed else None
    tables = tuple(random(tokens, 1, dim, dtype=dtype, seed=s) for s in (2, 3)) if rotary else None
    slots = torch.tensor([7, 0, 3, 9, 4], device=DEVICE)
    results = []
    for ops in (TorchOps(heads, kv_heads, 1e-5), FusedOps(heads, kv_heads, 1e-5)):
        cache = KVCache([(kv_heads, dim), (kv_heads, dim)], 10, dtype, DEVICE)
        outputs = ops.turn_and_store(qkv.clone(), norm, tables, cache, 1, slots)
        assert [tuple(x.shape) for x in outputs] == [
            (tokens, heads, dim),
            (tokens, kv_heads, dim),
            (tokens, kv_heads, dim),
        ]
        results.append([*outputs, *cache.layers])
    for ours, wanted in zip(results[1], results[0], strict=True):
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(ours, wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_the_residual_stream(dtype):
    norms = [RMSNorm(random(40, dtype=dtype, seed=s), 1e-5) for s in (1, 2)]
    results = []
    for ops in (TorchOps(1, 1, 1e-5), FusedOps(1, 1, 1e-5)):
        stream = ops.stream(random(3, 40, dtype=dtype))
        outputs = [stream.normed(norms[0])]
        for seed in (3, 4):
            stream.add(random(3, 40, dtype=dtype, seed=seed))
        outputs.append(stream.normed(norms[1]))
        stream.add(random(3, 40, dtype=dtype, seed=5))
        outputs.append(stream.normed(norms[0]))
        results.append(outputs)
    for ours, wanted in zip(results[1], results[0], strict=True):
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(ours, wanted, atol=tolerance, rtol=tolerance)


def test_the_activation():
    gate_up = 5 * random(3, 2 * 1500)
    ours, wanted = (ops(1, 1, 1e-5).gated(gate_up.clone()) for ops in (FusedOps, TorchOps))
    torch.testing.assert_close(ours, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["llama", "qwen3", "smollm3"])
def test_a_model_with_them(tmp_path, family):
    folder = make_tiny_model(tmp_path, **FAMILIES[family])
    model = load_model(folder, kv_slots=64, dtype="float32", device=DEVICE.type)
    results = []
    for ops in (TorchOps, FusedOps):
        model.ops = ops(model.config.num_heads, model.config.num_kv_heads, model.eps)
        sequences = [Sequence(prompt(9), range(20)), Sequence(prompt(5, seed=1), range(30, 50))]
        greedy(model, sequences, 3)
        logits = step(model, sequences, [len(s.tokens) for s in sequences])
        results.append((logits, [s.tokens for s in sequences]))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-4, rtol=1e-4)
    assert results[0][1] == results[1][1]
