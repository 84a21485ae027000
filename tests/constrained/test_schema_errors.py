"""What is refused says why and where; nothing hangs."""

from __future__ import annotations

import pytest

from sglang_lite.constrained import ir
from sglang_lite.constrained.budget import time_limit
from sglang_lite.constrained.json_schema import lower_json_schema
from sglang_lite.constraint import JsonSchema
from sglang_lite.errors import (
    GrammarTooComplex,
    InvalidRequest,
    InvalidSchema,
    UnsatisfiableSchema,
    UnsupportedSchema,
)
from tests.constrained.acceptor import accepts
from tests.constrained.schemas import language

UNIQUE = {"type": "array", "items": {"type": "object"}, "uniqueItems": True}

MALFORMED = [
    ({"properties": {"a": {"type": "float"}}}, "#/properties/a/type"),
    ({"items": {"type": None}}, "#/items/type"),
    ({"properties": {"a": 5}}, "#/properties/a"),
    ({"items": {"anyOf": []}}, "#/items/anyOf"),
    ({"allOf": {"type": "string"}}, "#/allOf"),
    ({"minLength": -1}, "#/minLength"),
    ({"minLength": "2"}, "#/minLength"),
    ({"maxItems": 1.5}, "#/maxItems"),
    ({"minimum": "0"}, "#/minimum"),
    ({"multipleOf": 0}, "#/multipleOf"),
    ({"enum": "a"}, "#/enum"),
    ({"required": "a"}, "#/required"),
    ({"properties": []}, "#/properties"),
    ({"uniqueItems": 1}, "#/uniqueItems"),
    ({"$ref": "#/$defs/missing"}, "#"),
    ({"$ref": "#missing"}, "#"),
    ({"$ref": "#/items/-1", "items": [True]}, "#"),
    ({"$ref": "#/items/x", "items": [True]}, "#"),
    ({"$id": "http://a.org/", "items": {"$ref": "http://[::1/x"}}, "#/items"),
    ({"$id": "http://a.org/", "items": {"$id": "http://[::1/x"}}, "#/items"),
    ({"$ref": 1}, "#/$ref"),
    ({"properties": {"a/b": {"$ref": "#/nothing"}}}, "#/properties/a~1b"),
]


@pytest.mark.parametrize(("schema", "pointer"), MALFORMED)
def test_malformed(schema, pointer):
    with pytest.raises(InvalidSchema) as caught:
        language(schema)
    assert caught.value.pointer == pointer


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '{"minimum": NaN}', '{"a": 1,}'])
def test_text_that_is_no_schema(text):
    with pytest.raises(InvalidSchema):
        language(text)


UNSUPPORTED = [
    (UNIQUE, "#", "uniqueItems"),
    ({"properties": {"a": UNIQUE}}, "#/properties/a", "uniqueItems"),
    ({"items": {"$ref": "https://example.org/other.json"}}, "#/items", "$ref"),
    ({"type": "string", "pattern": r"(a)\1"}, "#", "pattern"),
    ({"patternProperties": {r"(?<n>a)\k<n>": {}}}, "#", "patternProperties"),
]


@pytest.mark.parametrize(("schema", "pointer", "keyword"), UNSUPPORTED)
def test_unsupported(schema, pointer, keyword):
    with pytest.raises(UnsupportedSchema) as caught:
        language(schema)
    assert (caught.value.pointer, caught.value.keyword) == (pointer, keyword)


def test_unsupported_can_be_a_warning():
    schema = {"properties": {"a": UNIQUE, "b": {"type": "string", "pattern": r"(a)\1"}}}
    found = lower_json_schema(JsonSchema.of(schema), on_unsupported="warn")
    assert len(found.warnings) == 2
    assert any("'#/properties/a'" in warning for warning in found.warnings)
    assert accepts(found, '{"a": [{}, {}], "b": "x"}')
    with pytest.raises(InvalidRequest, match="on_unsupported"):
        lower_json_schema(JsonSchema.of(schema), on_unsupported="ignore")


def test_unsupported_is_no_matter_where_nothing_uses_it():
    assert language({"$defs": {"a": UNIQUE}, "type": "null"}).warnings == ()


