"""The default model's real weights: greedy text equals transformers', however it is batched."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from sglang_lite.errors import ModelNotFound
from sglang_lite.runtime.batch import Batch
from sglang_lite.runtime.default_model import default_model_path
from sglang_lite.runtime.engine import Engine
from sglang_lite.runtime.models.loader import load_model
from tests.runtime.test_model_decoder import Sequence, greedy, step

pytestmark = pytest.mark.model

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, in a small village by the sea,",
    "<|im_start|>user\nName three primary colours.<|im_end|>\n<|im_start|>assistant\n",
    "Q: What is 17 + 25?\nA:",
    "The following is a list of animals: cat, dog,",
    "import numpy as np\n\nx = np.",
    "Water boils at",
    '"To be, or not to be" was written by',
    "人工智能是",
]
NEW_TOKENS = 64


@pytest.fixture(scope="module")
def folder():
    try:
        return default_model_path()
    except ModelNotFound as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def prompts(folder):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in PROMPTS]


def transformers_model(folder, dtype):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


@pytest.fixture(scope="module")
def model(folder):
    return load_model(folder, kv_slots=2048, dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def expected(model, prompts):
    """All prompts continued in one batch."""
    sequences = [Sequence(p, range(i * 128, i * 128 + 128)) for i, p in enumerate(prompts)]
    greedy(model, sequences, NEW_TOKENS)
    return [sequence.tokens for sequence in sequences]


def test_every_token_is_the_one_transformers_chooses(folder, prompts, expected):
    """One pass over the finished text shows each greedy choice, because each sees only what
    precedes it."""
    theirs = transformers_model(folder, torch.float32)
    for prompt, tokens in zip(prompts, expected, strict=True):
        with torch.no_grad():
            logits = theirs(torch.tensor([tokens])).logits[0]
        assert logits.argmax(-1)[len(prompt) - 1 : -1].tolist() == tokens[len(prompt) :]


def test_alone(model, prompts, expected):
    for prompt, wanted in zip(prompts[:3], expected, strict=False):
        sequence = Sequence(prompt, range(len(prompt) + NEW_TOKENS))
        greedy(model, [sequence], NEW_TOKENS)
        assert sequence.tokens == wanted


def test_with_scattered_slots_and_chunks(model, prompts, expected):
    slots = np.random.default_rng(0).permutation(2048)
    for i, (prompt, wanted) in enumerate(zip(prompts[3:6], expected[3:6], strict=True)):
        sequence = Sequence(prompt, slots[i * 128 : i * 128 + 128])
        for end in range(5, len(prompt), 5):
            step(model, [sequence], [end])
        greedy(model, [sequence], NEW_TOKENS)
        assert sequence.tokens == wanted


def test_forks_of_a_computed_prefix(model, prompts, expected):
    """Eight sequences read one prompt's slots and compute only the last token themselves."""
    prompt = prompts[3] * 4
    parent = Sequence(prompt, range(len(prompt) + NEW_TOKENS))
    greedy(model, [parent], 16)
    wanted = parent.tokens
    forks = []
    for i in range(8):
        own = range(500 + i * 40, 540 + i * 40)
        forks.append(Sequence(prompt, [*range(len(prompt) - 1), *own]))
        forks[-1].done = len(prompt) - 1
    greedy(model, forks, 16)
    assert [f.tokens for f in forks] == [wanted] * 8


def kl_divergence(reference, other):
    """Mean over positions of KL(reference || other), in nats."""
    p, q = reference.log_softmax(-1), other.log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).mean().item()


def forced_logits(model, tokens):
    """Logits of every position of a fixed text."""
    sequence = Sequence(tokens, range(len(tokens)))
    batch = Batch.build([sequence.row(len(tokens))], np.array(tokens), np.arange(len(tokens)))
    return model.logits(model.forward(batch))


def test_bfloat16_is_as_close_to_float32_as_transformers(folder, model, expected):
    ours = load_model(folder, kv_slots=256, dtype="bfloat16", device="cpu")
    theirs = transformers_model(folder, torch.bfloat16)
    mine, peer = [], []
    for tokens in expected[2:6]:
        exact = forced_logits(model, tokens)
        mine.append(kl_divergence(exact, forced_logits(ours, tokens)))
        with torch.no_grad():
            peer.append(kl_divergence(exact, theirs(torch.tensor([tokens])).logits[0].float()))
    assert np.mean(mine) <= 1.2 * np.mean(peer)


@pytest.mark.parametrize("options", [{}, {"quantization": "int4"}, {"dtype": "float32"}])
@pytest.mark.parametrize("long_prompt", [False, True])
def test_a_stopped_engine_holds_no_weights_and_no_keys(folder, options, long_prompt):
    """At once and without the collector, for which the engine had frozen everything it has."""
    engine = Engine(str(folder), max_total_tokens=512, **options)
    model = engine._loop.core.model
    kept = [weakref.ref(model), weakref.ref(model.kv_cache), weakref.ref(engine._loop.core.runner)]
    del model
    engine.generate("one " * (60 if long_prompt else 2), {"max_new_tokens": 2})
    gc.disable()
    try:
        engine.shutdown()
        assert [ref() for ref in kept] == [None, None, None]
    finally:
        gc.enable()
    assert gc.get_freeze_count() == 0
    assert engine.stats()["num_running_reqs"] == 0
