"""The generic backend on tiny random models of many families; the guards refuse the others."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from sglang_lite.errors import InvalidRequest, UnsupportedModel
from sglang_lite.runtime.batch import Batch, Row
from sglang_lite.runtime.models.loader import load_model
from tests.runtime.test_model_decoder import Sequence, prompt, reference, reference_logits, step

COMMON = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
GROUPED = {**COMMON, "num_key_value_heads": 2, "head_dim": 16}
GEMMA = {**GROUPED, "sliding_window": 8, "query_pre_attn_scalar": 16}
SUPPORTED = {
    "gpt2": ("GPT2Config", {**COMMON, "n_positions": 128}),
    "gemma2": ("Gemma2Config", {**GEMMA, "final_logit_softcapping": 5.0}),
    "gemma3": ("Gemma3TextConfig", {**GEMMA, "sliding_window_pattern": 2}),
    "phi3": ("Phi3Config", GROUPED),
    "olmo2": ("Olmo2Config", GROUPED),
    "granite": ("GraniteConfig", {**GROUPED, "logits_scaling": 3.0}),
    "gpt_oss": (
        "GptOssConfig",
        {**GROUPED, "sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
}


def save_model(folder, config_class, options):
    """A random model, with weights large enough that logits differ clearly."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**options)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=SUPPORTED)
def pair(request, tmp_path_factory):
    folder = save_model(tmp_path_factory.mktemp(request.param), *SUPPORTED[request.param])
    return load_model(folder, kv_slots=300, dtype="float32", device="cpu"), reference(folder)


def test_ragged_steps_equal_transformers(pair):
    """Chunks, decodes and a shared prefix, longer than the sliding windows."""
    model, expected = pair
    vocabulary = model.config.vocab_size
    first = Sequence([t % vocabulary for t in prompt(30)], range(100))
    step(model, [first], [11])
    second = Sequence([t % vocabulary for t in prompt(26, seed=1)], range(100, 200))
    step(model, [first, second], [12, 25])
    tail = [t % vocabulary for t in prompt(9, seed=2)]
    third = Sequence(first.tokens[:12] + tail, [*range(12), *range(250, 230, -1)])
    third.done = 12
    logits = step(model, [second, third, first], [26, 21, 30])
    for row, sequence in zip(logits, [second, third, first], strict=True):
        wanted = reference_logits(expected, sequence.tokens)[-1]
        assert wanted.std() > 0.01
        torch.testing.assert_close(row, wanted, atol=3e-4, rtol=3e-4)


def test_half_precision_on_a_cpu_sees_few_numbers_of_rows(tmp_path):
    # oneDNN keeps a compiled kernel for each.
    folder = save_model(tmp_path, *SUPPORTED["phi3"])
    model = load_model(folder, kv_slots=100, dtype="bfloat16", device="cpu")
    exact = load_model(folder, kv_slots=100, dtype="float32", device="cpu")
    seen = set()
    head = model._model.lm_head
    layer = model._base.layers[0].mlp
    for module in (head, layer):
        module.register_forward_pre_hook(lambda module, args: seen.add(args[0].shape[1]))
    for rows in range(33, 65):
        tokens = np.array([token % 160 for token in prompt(rows, rows)])
        batch = Batch.build([Row(np.arange(rows), 0)], tokens, np.arange(rows))
        got, right = (each.logits(each.forward(batch)) for each in (model, exact))
        assert got.shape == right.shape == (rows, 160)
        assert (got - right).abs().max() < 0.2 * right.std()
    assert seen == {36, 40, 44, 48, 52, 56, 60, 64}


def test_a_pool_smaller_than_the_guard_needs(tmp_path):
    folder = save_model(tmp_path, *SUPPORTED["gpt2"])
    assert load_model(folder, kv_slots=5, dtype="float32", device="cpu").kv_cache.slots == 5


REFUSED = {
    "bloom": ("BloomConfig", {"vocab_size": 160, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "falcon": ("FalconConfig", {**COMMON, "alibi": False}),
    "mamba": ("MambaConfig", {**COMMON, "state_size": 4, "num_attention_heads": 4}),
    "phi3-longrope": (
        "Phi3Config",
        {
            **GROUPED,
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
            },
        },
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_wrong_is_refused(name, tmp_path):
    folder = save_model(tmp_path, *REFUSED[name])
    path = folder / "config.json"
    # Complete what some families don't write, so that it's the guards that refuse them.
    path.write_text(json.dumps({"max_position_embeddings": 128, **json.loads(path.read_text())}))
    reasons = {"mamba": "linear_attention", "phi3-longrope": "longrope"}
    with pytest.raises(UnsupportedModel, match=reasons.get(name, "attention interface")):
        load_model(folder, kv_slots=64, dtype="float32", device="cpu")


@pytest.mark.parametrize("name", ["bloom", "falcon"])
def test_a_model_that_goes_round_the_interface_is_noticed(name, tmp_path, monkeypatch):
    """Even if it claimed to support it."""
    from transformers import PreTrainedModel

    folder = save_model(tmp_path, *REFUSED[name])
    path = folder / "config.json"
    path.write_text(json.dumps({"max_position_embeddings": 128, **json.loads(path.read_text())}))
    monkeypatch.setattr(PreTrainedModel, "_supports_attention_backend", True)
    with pytest.raises(UnsupportedModel, match="attention interface"):
        load_model(folder, kv_slots=64, dtype="float32", device="cpu")


def test_crosstalk_between_sequences_is_noticed(tmp_path, monkeypatch):
    """Attention that forgets the rows calls every layer, and only the dry run shows it."""
    from sglang_lite.runtime.models import hf

    def whole_row(self, layer, query, key, value, window, **options):
        out = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(0, 1) for x in (query, key, value)), is_causal=True
        )
        return out.transpose(0, 1).contiguous()

    monkeypatch.setattr(hf._BatchLayers, "attend", whole_row)
    folder = save_model(tmp_path, *SUPPORTED["gpt2"])
    with pytest.raises(UnsupportedModel, match="influence each other"):
        load_model(folder, kv_slots=64, dtype="float32", device="cpu")


def test_missing_weights_are_not_invented(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = save_model(tmp_path, *SUPPORTED["gpt2"])
    weights = load_file(folder / "model.safetensors")
    del weights["transformer.h.1.mlp.c_fc.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsupportedModel, match="lacks weights"):
        load_model(folder, kv_slots=64, dtype="float32", device="cpu")


def test_quantization_is_refused_here(tmp_path):
    folder = save_model(tmp_path, *SUPPORTED["gpt2"])
    with pytest.raises(InvalidRequest, match="quantization"):
        load_model(folder, kv_slots=64, dtype="bfloat16", device="cpu", quantization="int4")
