"""The engine on the default model's real weights, against transformers, in float32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from sglang_lite.runtime.engine import Engine
from tests.runtime.reference import is_greedy, transformers_logits

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

QUESTIONS = [
    "What is the capital of France?",
    "Name three fruits that are red.",
    "Write a short poem about the sea.",
    "How do airplanes fly?",
    "Explain photosynthesis to a child.",
    "What is 17 plus 25?",
]
STORY = (
    "The lighthouse keeper wrote everything down: the ships, the storms, the birds and the "
    "strange lights that he saw over the water in the autumn of that year. "
) * 16


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
    return [prefix + engine.tokenizer.encode(f" Entry number {i}: the") for i in range(8)]


def test_forks_compute_their_prefix_once(engine: Engine, fork_prompts: list) -> None:
    engine.flush_cache()
    before = engine.stats()["computed_tokens_total"]
    params = {"temperature": 0, "max_new_tokens": 24}
    results = engine.generate(input_ids=fork_prompts, sampling_params=params)
    computed = engine.stats()["computed_tokens_total"] - before
    generated = sum(r["meta_info"]["completion_tokens"] for r in results)
    prefix = len(engine.tokenizer.encode(STORY))
    added = sum(len(prompt) - prefix for prompt in fork_prompts)
    assert computed - generated <= prefix + added + len(fork_prompts)
    for fork in (0, 7):
        assert is_greedy(tuple(fork_prompts[fork]), tuple(results[fork]["output_ids"]))
    engine.check()


def test_a_third_turn_prefills_only_what_is_new(engine: Engine) -> None:
    engine.flush_cache()
    messages: list[dict[str, str]] = []
    for question in ("My name is Ann.", "I live in Rome.", "Where do I live?"):
        messages.append({"role": "user", "content": question})
        prompt = engine.tokenizer.apply_chat_template(messages)
        params = {"temperature": 0, "max_new_tokens": 20, "stop_token_ids": []}
        before = engine.stats()["computed_tokens_total"]
        result = engine.generate(input_ids=prompt, sampling_params=params)
        computed = engine.stats()["computed_tokens_total"] - before
        messages.append({"role": "assistant", "content": result["text"]})
        known = len(prompt) - result["meta_info"]["cached_tokens"]
        assert computed == known + result["meta_info"]["completion_tokens"] - 1
    new = len(prompt) - len(engine.tokenizer.apply_chat_template(messages[:3]))
    assert known <= new + 1


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


def test_logprobs_equal_those_of_transformers(engine: Engine, prompts: list) -> None:
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
    expected = torch.log_softmax(transformers_logits(tokens, len(tokens)), dim=-1)
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


def test_forced_text_equals_sampled_text(engine: Engine, prompts: list) -> None:
    """Whether or not log probabilities are asked for, and cut as the tokenizer would cut it."""
    schema = {
        "type": "object",
        "properties": {
            "topic_of_question": {"enum": ["science", "geography", "poetry", "arithmetic"]},
            "number_of_words": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["topic_of_question", "number_of_words"],
        "additionalProperties": False,
    }
    params = {"temperature": 0, "max_new_tokens": 60, "json_schema": schema}
    forced = engine.generate(input_ids=prompts, sampling_params=params)
    sampled = engine.generate(input_ids=prompts, sampling_params=params, return_logprob=True)
    assert [r["output_ids"] for r in forced] == [r["output_ids"] for r in sampled]
    assert [r["text"] for r in forced] == [r["text"] for r in sampled]
    assert all(r["meta_info"]["forced_tokens"] >= 6 for r in forced)
    assert not any(r["meta_info"]["forced_tokens"] for r in sampled)
    key = engine.tokenizer.encode('"topic_of_question')
    assert all(key[1:] == r["output_ids"][3 : 2 + len(key)] for r in forced)
