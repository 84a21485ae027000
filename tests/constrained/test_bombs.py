"""Small constraints that ask for much: each is compiled and walked, or refused with a figure.

That none of them hangs is the test; what takes how long is for the benchmarks.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from sglang_lite.constrained import GrammarCompiler, GrammarMatcher
from sglang_lite.constrained.budget import searching, time_limit
from sglang_lite.constrained.compiler import CompiledGrammar
from sglang_lite.errors import GrammarTooComplex, UnsatisfiableSchema, UnsupportedSchema
from tests.constrained.core_reference import allowed_by_mask
from tests.constrained.core_vocabularies import byte_level
from tests.constrained.schemas import holds_value, language

COMPILER = GrammarCompiler(byte_level())
Bomb = Callable[[], CompiledGrammar]


def schema(value: Any, **options: Any) -> Bomb:
    return lambda: COMPILER.compile_json_schema(json.dumps(value), **options)


def regex(pattern: str) -> Bomb:
    return lambda: COMPILER.compile_regex(pattern)


def grammar(text: str) -> Bomb:
    return lambda: COMPILER.compile_grammar(text)


def nested(depth: int, wrap: Callable[[int, Any], Any], inner: Any) -> Any:
    for level in range(depth):
        inner = wrap(level, inner)
    return inner


CHAIN = {f"a{i}": [f"a{i + 1}"] for i in range(200)}
COMPILED = {
    "nested counts": regex("(((((a{0,99}b?){0,99}c?){0,99}d?){0,99}e?){0,99}f?){0,99}"),
    "states that grow": regex("(a|b)*a(a|b){60}c"),
    "classes with bounds": regex(r"(\p{L}{1,50}\p{N}{1,50}\p{P}{0,50}){1,50}"),
    "look-around in branches": regex(
        "|".join(f"(?={c}.*{d})(?<!{d}).{{3,30}}x" for c in "abcd" for d in "abcd")
    ),
    "many negative look-aheads": regex(
        "".join(f"(?!.*{c}{d})" for c in "abcdefgh" for d in "abc") + "[a-h]{40}"
    ),
    "long literal": regex("x" * 100_000),
    "long strings": schema({"type": "string", "minLength": 100_000, "pattern": "^[a-z ]*$"}),
    "long constant": schema({"const": "x" * 200_000}),
    "many numbers refused": schema({"type": "integer", "not": {"enum": list(range(0, 20_000, 2))}}),
    "round multiples": schema({"type": "integer", "multipleOf": 10**300}),
    "tagged branches": schema(
        {
            "type": "object",
            "oneOf": [
                {"properties": {"t": {"const": f"k{i}"}, "v": {"minimum": i}}, "required": ["t"]}
                for i in range(200)
            ],
        }
    ),
    "dependent chain": schema({"dependentRequired": CHAIN}, property_order="any"),
    "conditions in conditions": schema(
        nested(
            20,
            lambda n, inner: {
                "if": {"properties": {"t": {"const": n}}, "required": ["t"]},
                "then": {"required": [f"k{n}"]},
                "else": inner,
            },
            {"required": ["z"]},
        )
    ),
    "huge counts": schema({"items": {"type": "integer"}, "minItems": 10**9, "contains": {}}),
    "many members of many layers": schema(
        {"allOf": [{"properties": {f"p{i}": {"type": "string"}}} for i in range(600)]}
    ),
    "references": schema(
        {"$defs": {f"a{i}": {"items": {"$ref": f"#/$defs/a{(i * 7) % 999}"}} for i in range(999)}}
        | {"$ref": "#/$defs/a1"}
    ),
    "nullable loops": grammar('root ::= (("a"? "b"?)* x?)* "c"\nx ::= y? x? "a"?\ny ::= x? "b"?'),
    "doubling rules": grammar(
        "root ::= r0\n"
        + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60))
        + '\nr60 ::= "z"'
    ),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_and_walked(name: str) -> None:
    compiled = COMPILED[name]()
    draw = random.Random(1)
    matcher = GrammarMatcher(compiled)
    for _ in range(8):
        allowed = sorted(allowed_by_mask(compiled, matcher._state))
        assert allowed
        assert matcher.accept_token(draw.choice(allowed))
        if matcher.is_terminated():
            break


REFUSED = {
    "look-aheads together": (
        regex("".join(f"(?=.*{c})" for c in "abcdefghijklmnopqrst") + ".*"),
        "open whether",
    ),
    "growing repeats": (regex("(ab|ba|aab|bba|abab){500,1000}z"), "positions"),
    "count": (regex("(ab|c){999999999}"), "limit is 10000000"),
    "groups": (regex("(" * 2000 + "a" + ")" * 2000), "100 deep"),
    "refused multiples": (
        schema(
            {"type": "integer", "allOf": [{"not": {"multipleOf": p}} for p in (7, 11, 13, 17, 19)]}
        ),
        "remainders",
    ),
    "listed objects": (schema({"enum": [{"a": i} for i in range(5_001)]}), "lists 5001 objects"),
    "dependent chain": (
        schema({"dependentRequired": {f"a{i}": [f"a{i + 1}"] for i in range(3000)}}),
        "3000 presence rules",
    ),
    "patterns of keys": (
        schema({"patternProperties": {f"x{i}": {"minimum": i} for i in range(20)}}),
        "64 classes",
    ),
    "depth": (schema(nested(200, lambda _, inner: {"allOf": [inner]}, {"type": "null"})), "120"),
    "empty texts": (
        grammar(
            "root ::= r0\n"
            + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60))
            + '\nr60 ::= "z"?'
        ),
        "ways to go on",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_figure(name: str) -> None:
    compile, figure = REFUSED[name]
    with pytest.raises(GrammarTooComplex, match=figure):
        compile()


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