def test_a_keyword_after_its_draft_is_noted():
    schema = {"$schema": "http://json-schema.org/draft-04/schema#", "const": 1}
    (note,) = language(schema).warnings
    assert "'const'" in note and "draft 4" in note


def test_a_misspelt_keyword_is_noted():
    (note,) = language({"type": "object", "require": ["a"]}).warnings
    assert "'require'" in note and "'required'" in note
    schema = {"x-enum": [1], "_format": "date", "unit": "m", "title": "t", "nullable": True}
    assert language(schema).warnings == ()


UNSATISFIABLE = [
    False,
    {"type": "integer", "minimum": 3, "maximum": 2},
    {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
    {"allOf": [{"type": "string"}, {"type": "null"}]},
    {"type": "object", "required": ["a"], "properties": {"a": False}},
    {"type": "array", "minItems": 2, "maxItems": 1},
    {"enum": ["a"], "minLength": 2},
    {"enum": []},
    {"const": 1, "not": {"type": "integer"}},
    {"type": "string", "pattern": "^a$", "minLength": 2},
    {"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "^b"}]},
    {"not": {}},
]


@pytest.mark.parametrize("schema", UNSATISFIABLE)
def test_unsatisfiable(schema):
    with pytest.raises(UnsatisfiableSchema):
        language(schema)


SELF_REFERENCES = [
    {"$ref": "#"},
    {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"anyOf": [{"type": "string"}, {"$ref": "#"}]},
    {"not": {"$ref": "#"}},
]


@pytest.mark.parametrize("schema", SELF_REFERENCES)
def test_references_that_say_nothing(schema):
    with pytest.raises(InvalidSchema, match="refers to itself"):
        language(schema)


def test_deep_schemas():
    schema: dict = {"type": "null"}
    for _ in range(300):
        schema = {"type": "array", "items": schema}
    assert language(schema).rules
    schema = {"type": "null"}
    for _ in range(300):
        schema = {"allOf": [schema]}
    with pytest.raises(GrammarTooComplex, match="120"):
        language(schema)
    with pytest.raises((GrammarTooComplex, InvalidSchema)):
        language('{"items":' * 100_000 + "{}" + "}" * 100_000)


def test_wide_combinations_end_in_a_budget():
    either = [
        {"anyOf": [{"properties": {f"a{i}": {"type": kind}}} for kind in ("null", "string")]}
        for i in range(12)
    ]
    with pytest.raises(GrammarTooComplex, match="alternatives"):
        language({"type": "object", "allOf": either})
    branches = [
        {"properties": {f"{name}{i}": {"minimum": i} for name in "abcde"}} for i in range(12)
    ]
    with pytest.raises(GrammarTooComplex):
        language({"type": "object", "oneOf": branches})


def test_numbers_with_huge_exponents():
    for text in ('{"maximum": 1e1000000}', '{"const": [{"a": 1e-999999999}]}'):
        with pytest.raises(GrammarTooComplex, match="digits"):
            language(text)


def test_many_patterns():
    patterns = {f"x{i}": {"minimum": i} for i in range(20)}
    with pytest.raises(GrammarTooComplex, match="classes of keys"):
        language({"patternProperties": patterns})


def test_a_big_schema():
    names = {f"name{i}": {"type": "string", "maxLength": i} for i in range(3000)}
    schema = {"type": "object", "properties": names, "required": list(names)[:100]}
    root = language({**schema, "additionalProperties": False}).root
    assert isinstance(root, ir.Object) and len(root.members) == 3000 and not root.extras


def test_lone_surrogates():
    for text in (r'{"const": "\ud800"}', r'{"properties": {"\udc00": {}}}'):
        with pytest.raises(InvalidSchema, match="surrogate"):
            language(text)
    assert accepts(language(r'{"const": "\ud83d\ude00"}'), '"😀"')


def test_time_is_a_budget():
    branches = [{"minimum": i, "maximum": i + 1} for i in range(3000)]
    with pytest.raises(GrammarTooComplex, match=r"budget of 0 s"), time_limit(0):
        lower_json_schema(JsonSchema.of({"oneOf": branches}))
