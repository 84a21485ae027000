"""Padding, static buffers and fallbacks of decode graphs, with a stand-in that runs on a CPU."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime.attention.plan import MIN_SHARED_KEYS
from sglang_lite.runtime.attention.triton import TritonAttention
from sglang_lite.runtime.batch import Batch, Row
from sglang_lite.runtime.config import EngineConfig
from sglang_lite.runtime.cuda import graphs
from sglang_lite.runtime.cuda.graphs import (
    GraphedModel,
    graph_sizes,
    wanted_sizes,
    with_decode_graphs,
)
from sglang_lite.runtime.engine_args import EngineArgs
from sglang_lite.runtime.models.loader import load_model
from tests.runtime.kernels import DEVICE, Rerun
from tests.runtime.test_model_decoder import Sequence, prompt, step
from tests.runtime.tiny import make_tiny_model

pytest.importorskip("triton")


@pytest.fixture
def graphed(tmp_path, monkeypatch):
    # The interpreter takes its time; this is still a prefix that rows share.
    monkeypatch.setattr(graphs, "_CHECKED_PREFIX", 4 * MIN_SHARED_KEYS // 3)

    def make(sizes=(1, 2, 4), new_graph=Rerun, slots=400, **config):
        changes = {"num_hidden_layers": 1, **config}
        folder = make_tiny_model(tmp_path, **changes)
        model = load_model(folder, kv_slots=slots, dtype="float32", device=DEVICE.type)
        attention = TritonAttention(DEVICE, 4, 2)
        plain, model.attention = model.attention, attention
        result = GraphedModel(model, attention, sizes, new_graph)
        model.plain = plain
        return result

    return make


def both(graphed, sequences, ends):
    """The step's logits by the graph and by torch's attention, and the number of replays."""
    before = Rerun.replays
    done = [s.done for s in sequences]
    ours = step(graphed, sequences, ends)
    count = Rerun.replays - before
    model, triton = graphed.model, graphed.model.attention
    for sequence, at in zip(sequences, done, strict=True):
        sequence.done = at
    model.attention = model.plain
    wanted = step(model, sequences, ends)
    model.attention = triton
    return ours, wanted, count


@pytest.mark.parametrize("config", [{}, {"model_type": "mistral", "sliding_window": 7}])
def test_replayed_steps_equal_ordinary_ones(graphed, config):
    model = graphed(**config)
    assert model.sizes == [1, 2, 4]
    shared = list(range(70))
    sequences = [
        Sequence(prompt(80), [*shared, *range(100, 130)]),
        Sequence(prompt(75), [*shared, *range(140, 170)]),
        Sequence(prompt(3, seed=2), range(180, 200)),
        Sequence(prompt(9, seed=3), range(220, 240)),
    ]
    for sequence in sequences:
        step(model, [sequence], [len(sequence.tokens) - 1])
    # Fewer rows after more: what a larger step left in the buffers must not be written again.
    for rows in (4, 1, 3):
        chosen = sequences[-rows:]
        ours, wanted, replays = both(model, chosen, [len(s.tokens) for s in chosen])
        assert replays == 1
        torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=1e-4)
        for sequence in chosen:
            sequence.tokens.append(int(ours[chosen.index(sequence)].argmax()))


def test_steps_that_no_graph_fits_run_without(graphed):
    model = graphed()
    sequences = [Sequence(prompt(9, seed=i), range(20 * i, 20 * i + 20)) for i in range(5)]
    assert both(model, sequences[:2], [9, 8])[2] == 0, "chunks of prompts"
    step(model, sequences[2:], [8, 8, 8])
    for sequence in sequences:
        sequence.done = 8
    assert both(model, sequences, [9] * 5)[2] == 0, "more rows than the largest graph has"
    for sequence in sequences:
        sequence.done = 8
    ours, wanted, replays = both(model, sequences[:4], [9] * 4)
    assert replays == 1
    torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=1e-4)


def test_padding_writes_to_the_scratch_slot_only(graphed):
    model = graphed(sizes=(4,))
    cache = model.kv_cache
    for tensor in (*cache.keys, *cache.values):
        tensor.zero_()
    step(model, [Sequence(prompt(1), [7])], [1])
    for tensor in (*cache.keys, *cache.values):
        assert tensor[0].any(dim=-1).nonzero()[:, 0].tolist() == [7, cache.scratch_slot]


class Wrong(Rerun):
    """A replay that gives something else."""

    def replay(self):
        super().replay()
        self._result[-1] += 0.1


def test_a_graph_with_another_result_is_not_used(graphed, caplog):
    with caplog.at_level(logging.WARNING, "sglang_lite"):
        model = graphed(new_graph=Wrong)
    assert model.sizes == []
    assert "no CUDA graph for 4 rows: its result differs by 0.1" in caplog.text
    ours, wanted, replays = both(model, [Sequence(prompt(9), range(20))], [9])
    assert replays == 0
    torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=1e-4)


class Failing(Rerun):
    """A model that cannot be captured."""

    def capture(self, run):
        raise RuntimeError("operation not permitted when stream is capturing")


def test_a_model_that_cannot_be_captured_runs_without_graphs(graphed, caplog):
    with caplog.at_level(logging.WARNING, "sglang_lite"):
        model = graphed(new_graph=Failing)
    assert model.sizes == []
    assert "no CUDA graphs, steps will be slower: operation not permitted" in caplog.text


def test_graphs_of_more_rows_than_slots_are_not_made(graphed):
    assert graphed(sizes=(1, 8, 64), slots=20).sizes == [1, 8]


def test_the_static_result_is_renewed_by_the_next_step(graphed):
    model = graphed(sizes=(2,))
    batch = [
        Batch.build([Row(np.array([3]), 0)], np.array([token]), np.array([0]), DEVICE)
        for token in (5, 6)
    ]
    first = model.forward(batch[0])
    kept = first.clone()
    second = model.forward(batch[1])
    assert first.data_ptr() == second.data_ptr()
    assert not torch.equal(kept, second)


def test_sizes():
    assert graph_sizes(1) == [1]
    assert graph_sizes(6) == [1, 2, 4, 6]
    assert graph_sizes(20) == [1, 2, 4, 8, 16, 20]
    largest = graph_sizes(256)
    assert largest[3:10] == [8, 16, 24, 32, 40, 48, 56]
    assert largest[10:] == [64, 80, 96, 112, 128, 160, 192, 224, 256]
    assert graph_sizes(500)[-3:] == [256, 384, 500]


def config_of(model, **options):
    slots = model.kv_cache.slots
    return EngineConfig.of(EngineArgs(**options), model.config, slots, model.device)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = make_tiny_model(tmp_path_factory.mktemp("model") / "llama")
    return load_model(folder, kv_slots=300, dtype="float32", device=DEVICE.type)


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"max_running_requests": 20}, [1, 2, 4, 8, 16, 20]),
        ({"max_running_requests": 500}, graph_sizes(256)),
        ({"cuda_graph_max_bs": 6}, [1, 2, 4, 6]),
        ({"cuda_graph_bs": [1, 8, 24]}, [1, 8, 24]),
        ({"cuda_graph_bs": "1, 8,24", "cuda_graph_max_bs": 10}, [1, 8]),
        ({"cuda_graph_bs": [1, 300], "max_running_requests": 400}, [1, 300]),
        ({"disable_cuda_graph": True, "cuda_graph_bs": [1, 2]}, []),
    ],
)
def test_options(tiny, options, sizes):
    assert wanted_sizes(config_of(tiny, **options)) == sizes


@pytest.mark.parametrize("wrong", ["", "1,x", [0], [True], [], 4, ["2"], "1;2"])
def test_wrong_numbers_of_rows_are_refused(wrong):
    with pytest.raises(InvalidRequest, match=r"cuda_graph_bs.*such as '1,2,4'"):
        EngineArgs(cuda_graph_bs=wrong)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="is about CPUs")
def test_without_a_cuda_device_there_are_none(tiny):
    assert with_decode_graphs(tiny, config_of(tiny)) is tiny
