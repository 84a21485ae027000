"""The whole engine on what it uses on a GPU, interpreted: the same texts as on a CPU."""

from __future__ import annotations

import pytest

from sglang_lite.runtime import core
from sglang_lite.runtime.attention.triton import TritonAttention
from sglang_lite.runtime.cuda.graphs import GraphedModel
from sglang_lite.runtime.cuda.layers import FusedOps
from sglang_lite.runtime.cuda.sampling import DeviceSampler
from sglang_lite.runtime.engine import Engine
from sglang_lite.runtime.models.loader import load_model
from sglang_lite.runtime.tokenizer import Tokenizer
from tests.runtime.kernels import DEVICE, Rerun
from tests.runtime.tiny import make_tiny_model

pytest.importorskip("triton")
SHARED = [(7 * i) % 250 for i in range(66)]
PROMPTS = [SHARED, [5, 6, 7], [*SHARED, 9], [1], [8, 2]]
PARAMS = [
    {"temperature": 0},
    {"temperature": 0.9, "seed": 3, "top_p": 0.9, "frequency_penalty": 0.5},
    {"temperature": 1.0, "seed": 4, "regex": "[a-f]{3}(xyz|xyu)[0-9]", "top_k": 40},
    {"temperature": 0.7, "seed": 5, "min_p": 0.05, "logit_bias": {"65": 2.0}},
    {"temperature": 1.0, "seed": 6, "regex": "[!-~]+", "stop_outside": True, "top_p": 0.98},
]


def texts(engine: Engine) -> list[list[int]]:
    with engine:
        params = [{"max_new_tokens": 6, "ignore_eos": True, **each} for each in PARAMS]
        results = engine.generate(input_ids=PROMPTS, sampling_params=params)
        engine.check()
    return [result["output_ids"] for result in results]


def test_texts_are_those_of_a_cpu(tmp_path, monkeypatch):
    folder = make_tiny_model(tmp_path / "qwen3", model_type="qwen3", num_hidden_layers=1)
    tokenizer = Tokenizer.from_pretrained(folder)
    plain = load_model(folder, kv_slots=300, dtype="float32", device="cpu")
    wanted = texts(Engine.from_model(plain, tokenizer))

    model = load_model(folder, kv_slots=300, dtype="float32", device=DEVICE.type)
    heads, kv_heads = model.config.num_heads, model.config.num_kv_heads
    model.attention = TritonAttention(DEVICE, heads, kv_heads)
    model.ops = FusedOps(heads, kv_heads, model.eps)
    graphed = GraphedModel(model, model.attention, (5,), Rerun)
    monkeypatch.setattr(core, "sampler_for", DeviceSampler)
    before = Rerun.replays
    engine = Engine.from_model(graphed, tokenizer, disable_overlap_schedule=False)
    assert texts(engine) == wanted
    assert Rerun.replays - before >= 4
