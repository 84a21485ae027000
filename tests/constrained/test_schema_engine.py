"""Schemas through the whole engine: masks equal byte steps, nothing is a dead end."""

from __future__ import annotations

import pickle

import pytest

from sglang_lite.constrained import ir
from sglang_lite.constrained.compiler import GrammarCompiler
from sglang_lite.constraint import JsonSchema
from sglang_lite.errors import UnsupportedSchema
from tests.constrained.core_reference import allowed_by_mask, allowed_by_steps, assert_exact
from tests.constrained.core_vocabularies import byte_level
from tests.constrained.schemas import holds, language

TAGGED = {
    "oneOf": [
        {"properties": {"k": {"const": name}, "v": {"type": kind}}, "required": ["k", "v"]}
        for name, kind in (("a", "integer"), ("b", "string"), ("c", "null"))
    ],
    "type": "object",
}
SCHEMAS = [
    TAGGED,
    {"type": ["array", "null"], "contains": False},
    {"type": "array", "contains": {"type": "integer"}, "maxContains": 1, "maxItems": 3},
    {"type": "array", "items": {"enum": ["a", "b", 1]}, "uniqueItems": True, "minItems": 2},
    {"type": "object", "dependentRequired": {"a": ["b"]}, "minProperties": 2},
    {
        "type": "object",
        "patternProperties": {"^a": {"type": "null"}},
        "additionalProperties": False,
    },
    {"type": "object", "patternProperties": {"a": {"type": "null"}}, "additionalProperties": False},
    {"type": "object", "not": {"required": ["a", "b"]}, "properties": {"a": {}, "b": {}}},
    {"properties": {"next": {"$ref": "#"}}, "required": ["next"], "type": ["object", "null"]},
    {"type": "string", "minLength": 1, "maxLength": 3, "pattern": "a"},
    {"type": "number", "minimum": -1, "maximum": 12, "multipleOf": 0.5},
    {"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}, "type": "object"},
]


@pytest.mark.parametrize("order", ["schema", "any"])
@pytest.mark.parametrize("schema", SCHEMAS)
def test_masks_equal_byte_steps(schema, order):
    constraint = JsonSchema.of(schema, property_order=order, max_whitespace=1)
    compiled = GrammarCompiler(byte_level()).compile(constraint)
    assert assert_exact(compiled, seed=3, texts=4, length=10) > 3


def test_a_repeat_that_cannot_be_filled_is_empty():
    item = ir.literal("x")
    assert ir.repeat_kinds([ir.Kind(ir.NEVER, 1), ir.Kind(item)]) is ir.NEVER
    assert ir.repeat_kinds([ir.Kind(ir.NEVER, 2), ir.Kind(item)], head=[(item, item)]) is ir.NEVER
    assert ir.repeat_kinds([ir.Kind(item, 2), ir.Kind(item, 2)], maximum=3) is ir.NEVER
    assert (
        ir.repeat_kinds([ir.Kind(ir.NEVER, 1), ir.Kind(item)], head=[(item, item)]) is not ir.NEVER
    )


@pytest.mark.parametrize("schema", SCHEMAS)
def test_languages_pickle(schema):
    found = language(schema)
    again = pickle.loads(pickle.dumps(found))
    assert again.rules.keys() == found.rules.keys()


@pytest.mark.parametrize(
    "items",
    [
        {"type": "string"},
        {"type": "string", "pattern": "^[abxy]*$", "maxLength": 3},
        {"type": ["string", "null", "boolean"]},
    ],
)
def test_distinct_strings(items):
    schema = {"type": "array", "items": items, "uniqueItems": True}
    compiled = GrammarCompiler(byte_level()).compile(JsonSchema.of(schema, max_whitespace=1))
    state = compiled.automaton.start
    for byte in b'["a","ab", "b" ,"","x","y","aa","aaa"]':
        assert allowed_by_mask(compiled, state) == allowed_by_steps(compiled, state)
        state = compiled.automaton.step(state, byte)
    assert state.accepting
    assert holds(schema, '["null", null]') is ("null" in items["type"])
    assert not holds(schema, "[null, null]")
    assert not holds(schema, '["a", "ab", "a"]')
    assert not holds(schema, '["", ""]')
    assert not holds(schema, r'["b", "\u0062"]')


def test_distinct_numbers_none_of_which_begins_another():
    items = {"type": ["integer", "null"], "minimum": 400, "maximum": 599}
    schema = {"type": "array", "items": items, "uniqueItems": True, "minItems": 2}
    compiled = GrammarCompiler(byte_level()).compile(JsonSchema.of(schema, max_whitespace=1))
    state = compiled.automaton.start
    for byte in b"[400,null, 401 ,599]":
        assert allowed_by_mask(compiled, state) == allowed_by_steps(compiled, state)
        state = compiled.automaton.step(state, byte)
    assert state.accepting
    for text in (
        "[400, 400]",
        "[401, 400, 401]",
        "[399, 400]",
        "[400]",
        "[null, null]",
        "[40, 41]",
    ):
        assert not holds(schema, text)
    with pytest.raises(UnsupportedSchema, match="uniqueItems"):
        language({**schema, "items": {"type": "integer", "minimum": 1, "maximum": 100}})
