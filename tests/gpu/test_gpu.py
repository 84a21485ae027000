"""What only a CUDA device can show: run these with `python -m pytest tests/gpu` on such a machine.

The kernels' own tests (tests/runtime/test_attention_triton.py and test_cuda_*.py) run there on the
device too, instead of in Triton's interpreter.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from sglang_lite.runtime.batch import Batch, Row
from sglang_lite.runtime.cuda.graphs import GraphedModel, graph_sizes
from sglang_lite.runtime.engine import Engine
from sglang_lite.runtime.models.loader import load_model
from tests.runtime.tiny import make_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PROMPTS = [[(7 * i + j * j) % 250 for j in range(3 + 29 * i)] for i in range(12)]
WAYS = {
    "graphs and overlap": {},
    "no graphs": {"disable_cuda_graph": True},
    "no overlap": {"disable_overlap_schedule": True},
    "neither": {"disable_cuda_graph": True, "disable_overlap_schedule": True},
    "short chunks": {"chunked_prefill_size": 50},
    "few graphs": {"cuda_graph_max_bs": 4},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    changes = {"model_type": "qwen3", "head_dim": 64, "hidden_size": 128, "num_hidden_layers": 3}
    return make_tiny_model(tmp_path_factory.mktemp("model") / "qwen3", **changes)


@pytest.fixture(scope="module")
def engines(folder: Path) -> Iterator[dict[str, Engine]]:
    made: dict[str, Engine] = {}
    for name, options in WAYS.items():
        common = {"dtype": "float32", "device": "cuda", "max_total_tokens": 8_000}
        made[name] = Engine(folder, **common, **options)
    yield made
    for engine in made.values():
        engine.shutdown()


def outputs(engine: Engine, **params) -> list[list[int]]:
    params = {"max_new_tokens": 40, "ignore_eos": True, **params}
    results = engine.generate(input_ids=PROMPTS, sampling_params=params)
    engine.check()
    return [result["output_ids"] for result in results]


def test_greedy_tokens_are_those_of_transformers(engines, folder):
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").cuda()
    results = outputs(engines["graphs and overlap"], temperature=0)
    for prompt, output in zip(PROMPTS, results, strict=True):
        tokens = torch.tensor([prompt + output], device="cuda")
        with torch.inference_mode():
            best = reference(tokens).logits[0, len(prompt) - 1 : -1].argmax(-1)
        assert best.tolist() == output


@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 0.9, "seed": 5}])
@pytest.mark.parametrize("way", list(WAYS)[1:])
def test_all_ways_give_the_same_tokens(engines, way, params):
    assert outputs(engines[way], **params) == outputs(engines["graphs and overlap"], **params)


@pytest.mark.parametrize("way", ["graphs and overlap", "neither"])
def test_constraints_hold(engines, way):
    params = {"temperature": 1.0, "seed": 1, "regex": "[a-f]{12}[0-9]{3}", "max_new_tokens": 40}
    results = engines[way].generate(input_ids=PROMPTS, sampling_params=params)
    for result in results:
        assert len(result["text"]) == 15
        assert set(result["text"][:12]) <= set("abcdef")
        assert result["text"][12:].isdigit()


def test_log_probabilities_are_those_without_graphs(engines):
    values = []
    for way in ("graphs and overlap", "neither"):
        result = engines[way].generate(
            input_ids=PROMPTS[3],
            sampling_params={"temperature": 0, "max_new_tokens": 8},
            return_logprob=True,
            logprob_start_len=0,
        )
        info = result["meta_info"]
        both = info["input_token_logprobs"][1:] + info["output_token_logprobs"]
        values.append([entry[0] for entry in both])
    np.testing.assert_allclose(*values, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_graph_passes_its_check(folder, dtype, caplog):
    """Each size is compared with an ordinary step when it is captured; a warning is a failure."""
    model = load_model(folder, kv_slots=4_000, dtype=dtype, device="cuda")
    with caplog.at_level(logging.WARNING, "sglang_lite"):
        graphed = GraphedModel(model, model.attention, graph_sizes(64))
    assert not caplog.records
    assert graphed.sizes == graph_sizes(64)


def test_a_step_never_waits_for_the_device(folder):
    """No hidden synchronisation between building a decode step and its sampled tokens."""
    from sglang_lite.runtime.cuda.sampling import DeviceSampler
    from sglang_lite.runtime.sampler import SamplingRow

    model = load_model(folder, kv_slots=2_000, device="cuda")
    model = GraphedModel(model, model.attention, [4])
    assert model.sizes == [4]
    sampler, mask = DeviceSampler(model.device), np.full(9, -1, dtype=np.int32)
    rows = [Row(np.arange(i * 300, i * 300 + 250), 249) for i in range(4)]
    choices = [SamplingRow(), SamplingRow(1.0, top_p=0.9), SamplingRow(1.0, mask=mask)]
    choices.append(SamplingRow(add=(np.array([3]), np.array([2.0]))))

    def step() -> None:
        batch = Batch.build(rows, np.arange(4), np.arange(4), model.device)
        sampler(model.logits(model.forward(batch)[batch.logit_rows]), choices)

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
