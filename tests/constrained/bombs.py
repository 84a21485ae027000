"""Small constraints that ask for much, for the tests and for ``benchmarks/bombs.py``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sglang_lite.constraint import Constraint, Grammar, JsonSchema, Regex


def schema(value: Any, **options: Any) -> Constraint:
    return JsonSchema(json.dumps(value), **options)


def nested(depth: int, wrap: Callable[[int, Any], Any], inner: Any) -> Any:
    for level in range(depth):
        inner = wrap(level, inner)
    return inner


CHAIN = {f"a{i}": [f"a{i + 1}"] for i in range(200)}
COMPILED: dict[str, Constraint] = {
    "nested counts": Regex("(((((a{0,99}b?){0,99}c?){0,99}d?){0,99}e?){0,99}f?){0,99}"),
    "states that grow": Regex("(a|b)*a(a|b){60}c"),
    "classes with bounds": Regex(r"(\p{L}{1,50}\p{N}{1,50}\p{P}{0,50}){1,50}"),
    "look-around in branches": Regex(
        "|".join(f"(?={c}.*{d})(?<!{d}).{{3,30}}x" for c in "abcd" for d in "abcd")
    ),
    "many negative look-aheads": Regex(
        "".join(f"(?!.*{c}{d})" for c in "abcdefgh" for d in "abc") + "[a-h]{40}"
    ),
    "long literal": Regex("x" * 100_000),
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
    "nullable loops": Grammar('root ::= (("a"? "b"?)* x?)* "c"\nx ::= y? x? "a"?\ny ::= x? "b"?'),
    "doubling rules": Grammar(
        "root ::= r0\n"
        + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60))
        + '\nr60 ::= "z"'
    ),
}
"""Within the budgets."""

REFUSED: dict[str, tuple[Constraint, str]] = {
    "look-aheads together": (
        Regex("".join(f"(?=.*{c})" for c in "abcdefghijklmnopqrst") + ".*"),
        "open whether",
    ),
    "growing repeats": (Regex("(ab|ba|aab|bba|abab){500,1000}z"), "positions"),
    "count": (Regex("(ab|c){999999999}"), "limit is 10000000"),
    "groups": (Regex("(" * 2000 + "a" + ")" * 2000), "100 deep"),
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
        schema({"patternProperties": {f"x{i}": {"minimum": i} for i in range(8)}}),
        "64 classes",
    ),
    "depth": (schema(nested(200, lambda _, inner: {"allOf": [inner]}, {"type": "null"})), "120"),
    "empty texts": (
        Grammar(
            "root ::= r0\n"
            + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60))
            + '\nr60 ::= "z"?'
        ),
        "ways to go on",
    ),
    "anyOf of objects": (
        schema({"anyOf": [{"const": {"a": n}} for n in range(20_000)]}),
        "anyOf of 20000 schemas; at most 5000",
    ),
    "oneOf of objects": (
        schema({"oneOf": [{"const": {"a": n}} for n in range(20_000)]}),
        "20000 alternatives",
    ),
    "prefixItems of 20,000 numbers": (
        schema({"prefixItems": [{"type": "integer", "minimum": n} for n in range(20_000)]}),
        "5000 different",
    ),
    "properties of 20,000 numbers": (
        schema({"properties": {f"p{n}": {"maximum": n, "type": "number"} for n in range(20_000)}}),
        "5000 different",
    ),
    "oneOf of open objects": (
        schema({"oneOf": [{"required": [f"a{n}"]} for n in range(300)]}),
        "40000 intersections",
    ),
}
"""Beyond a budget, with what its error says."""

LARGE: dict[str, Constraint] = {
    "prefixItems of 4,000 numbers": schema(
        {"prefixItems": [{"type": "integer", "minimum": n} for n in range(4000)]}
    ),
    "properties of 4,000 numbers": schema(
        {"properties": {f"p{n}": {"type": "number", "maximum": n} for n in range(4000)}}
    ),
    "enum of 100,000 strings": schema({"enum": [f"value {n}" for n in range(100_000)]}),
    "anyOf of 20,000 strings": schema({"anyOf": [{"const": f"v{n}"} for n in range(20_000)]}),
    "oneOf of 1,000 objects": schema({"oneOf": [{"const": {"a": n}} for n in range(1000)]}),
    "2,000 patterns": schema(
        {"properties": {f"p{n}": {"pattern": f"^a{{{n}}}b"} for n in range(2000)}}
    ),
}
"""Long rather than tricky: within the budgets, but too slow for tests that run often."""
