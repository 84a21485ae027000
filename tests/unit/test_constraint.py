"""Constraints are plain, hashable values."""

import json

import pydantic
import pytest

from sglang_lite.constraint import Choice, JsonSchema, StructuralTag, constraint_from_fields
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
