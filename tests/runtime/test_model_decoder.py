"""The fused decoder against transformers on tiny random models of each family, in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sglang_lite.errors import InvalidRequest, ModelNotFound, UnsupportedModel
from sglang_lite.runtime.batch import Batch, Row
from sglang_lite.runtime.models import decoder, layers
from sglang_lite.runtime.models.loader import load_model
from tests.runtime.tiny import make_tiny_model

FAMILIES = {
    "llama": {},
    "llama-untied": {"tie_word_embeddings": False},
    "llama-linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama3": {
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "llama-yarn": {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "mistral": {"model_type": "mistral", "sliding_window": 7},
    "qwen2": {"model_type": "qwen2"},
    "qwen2-window": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "smollm3": {"model_type": "smollm3", "no_rope_layers": [1, 0], "pad_token_id": 0},
}


class Sequence:
    """Tokens and KV slots of one sequence, driven by hand."""

    def __init__(self, tokens, slots):
        self.tokens, self.slots, self.done = list(tokens), np.asarray(slots, dtype=np.int64), 0

    def row(self, end):
        return Row(self.slots[:end], self.done)


def step(model, sequences, ends):
    """Compute each sequence's tokens up to its end; logits of the last one, [len(sequences), V]."""
    ids = [t for s, end in zip(sequences, ends, strict=True) for t in s.tokens[s.done : end]]
    rows = [s.row(end) for s, end in zip(sequences, ends, strict=True)]
    last = np.cumsum([row.new_tokens for row in rows]) - 1
    batch = Batch.build(rows, np.array(ids), last, model.device)
    hidden = model.forward(batch)
    for sequence, end in zip(sequences, ends, strict=True):
        sequence.done = end
    return model.logits(hidden[batch.logit_rows])


def greedy(model, sequences, count):
    """Append ``count`` greedy tokens to every sequence, all in one batch."""
    for _ in range(count):
        logits = step(model, sequences, [len(s.tokens) for s in sequences])
        for sequence, token in zip(sequences, logits.argmax(-1).tolist(), strict=True):
            sequence.tokens.append(token)


def reference(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def reference_logits(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float()


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    folder = make_tiny_model(tmp_path_factory.mktemp(request.param), **FAMILIES[request.param])
    model = load_model(folder, kv_slots=600, dtype="float32", device="cpu")
    return model, reference(folder)


def prompt(length, seed=0):
    return torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_logits_equal_transformers(family):
    model, expected = family
    tokens = prompt(40)
    sequence = Sequence(tokens, range(40))
    batch = Batch.build([sequence.row(40)], np.array(tokens), np.arange(40))
    logits = model.logits(model.forward(batch))
    torch.testing.assert_close(logits, reference_logits(expected, tokens), atol=2e-4, rtol=2e-4)


def test_ragged_steps_with_shared_prefix_equal_transformers(family):
    """Chunks, decodes, and a sequence that starts on another one's slots, in the same steps."""
    model, expected = family
    first = Sequence(prompt(30), range(100))
    step(model, [first], [11])
    second = Sequence(prompt(25, seed=1), range(100, 200))
    step(model, [first, second], [12, 25])
    third = Sequence(first.tokens[:12] + prompt(9, seed=2), [*range(12), *range(250, 230, -1)])
    third.done = 12
    second.tokens += prompt(1, seed=3)
    logits = step(model, [second, third, first], [26, 21, 30])
    for row, sequence in zip(logits, [second, third, first], strict=True):
        wanted = reference_logits(expected, sequence.tokens)[-1]
        torch.testing.assert_close(row, wanted, atol=2e-4, rtol=2e-4)


def test_greedy_batch_equals_transformers_alone(family):
    model, expected = family
    sequences = [
        Sequence(prompt(n, seed=n), range(i * 100, i * 100 + 100))
        for i, n in enumerate([3, 17, 40])
    ]
    greedy(model, sequences, 12)
    for sequence, n in zip(sequences, [3, 17, 40], strict=True):
        ids = torch.tensor([sequence.tokens[:n]])
        wanted = expected.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
        )[0].tolist()
        assert sequence.tokens == wanted


def test_missing_files_are_named(tmp_path):
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        load_model(tmp_path, kv_slots=10)
    folder = make_tiny_model(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"model\.safetensors"):
        load_model(folder, kv_slots=10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"partial_rotary_factor": 0.5}, "8 of 16"),
        ({"num_hidden_layers": 1}, "weights that this architecture"),
        ({"num_hidden_layers": 3}, "no weight"),
    ],
)
def test_what_would_be_wrong_is_refused(tmp_path, changes, message):
    import json

    folder = make_tiny_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(UnsupportedModel, match=message):
        load_model(folder, kv_slots=10, dtype="float32", device="cpu")


@pytest.mark.parametrize(
    "parameters", [{"dtype": "int7"}, {"dtype": "float16"}, {"device": "abacus"}, {"kv_slots": 0}]
)
def test_wrong_parameters_are_named(tmp_path, parameters):
    folder = make_tiny_model(tmp_path)
    with pytest.raises(InvalidRequest, match=next(iter(parameters))):
        load_model(folder, **{"kv_slots": 10, "device": "cpu", **parameters})


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_script_computes_what_its_functions_do(family, dtype, tmp_path, monkeypatch):
    assert isinstance(layers.layer_runner(), torch.jit.ScriptFunction)
    folder = make_tiny_model(tmp_path, **FAMILIES[family])
    results = []
    for run in (layers.layer_runner(), layers.run_layers):
        monkeypatch.setattr(decoder, "layer_runner", lambda run=run: run)
        model = load_model(folder, kv_slots=256, dtype=dtype, device="cpu")
        shared = list(range(100, 170))
        sequences = [
            Sequence(prompt(90), shared + list(range(20 * i, 20 * i + 20))) for i in range(3)
        ]
        step(model, sequences[:1], [70])
        for sequence in sequences[1:]:
            sequence.done = 70
        results.append([step(model, sequences, ends) for ends in ([80, 71, 78], [81, 72, 79])])
    for scripted, plain in zip(*results, strict=True):
        assert torch.equal(scripted, plain)


def test_without_a_script_the_functions_run_as_they_are(monkeypatch):
    def refuse(function):
        raise RuntimeError("not supported")

    monkeypatch.setattr(torch.jit, "script", refuse)
    assert layers.layer_runner.__wrapped__() is layers.run_layers
