"""Greedy tokens equal transformers', in float32, on real weights, however they are computed.

`make parity` runs all of it with 20 prompts of 200 tokens; without the marker "slow" a part does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch

from sglang_lite.runtime.engine import Engine
from sglang_lite.runtime.host_tier import HostTier
from tests.runtime.bench import Always
from tests.runtime.reference import is_greedy

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

TOKENS = 200
LONG_ANSWERS = [
    "Write a short poem about the sea.",
    "How do airplanes fly?",
    "Explain photosynthesis to a child.",
    "What should I pack for a week in the mountains in October, if it may rain and snow?",
    "List the planets of the solar system.",
    "Write a Python function that adds two numbers.",
    "Give me a recipe for pancakes.",
    "Tell me about the history of the bicycle, from the first ones to those of today.",
    "JSON with a name and an age, please.",
    "Write a long story about a fox who wants to learn to read.",
    "Explain how a steam engine works, step by step.",
    "Describe the life of a fisherman in a small village.",
    "Write a letter from a sailor to his sister.",
    "Explain in detail how bread is made, from the field to the table.",
    "Write about the history of writing.",
    "Tell me a story about two brothers and a well.",
    "Describe a city in the year 2100.",
    "Explain what a database index is and when it helps.",
    "Give me ten tips for learning a language.",
    "Tell me a story about the number 7 and what it does",
]
SHORT_ANSWERS = [
    "What is the capital of France?",
    "Name three fruits that are red.",
    "Translate 'good morning' into Spanish.",
    "What is 17 plus 25?",
    "Continue the sequence: 2, 4, 8, 16,",
]


class Size(NamedTuple):
    """So many of the prompts, so many tokens each."""

    prompts: int
    tokens: int


SOME = pytest.param(Size(4, 24), id="some")
ALL = pytest.param(Size(20, TOKENS), id="all", marks=pytest.mark.slow)


@pytest.fixture(params=[SOME, ALL])
def size(request: pytest.FixtureRequest) -> Size:
    return request.param


def sized(name: str, always: list[Any], with_all: list[Any]) -> pytest.MarkDecorator:
    """The parameter ``name`` with both sizes for ``always``, only with all for the others."""
    cases = [pytest.param(*SOME.values, value, id=f"some-{value}") for value in always]
    cases += [
        pytest.param(*ALL.values, value, id=f"all-{value}", marks=pytest.mark.slow)
        for value in [*always, *with_all]
    ]
    return pytest.mark.parametrize(("size", name), cases)


@pytest.fixture(scope="module", autouse=True)
def two_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(min(os.cpu_count() or 1, 2))
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def engine(expected: list[list[int]]) -> Iterator[Engine]:
    """Of each test its own: two engines at a time would keep each other's helpers asleep."""
    with new_engine() as engine:
        yield engine
        engine.check()


def new_engine() -> Engine:
    return Engine(dtype="float32", max_total_tokens=16_384)


def encode(engine: Engine, questions: list[str]) -> list[list[int]]:
    return [
        engine.tokenizer.apply_chat_template([{"role": "user", "content": question}])
        for question in questions
    ]


class Reference(NamedTuple):
    prompts: list[list[int]]
    answers: list[list[int]]


@pytest.fixture(scope="module")
def reference(two_threads: None) -> Reference:
    """All prompts in one batch; every token is transformers' choice."""
    with new_engine() as engine:
        prompts = encode(engine, LONG_ANSWERS)
        answers = generate(engine, prompts, TOKENS)
    for prompt, outputs in zip(prompts, answers, strict=True):
        assert len(outputs) == TOKENS
        assert is_greedy(tuple(prompt), tuple(outputs))
    return Reference(prompts, answers)


@pytest.fixture(scope="module")
def prompts(reference: Reference) -> list[list[int]]:
    return reference.prompts


@pytest.fixture(scope="module")
def expected(reference: Reference) -> list[list[int]]:
    return reference.answers


def generate(engine: Engine, prompts: list[list[int]], count: int) -> list[list[int]]:
    params = {"temperature": 0, "max_new_tokens": count}
    return [r["output_ids"] for r in engine.generate(input_ids=prompts, sampling_params=params)]


def cut(expected: list[list[int]], size: Size) -> list[list[int]]:
    return [tokens[: size.tokens] for tokens in expected[: size.prompts]]


def test_batched(expected: list[list[int]]) -> None:
    assert [len(outputs) for outputs in expected] == [TOKENS] * 20


def test_short_answers_end_where_transformers_ends(engine: Engine) -> None:
    prompts = encode(engine, SHORT_ANSWERS)
    for prompt, outputs in zip(prompts, generate(engine, prompts, 60), strict=True):
        assert outputs[-1] in engine.tokenizer.eos_token_ids
        assert is_greedy(tuple(prompt), tuple(outputs))


@pytest.mark.parametrize("part", range(4))
def test_alone(engine: Engine, prompts: list, expected: list, size: Size, part: int) -> None:
    some = prompts[part : size.prompts : 4]
    alone = [generate(engine, [prompt], size.tokens)[0] for prompt in some]
    assert alone == cut(expected, size)[part::4]


