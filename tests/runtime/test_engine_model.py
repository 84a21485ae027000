"""The engine on the default model's real weights, against transformers, in float32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from sglang_lite.runtime.default_model import default_model_path
from sglang_lite.runtime.engine import Engine

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

TOKENS = 64
QUESTIONS = [
    "What is the capital of France?",
    "Name three fruits that are red.",
    "Write a short poem about the sea.",
    "How do airplanes fly?",
    "Explain photosynthesis to a child.",
    "List the planets of the solar system.",
    "Translate 'good morning' into Spanish.",
    "What is 17 plus 25?",
    "Write a Python function that adds two numbers.",
    "Give me a recipe for pancakes.",
]
STORY = (
    "The lighthouse keeper wrote everything down: the ships, the storms, the birds and the "
    "strange lights that he saw over the water in the autumn of that year. "
) * 16
GREEDY = {"temperature": 0, "max_new_tokens": TOKENS}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    threads = torch.get_num_threads()
    torch.set_num_threads(min(threads, 2))
    with Engine(dtype="float32", max_total_tokens=8192) as engine:
        yield engine
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def prompts(engine: Engine) -> list[list[int]]:
    return [
        engine.tokenizer.apply_chat_template([{"role": "user", "content": question}])
        for question in QUESTIONS
    ]


@pytest.fixture(scope="module")
def fork_prompts(engine: Engine) -> list[list[int]]:
    prefix = engine.tokenizer.encode(STORY)
    assert 450 <= len(prefix) <= 650
    return [prefix + engine.tokenizer.encode(f" Entry number {i}: the") for i in range(10)]


class Reference:
    """transformers' greedy generation; kept for the module, because it is slow."""

    def __init__(self, eos_token_ids: tuple[int, ...]) -> None:
        from transformers import AutoModelForCausalLM

        self.eos = list(eos_token_ids)
        self.model = AutoModelForCausalLM.from_pretrained(default_model_path(), dtype="float32")
        self.known: dict[tuple[int, ...], list[int]] = {}

    def __call__(self, prompt: list[int], count: int = TOKENS) -> list[int]:
        key = (*prompt, -count)
        if key not in self.known:
            ids = torch.tensor([prompt])
            # The mask is needed: without it, generate() hides prompt tokens equal to the pad id.
            made = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=count,
                eos_token_id=self.eos,
                pad_token_id=self.eos[0],
            )
            self.known[key] = made[0, len(prompt) :].tolist()
        return self.known[key]


@pytest.fixture(scope="module")
def reference(engine: Engine) -> Reference:
    return Reference(engine.tokenizer.eos_token_ids)


def test_alone_equals_transformers(engine: Engine, prompts: list, reference: Reference) -> None:
    engine.flush_cache()
    for prompt in prompts:
        result = engine.generate(input_ids=prompt, sampling_params=GREEDY)
        assert result["output_ids"] == reference(prompt)


def test_batched_equals_transformers(engine: Engine, prompts: list, reference: Reference) -> None:
    engine.flush_cache()
    results = engine.generate(input_ids=prompts, sampling_params=GREEDY)
    assert [r["output_ids"] for r in results] == [reference(p) for p in prompts]
    engine.check()


def test_cached_equals_transformers(engine: Engine, prompts: list, reference: Reference) -> None:
    engine.generate(input_ids=prompts, sampling_params={**GREEDY, "max_new_tokens": 1})
    results = engine.generate(input_ids=prompts, sampling_params=GREEDY)
    assert [r["meta_info"]["cached_tokens"] for r in results] == [len(p) - 1 for p in prompts]
    assert [r["output_ids"] for r in results] == [reference(p) for p in prompts]


def test_tiny_chunks_and_preemption_equal_transformers(prompts: list, reference: Reference) -> None:
    options = {"max_total_tokens": 300, "chunked_prefill_size": 7, "schedule_policy": "lpm"}
    with Engine(dtype="float32", **options) as tight:
        # As if requests were expected to end at once: too many are admitted.
        tight._loop.core.scheduler.new_token_ratio = 0.0
        results = tight.generate(input_ids=prompts[:6], sampling_params=GREEDY)
        assert tight.stats()["num_retracted_reqs"] > 0
        tight.check()
    assert [r["output_ids"] for r in results] == [reference(p) for p in prompts[:6]]


def test_forks_compute_their_prefix_once(
    engine: Engine, fork_prompts: list, reference: Reference
) -> None:
    engine.flush_cache()
    before = engine.stats()["computed_tokens_total"]
    results = engine.generate(input_ids=fork_prompts, sampling_params=GREEDY)
    computed = engine.stats()["computed_tokens_total"] - before
    generated = sum(r["meta_info"]["completion_tokens"] for r in results)
    prefix = len(engine.tokenizer.encode(STORY))
    added = sum(len(prompt) - prefix for prompt in fork_prompts)
    assert computed - generated <= prefix + added + len(fork_prompts)
    assert [r["output_ids"] for r in results] == [reference(p) for p in fork_prompts]
    engine.check()


def test_seeded_samples_do_not_depend_on_company(engine: Engine, prompts: list) -> None:
    params = {"temperature": 0.9, "top_p": 0.95, "max_new_tokens": 16, "seed": 11}
    alone = engine.generate(input_ids=prompts[0], sampling_params=params)["output_ids"]
    others = {"temperature": 1.0, "max_new_tokens": 20}
    together = engine.generate(
        input_ids=[*prompts[1:6], prompts[0]], sampling_params=[others] * 5 + [params]
    )
    assert together[-1]["output_ids"] == alone


def test_streamed_text_equals_the_decoded_ids(engine: Engine, prompts: list) -> None:
    params = {"temperature": 0, "max_new_tokens": 40}
    results = list(engine.generate(input_ids=prompts[2], sampling_params=params, stream=True))
    last = results[-1]
    assert len(results) > 5
    assert all(last["text"].startswith(each["text"]) for each in results)
    assert last["text"] == engine.tokenizer.decode(last["output_ids"])


def test_logprobs_equal_those_of_transformers(
    engine: Engine, prompts: list, reference: Reference
) -> None:
    prompt = prompts[5]
    engine.generate(input_ids=prompt, sampling_params={"max_new_tokens": 1})
    result = engine.generate(
        input_ids=prompt,
        sampling_params={"temperature": 1.3, "max_new_tokens": 8, "seed": 5},
        return_logprob=True,
        logprob_start_len=10,
        top_logprobs_num=3,
        token_ids_logprob=[5, 7],
    )
    tokens = prompt + result["output_ids"]
    with torch.inference_mode():
        logits = reference.model(torch.tensor([tokens])).logits[0].float()
    expected = torch.log_softmax(logits, dim=-1)
    meta = result["meta_info"]
    entries = meta["input_token_logprobs"] + meta["output_token_logprobs"]
    tops = meta["input_top_logprobs"] + meta["output_top_logprobs"]
    chosen = meta["input_token_ids_logprobs"] + meta["output_token_ids_logprobs"]
    assert len(entries) == len(tops) == len(chosen) == len(tokens) - 10
    for position, (entry, top, ids) in enumerate(zip(entries, tops, chosen, strict=True), start=10):
        row = expected[position - 1]
        assert entry[1] == tokens[position]
        assert entry[0] == pytest.approx(row[tokens[position]].item(), abs=2e-3)
        assert [t[0] for t in top] == pytest.approx(row.topk(3).values.tolist(), abs=2e-3)
        assert [c[0] for c in ids] == pytest.approx(row[[5, 7]].tolist(), abs=2e-3)
