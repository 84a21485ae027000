"""Schemas of the usual shape take a short way to the IR: it agrees with the general one."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from sglang_lite.constrained import GrammarCompiler, GrammarMatcher, Vocabulary, ir
from sglang_lite.constrained.json_schema import direct, lower_json_schema
from sglang_lite.constraint import JsonSchema
from sglang_lite.errors import InvalidSchema, UnsatisfiableSchema
from tests.constrained.acceptor import accepts
from tests.constrained.schemas import holds, language

STRING = {"type": "string"}
PERSON = {
    "type": "object",
    "properties": {"name": STRING, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "id"],
}
TREE = {"type": "object", "properties": {"v": STRING, "kids": {"items": {"$ref": "#"}}}}
SCHEMAS: list[Any] = [
    {},
    {"title": "anything", "x-order": 3},
    PERSON,
    {**PERSON, "additionalProperties": False, "required": ["name"]},
    {**PERSON, "additionalProperties": {"type": "null"}},
    {**PERSON, "properties": {"name": False}, "required": []},
    {key: value for key, value in PERSON.items() if key != "type"},
    {"type": ["object", "string", "null"], "properties": {"name": STRING}, "maxLength": 1},
    {"type": ["integer", "number"], "maximum": 2},
    {"type": "array", "items": {"enum": ["a", None, True]}, "minItems": 1, "maxItems": 2},
    {"type": "array", "items": False},
    {"type": ["string", "boolean"], "enum": ["a", None, True]},
    {"type": "object", "properties": {"a": {"const": "a"}}},
    {"anyOf": [{"type": "string", "pattern": "^a"}, {"anyOf": [{"type": "integer"}, PERSON]}]},
    {"anyOf": [{"type": "string"}], "maxLength": 1},
    {"$defs": {"s": {"$ref": "#/$defs/t"}, "t": STRING}, "items": {"$ref": "#/$defs/s"}},
    {"$ref": "#/$defs/s", "maxLength": 1, "$defs": {"s": STRING}},
    TREE,
    {"properties": {"a": {"$ref": "#/$defs/t"}}, "$defs": {"t": {**TREE, "$id": "urn:t"}}},
    {"$schema": "http://json-schema.org/draft-04/schema", "type": "object", "const": "a"},
    {"type": "number", "minimum": 1.0, "exclusiveMinimum": True},
]
VALUES: list[Any] = [
    *(None, True, 0, 1, 2, 3, -1, 1.5, "", "a", "ab", "ba", [], ["a"], ["a", None], ["b"], [1]),
    *({}, {"name": "x"}, {"name": 1}, {"name": "x", "id": None}, {"name": "x", "id": 1, "z": 2}),
    *({"name": "x", "age": 1, "id": None}, {"name": "x", "age": -1, "id": 1}, {"a": "a"}),
    *(
        {"a": {"v": "x", "kids": [{"v": ""}]}},
        {"v": "x", "kids": [{"v": 1}]},
        {"v": "", "kids": []},
    ),
]


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_both_ways_agree(schema, closed, monkeypatch):
    spec = JsonSchema.of(schema, property_order="any", additional_properties=not closed)
    short = lower_json_schema(spec)
    monkeypatch.setattr(direct.Direct, "node", lambda self, place: None)
    general = lower_json_schema(spec)
    texts = [json.dumps(value) for value in VALUES]
    assert [t for t in texts if accepts(short, t)] == [t for t in texts if accepts(general, t)]


def test_the_usual_shape_needs_no_rules():
    found = language({**PERSON, "additionalProperties": False, "required": []})
    assert isinstance(found.root, ir.Object) and not found.rules


def test_numbers_of_equal_value_and_other_type_are_no_cached_leaf():
    assert holds({"type": "integer", "minimum": 1}, "1")
    with pytest.raises(InvalidSchema, match="#/minimum"):
        language({"type": "integer", "minimum": True})


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, STRING]},
        {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}},
    ],
)
def test_a_reference_that_never_arrives_is_refused(schema):
    with pytest.raises(InvalidSchema, match="refers to itself"):
        language(schema)


@cache
def compiler() -> GrammarCompiler:
    tokens = [bytes((byte,)) for byte in range(256)]
    return GrammarCompiler(Vocabulary([*tokens, b"<end>"], eos_token_ids=[256]))


def test_what_cannot_end_is_unsatisfiable():
    endless = {"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]}
    with pytest.raises(UnsatisfiableSchema):
        compiler().compile_json_schema(endless)
    with pytest.raises(UnsatisfiableSchema):
        compiler().compile_json_schema({"type": "array", "items": False, "minItems": 1})


def test_objects_deeper_than_nodes_nest():
    schema: dict[str, Any] = {"type": "integer"}
    value: Any = 1
    for _ in range(60):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
        value = {"a": value}
    matcher = GrammarMatcher(compiler().compile_json_schema(schema))
    assert matcher.accept_string(json.dumps(value)) and matcher.is_completed()
    assert not holds(schema, json.dumps(value).replace("1", "null"))


def test_a_misspelling_is_noted_on_the_short_way_too():
    found = language({"type": "object", "properties": {"a": {"type": "string", "requird": True}}})
    assert any("requird" in warning for warning in found.warnings)
