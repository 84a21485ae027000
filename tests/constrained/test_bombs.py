"""Small constraints that ask for much: each is compiled and walked, or refused with a figure.

That none of them hangs is the test; what takes how long ``benchmarks/bombs.py`` prints.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from sglang_lite.constrained import GrammarCompiler, GrammarMatcher
from sglang_lite.constrained.budget import searching, time_limit
from sglang_lite.errors import GrammarTooComplex, UnsatisfiableSchema, UnsupportedSchema
from tests.constrained.bombs import COMPILED, REFUSED
from tests.constrained.core_reference import allowed_by_mask
from tests.constrained.core_vocabularies import byte_level
from tests.constrained.schemas import holds_value, language

COMPILER = GrammarCompiler(byte_level())


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_and_walked(name: str) -> None:
    compiled = COMPILER.compile(COMPILED[name])
    draw = random.Random(1)
    matcher = GrammarMatcher(compiled)
    for _ in range(8):
        allowed = sorted(allowed_by_mask(compiled, matcher._state))
        assert allowed
        assert matcher.accept_token(draw.choice(allowed))
        if matcher.is_terminated():
            break


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_figure(name: str) -> None:
    constraint, figure = REFUSED[name]
    with pytest.raises(GrammarTooComplex, match=figure):
        COMPILER.compile(constraint)


def test_many_contains_are_refused_by_name() -> None:
    wanted = [{"contains": {"const": i}} for i in range(20)]
    with pytest.raises(UnsupportedSchema, match="too many combinations"):
        language({"type": "array", "allOf": wanted})


def test_searches_have_a_budget_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_lite.constrained.budget.SEARCH_SECONDS", -1.0)
    with time_limit(100), pytest.raises(GrammarTooComplex, match="s of search"):
        COMPILER.compile_regex("(?=.*budget.*)[a-z]{3,40}")
    with time_limit(100), searching():
        pass


def test_tags_beside_a_reference_count_where_the_draft_says_so() -> None:
    def tagged(draft: str) -> dict[str, Any]:
        branches = [
            {"properties": {"t": {"$ref": "#/$defs/s", "const": tag}}, "required": ["t"]}
            for tag in "ab"
        ]
        return {"$schema": draft, "$defs": {"s": {"type": "string"}}, "oneOf": branches}

    new, old = (
        "https://json-schema.org/draft/2020-12/schema",
        "http://json-schema.org/draft-07/schema#",
    )
    assert holds_value(tagged(new), {"t": "a"})
    with pytest.raises(UnsatisfiableSchema):
        language(tagged(old))
