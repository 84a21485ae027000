"""Constraints are plain, hashable values."""

import json

import pydantic
import pytest

from sglang_lite.constraint import (
    Choice,
    JsonSchema,
    Prefixed,
    Regex,
    StructuralTag,
    constraint_from_fields,
)
from sglang_lite.errors import InvalidRequest, InvalidSchema


class Person(pydantic.BaseModel):
    name: str


def test_a_pydantic_model_is_a_schema():
    schema = json.loads(JsonSchema.of(Person).schema)
    assert schema["properties"]["name"]["type"] == "string"


def test_key_order_of_the_schema_is_kept():
    assert JsonSchema.of({"b": 1, "a": 2}).schema == '{"b": 1, "a": 2}'


@pytest.mark.parametrize("bad", ["{", "[]", "3", '"x"'])
def test_text_that_is_no_schema(bad):
    with pytest.raises(InvalidSchema):
        JsonSchema.of(bad)


@pytest.mark.parametrize("bad", [{"a": {1, 2}}, {"a": float("nan")}])
def test_values_that_are_not_json(bad):
    with pytest.raises(InvalidSchema, match="not JSON"):
        JsonSchema.of(bad)


def test_a_class_that_is_no_model_is_refused():
    with pytest.raises(InvalidRequest, match="Pydantic"):
        JsonSchema.of(int)


def test_empty_choices_are_refused():
    with pytest.raises(InvalidRequest, match="at least one"):
        Choice(())
    with pytest.raises(InvalidRequest, match="at least one"):
        constraint_from_fields(choices=[])


@pytest.mark.parametrize("bad", ["abc", [1, 2], 5])
def test_choices_are_a_list_of_texts(bad):
    with pytest.raises(InvalidRequest, match="list of str"):
        constraint_from_fields(choices=bad)


def test_constraints_are_hashable():
    values = {Choice(("a",)), JsonSchema("{}"), StructuralTag.of({"triggers": []})}
    assert len(values) == 3


def test_options_and_a_prefix_come_with_a_constraint():
    options = {"max_whitespace": 1, "separators": [", ", ": "]}
    found = constraint_from_fields(json_schema="true", json_options=options, prefix=" ")
    assert found == Prefixed(" ", JsonSchema("true", max_whitespace=1, separators=(", ", ": ")))
    assert constraint_from_fields(regex="a", prefix="") == Regex("a")


@pytest.mark.parametrize(
    "fields",
    [
        {"prefix": " "},
        {"prefix": 3, "regex": "a"},
        {"json_options": {"max_digits": 3}},
        {"json_options": {"max_digits": 3}, "regex": "a"},
        {"json_options": {"schema": "true"}, "json_schema": "true"},
        {"json_options": ["max_digits"], "json_schema": "true"},
        {"json_options": {"additional_properties": "no"}, "json_schema": "true"},
        {"json_options": {"separators": 5}, "json_schema": "true"},
    ],
)
def test_options_and_prefixes_that_cannot_be_obeyed_are_refused(fields):
    with pytest.raises(InvalidRequest, match=r"prefix|json_options|properties|separators"):
        constraint_from_fields(**fields)
