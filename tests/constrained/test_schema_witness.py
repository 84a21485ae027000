"""Objects that must break a rule with some key, listed or not: negated rules about other keys."""

from __future__ import annotations

import itertools
import json
import random

import jsonschema
import pytest

from sglang_lite.errors import UnsatisfiableSchema
from tests.constrained.schemas import holds, holds_value

BROKEN = [
    {"additionalProperties": {"type": "string"}},
    {"additionalProperties": False},
    {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"enum": [1, "x"]}},
    {"patternProperties": {"^a": {"type": "null"}}},
    {"patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
    {"propertyNames": {"pattern": "^a"}},
    {"propertyNames": {"maxLength": 1}},
]
BESIDE = [
    {},
    {"required": ["a"]},
    {"properties": {"b": {"type": "string"}}},
    {"maxProperties": 2},
    {"maxProperties": 1},
    {"minProperties": 2},
    {"additionalProperties": {"type": ["string", "integer"]}},
    {"propertyNames": {"pattern": "^.$"}},
    {"propertyNames": {"enum": ["a", "b", "zz"]}},
    {"properties": {"a": {}, "b": {}}, "additionalProperties": False},
]
VALUES = [
    dict(zip(names, values, strict=True))
    for count in range(4)
    for names in itertools.permutations(["a", "b", "ab", "zz"], count)
    for values in itertools.product([1, "x", None], repeat=count)
]


def check_verdicts(schema: dict, count: int) -> None:
    """On ``count`` of the values the schema and the validator agree."""
    validator = jsonschema.Draft202012Validator(schema)
    for value in random.Random(json.dumps(schema)).sample(VALUES, count):
        try:
            accepted = holds_value(schema, value, property_order="any", max_whitespace=1)
        except UnsatisfiableSchema:
            accepted = False
        assert accepted is validator.is_valid(value), value


@pytest.mark.parametrize("beside", BESIDE, ids=json.dumps)
@pytest.mark.parametrize("broken", BROKEN, ids=json.dumps)
def test_agrees_with_a_validator(broken: dict, beside: dict) -> None:
    schema = {"type": "object", **beside, "not": broken}
    check_verdicts(schema, 60)


def test_the_key_that_breaks_the_rule_stands_once() -> None:
    """A reader of JSON may keep the first or the last of two equal keys."""
    schema = {"type": "object", "not": {"additionalProperties": {"type": "string"}}}
    assert holds(schema, '{"a":1,"b":"x","b":"y"}')
    assert not holds(schema, '{"a":1,"a":"x"}')
    assert not holds(schema, '{"a":"x","a":1}')
    assert not holds(schema, '{"a":"x"}')


PAIRS = list(itertools.combinations(BROKEN, 2))


@pytest.mark.parametrize("beside", BESIDE[:6:2], ids=json.dumps)
@pytest.mark.parametrize("broken", PAIRS, ids=json.dumps)
def test_two_broken_rules(broken: tuple[dict, dict], beside: dict) -> None:
    """One key may break both, or two keys one each."""
    schema = {"type": "object", **beside, "allOf": [{"not": each} for each in broken]}
    check_verdicts(schema, 40)
