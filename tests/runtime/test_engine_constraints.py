"""Constraints in the loop: grammar, EOS, stops and length agree on one end, forced runs too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sglang_lite.runtime.engine import Engine
from tests.runtime.toy import EOS, greedy, toy_engine

pytestmark = pytest.mark.usefixtures("both_schedules")

STOP = {"type": "stop"}


@pytest.fixture
def engine() -> Iterator[Engine]:
    with toy_engine() as engine:
        yield engine
        engine.check()


@pytest.mark.parametrize(
    ("fields", "text", "reason"),
    [
        # A stop inside forced text cuts the run.
        ({"regex": "The answer is [0-9]", "stop": "swer"}, "The an", {"matched": "swer"}),
        ({"regex": "The answer is [0-9]", "stop_regex": "an."}, "The ans", {"matched": "an."}),
        ({"regex": "abc", "stop": "c"}, "ab", {"matched": "c"}),
        ({"regex": "abc", "stop": "cd"}, "abc", {}),
        # The grammar's own end comes before a stop that needs more.
        ({"regex": "abc", "min_new_tokens": 20, "stop": "b"}, "abc", {}),
        # A stop id ends even a text that the grammar would go on with.
        ({"regex": "a{5}", "stop_token_ids": [64]}, "", {"matched": 64}),
        ({"regex": "abc", "ignore_eos": True}, "abc", {}),
    ],
)
def test_grammar_and_stops_agree(engine: Engine, fields: dict, text: str, reason: dict) -> None:
    result = engine.generate("x", greedy(50, **fields))
    assert result["text"] == text
    assert result["meta_info"]["finish_reason"] == {**STOP, **reason}


def test_eos_ends_where_the_grammar_may_end_and_nowhere_else() -> None:
    with toy_engine(eos_bias=100.0) as engine:
        result = engine.generate("x", greedy(50, regex="([a-d][0-9])+"))
        assert len(result["text"]) == 2, "EOS is the favourite, and allowed after each pair"
        assert result["output_ids"][-1] == EOS
        assert result["meta_info"]["finish_reason"] == {**STOP, "matched": EOS}
        # An EOS is no free text, so ignoring it does not make the grammar go on past its end.
        ignored = engine.generate("x", greedy(50, regex="([a-d][0-9])+", ignore_eos=True))
        assert ignored["text"] == result["text"]
        at_least = engine.generate("x", greedy(50, regex="([a-d][0-9])+", min_new_tokens=7))
        assert len(at_least["text"]) == 8, "the first end after seven tokens"


@pytest.mark.parametrize("limit", [1, 5, 26, 27, 28])
def test_the_length_cuts_a_forced_run(engine: Engine, limit: int) -> None:
    pattern = r"The answer is [0-9], as always\."
    whole = engine.generate("x", greedy(50, regex=pattern))
    result = engine.generate("x", greedy(limit, regex=pattern))
    assert result["text"] == whole["text"][:limit]
    assert result["meta_info"]["completion_tokens"] == min(limit, 27)
    ends = "length" if limit <= 27 else "stop"
    assert result["meta_info"]["finish_reason"]["type"] == ends


def test_logit_bias_and_penalties_stay_inside_the_grammar(engine: Engine) -> None:
    fields = {"logit_bias": {0: 100, 65: 5}, "repetition_penalty": 1.9, "frequency_penalty": 2}
    result = engine.generate("x", greedy(30, regex="[a-z]{20}", **fields))
    assert len(result["text"]) == 20
    assert result["text"].isalpha()
    assert "b" in result["text"], "the allowed one of the two"