def test_cached_in_full(engine: Engine, prompts: list, expected: list, size: Size) -> None:
    generate(engine, prompts, 1)
    before = engine.stats()["cached_tokens_total"]
    assert generate(engine, prompts[: size.prompts], size.tokens) == cut(expected, size)
    cached = engine.stats()["cached_tokens_total"] - before
    assert cached == sum(len(prompt) - 1 for prompt in prompts[: size.prompts])


@sized("share", [0.5], [0.1, 0.9])
def test_cached_in_part(
    engine: Engine, prompts: list, expected: list, size: Size, share: float
) -> None:
    """A part of the prompt, or the prompt and a part of what follows it."""
    wanted = cut(expected, size)
    for ahead in (0, size.tokens // 2):
        whole = [p + w[:ahead] for p, w in zip(prompts, wanted, strict=False)]
        engine.flush_cache()
        generate(engine, [tokens[: int(len(tokens) * share)] for tokens in whole], 1)
        rest = generate(engine, whole, size.tokens - ahead)
        assert rest == [w[ahead:] for w in wanted]


@sized("chunk", [16, 65], [1, 15, 17, 63, 64])
def test_chunked(prompts: list, expected: list, size: Size, chunk: int) -> None:
    """Prompt and answer go through as one prompt in chunks; each first choice is the next token."""
    if chunk == 1:
        size = Size(4, size.tokens)
    wanted = cut(expected, size)
    params = {"temperature": 0, "max_new_tokens": 1}
    with Engine(dtype="float32", max_total_tokens=8192, chunked_prefill_size=chunk) as engine:
        for prompt, outputs in zip(prompts, wanted, strict=False):
            result = engine.generate(
                input_ids=prompt + outputs[:-1],
                sampling_params=params,
                return_logprob=True,
                logprob_start_len=len(prompt),
                top_logprobs_num=1,
            )
            tops = result["meta_info"]["input_top_logprobs"]
            assert [top[0][1] for top in tops] + result["output_ids"] == outputs


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_preempted(prompts: list, expected: list, size: Size, policy: str) -> None:
    options = {"max_total_tokens": 300, "chunked_prefill_size": 33, "schedule_policy": policy}
    if size.tokens < TOKENS:
        options["max_total_tokens"] = 120
    with Engine(dtype="float32", **options) as tight:
        # As if requests were expected to end at once: too many are admitted.
        tight._loop.core.scheduler.new_token_ratio = 0.0
        assert generate(tight, prompts[: size.prompts], size.tokens) == cut(expected, size)
        assert tight.stats()["num_retracted_reqs"] > 0
        tight.check()


@sized("policy", ["lpm"], ["fcfs", "dfs-weight"])
def test_scheduled(prompts: list, expected: list, size: Size, policy: str) -> None:
    """Requests come and go, so that rows join and leave the batch all the time."""
    options = {"schedule_policy": policy, "max_running_requests": 3}
    with Engine(dtype="float32", max_total_tokens=8192, **options) as engine:
        assert generate(engine, prompts[: size.prompts], size.tokens) == cut(expected, size)


def test_swapped(
    prompts: list, expected: list, size: Size, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefixes that were evicted come back from host memory."""
    wanted, half = cut(expected, size), size.tokens // 2
    with Engine(dtype="float32", max_total_tokens=400, enable_hierarchical_cache=True,
                hicache_ratio=30.0) as tight:  # fmt: skip
        host = tight._loop.core.scheduler.host
        assert isinstance(host, HostTier)
        host.cost = Always()
        generate(tight, prompts[: size.prompts], half)
        tokens = [p + w[:half] for p, w in zip(prompts, wanted, strict=False)]
        assert generate(tight, tokens, size.tokens - half) == [w[half:] for w in wanted]
        assert tight.stats()["host_cached_tokens_total"] > 0 or size.tokens < TOKENS
        tight.check()


def test_forked(engine: Engine, prompts: list, expected: list, size: Size) -> None:
    """Prompts that continue what a running request has generated so far."""
    for prompt, wanted in zip(prompts, cut(expected, size), strict=False):
        params: dict[str, Any] = {"temperature": 0, "max_new_tokens": len(wanted)}
        parent = engine.generate(input_ids=prompt, sampling_params=params, stream=True)
        made = 0
        for result in parent:
            made = len(result["output_ids"])
            if made > len(wanted) // 2:
                break
        computed = engine.stats()["computed_tokens_total"]
        child = engine.generate(
            input_ids=prompt + wanted[:made],
            sampling_params={"temperature": 0, "max_new_tokens": 8},
        )
        assert child["output_ids"] == wanted[made : made + 8]
        assert child["meta_info"]["cached_tokens"] == len(prompt) + made - 1
        assert engine.stats()["computed_tokens_total"] > computed
        assert [*parent][-1]["output_ids"] == wanted
