"""Whitespace, separators, order of properties and the other options."""

from __future__ import annotations

import pytest

from sglang_lite.constrained.json_schema import lower_json_schema
from sglang_lite.constraint import JsonSchema
from sglang_lite.errors import InvalidRequest
from tests.constrained.acceptor import accepts
from tests.constrained.schemas import holds

PAIR = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array"}}}
CLOSED = {**PAIR, "additionalProperties": False}


def test_whitespace_is_bounded_in_every_gap():
    for text in ('{"a":1}', '{ "a" : 1 , "b" : [ ] }', '{\n\t"a": 1\r\n}'):
        assert holds(PAIR, text, max_whitespace=2)
    gap = " " * 3
    for text in (f'{{{gap}"a":1}}', f'{{"a"{gap}:1}}', f'{{"a":{gap}1}}', f'{{"a":1{gap}}}'):
        assert not holds(PAIR, text, max_whitespace=2)
        assert holds(PAIR, text, max_whitespace=3)


def test_nothing_stands_around_the_root():
    assert not holds(PAIR, "{} ")
    assert not holds(PAIR, " {}")
    assert not holds({"type": "integer"}, "1\n")


def test_compact():
    assert holds(PAIR, '{"a":1,"b":[1,2]}', max_whitespace=0)
    assert not holds(PAIR, '{"a": 1}', max_whitespace=0)


def test_only_the_four_characters_of_json():
    for char in ("\u00a0", "\x0b", "\x0c", "\u2003"):
        assert not holds(PAIR, f'{{"a":{char}1}}')


def test_separators_fix_the_layout():
    language = lower_json_schema(JsonSchema.of(PAIR, separators=(", ", ": ")))
    assert accepts(language, '{"a": 1, "b": [1, 2]}')
    for text in ('{"a":1}', '{"a": 1,"b": []}', '{ "a": 1}', '{"a": 1, "b": [1,2]}'):
        assert not accepts(language, text)


@pytest.mark.parametrize("separators", ["", (",",), ("", ":"), (",", ""), (",x", ":"), (",", "::")])
def test_separators_are_json(separators):
    with pytest.raises(InvalidRequest, match="separators"):
        JsonSchema.of(PAIR, separators=separators)


def test_schema_order():
    assert holds(CLOSED, '{"a": 1, "b": []}')
    assert holds(CLOSED, '{"b": []}')
    assert not holds(CLOSED, '{"b": [], "a": 1}')
    assert holds(CLOSED, '{"b": [], "a": 1}', property_order="any")
    assert not holds(CLOSED, '{"a": 1, "a": 1}', property_order="any")


def test_undeclared_keys_come_last_in_schema_order():
    schema = {**PAIR, "required": ["z"]}
    assert holds(schema, '{"a": 1, "z": 0, "other": 2}')
    assert not holds(schema, '{"z": 0, "a": 1}')
    assert holds(schema, '{"other": 2, "z": 0, "a": 1}', property_order="any")


def test_silence_about_other_keys_is_an_option():
    assert holds(PAIR, '{"c": 1}')
    assert not holds(PAIR, '{"c": 1}', additional_properties=False)
    spoken = {**PAIR, "additionalProperties": {"type": "null"}}
    assert holds(spoken, '{"c": null}', additional_properties=False)
    assert holds({"type": "object"}, '{"c": 1}', additional_properties=False)


def test_silence_is_judged_after_all_branches_are_together():
    schema = {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}
    assert holds(schema, '{"a": 1, "b": 2}', additional_properties=False)
    assert not holds(schema, '{"a": 1, "c": 2}', additional_properties=False)


def test_digits_of_unbounded_numbers_can_be_capped():
    assert holds({"type": "integer"}, "1" * 50)
    assert holds({"type": "integer"}, "1" * 5, max_digits=5)
    assert not holds({"type": "integer"}, "1" * 6, max_digits=5)


def test_listed_objects_follow_the_layout():
    schema = {"enum": [{"a": 1, "b": [2]}, "x"]}
    assert holds(schema, '{ "a" : 1,"b":[ 2 ]}')
    assert not holds(schema, '{"b": [2], "a": 1}')
    assert holds(schema, '{"b": [2], "a": 1}', property_order="any")


@pytest.mark.parametrize(
    "option",
    [
        {"max_whitespace": -1},
        {"max_whitespace": 1.5},
        {"max_digits": 0},
        {"max_digits": True},
        {"property_order": "none"},
    ],
)
def test_options_are_checked(option):
    (name,) = option
    with pytest.raises(InvalidRequest, match=name):
        JsonSchema.of(PAIR, **option)
