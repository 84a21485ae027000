"""Deterministic mode on the default model's weights, in bfloat16 and in four bits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sglang_lite.runtime.engine import Engine

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=[None, "int4"], ids=["bfloat16", "int4"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with Engine(
        dtype="bfloat16", quantization=request.param, deterministic=True, max_total_tokens=512
    ) as engine:
        yield engine
        engine.check()


def test_alone_together_and_cached_give_identical_bits(engine: Engine) -> None:
    """Log probabilities are equal to the last bit, not only the tokens."""
    texts = ["The lighthouse keeper wrote: " * n + "and then" for n in (1, 3, 16, 30)]
    params = {"temperature": 0, "max_new_tokens": 12}

    def run(prompts: list[str]) -> list:
        results = engine.generate(prompts, params, return_logprob=True)
        return [(r["output_ids"], r["meta_info"]["output_token_logprobs"]) for r in results]

    solo = []
    for text in texts:
        engine.flush_cache()
        solo += run([text])
    assert run(texts) == solo
    cached = engine.generate(texts, params)
    assert [r["meta_info"]["cached_tokens"] > 0 for r in cached] == [False, False, True, True]
    assert [r["output_ids"] for r in cached] == [ids for ids, _ in solo]
    assert run(texts[::-1]) == solo[::-1]


def test_random_company_and_preemption_give_the_same_samples(engine: Engine) -> None:
    """Seeded samples, so that a changed bit in a probability can change the text."""
    texts = ["Once upon a time, " * n + "there was" for n in (1, 6, 20)]
    params = {"temperature": 1.0, "top_p": 0.95, "max_new_tokens": 24, "seed": 4}
    solo = [engine.generate(text, params)["output_ids"] for text in texts]
    scheduler = engine._loop.core.scheduler

    def preempt() -> None:
        for request in list(scheduler.running):
            scheduler.preempt(request)

    company = [f"{word} and twenty " * 20 for word in ("One", "Two")]
    others = {"temperature": 1.0, "max_new_tokens": 30, "ignore_eos": True}
    stream = engine.generate([*texts, *company], [*[params] * 3, *[others] * 2], stream=True)
    last = {}
    for number, result in enumerate(stream):
        last[result["index"]] = result["output_ids"]
        if number in (20, 50):
            engine._loop.call(preempt)
    assert scheduler.preempted_total > 4
    assert [last[i] for i in range(3)] == solo
