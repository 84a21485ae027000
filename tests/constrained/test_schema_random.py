"""Random schemas and values: what is accepted is what an independent validator calls valid."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_lite.errors import GrammarTooComplex, UnsatisfiableSchema, UnsupportedSchema
from tests.constrained.schemas import holds_value

NAMES = st.sampled_from(["a", "b", "ab", "c"])
PATTERNS = st.sampled_from(["^a", "b$", "c", "^[ab]*$", "^.$"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 5),
    st.sampled_from([0.5, 2.5, -1.5]),
    st.sampled_from(["", "a", "b", "ab", "abc", "cab", "\u00e9\t"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=5,
)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
SMALL = st.integers(0, 3)


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A few keywords of any kind, with ``inner`` as their subschemas."""
    schemas = st.lists(inner, min_size=1, max_size=3)
    members = st.dictionaries(NAMES, inner, max_size=2)
    names = st.lists(NAMES, max_size=2, unique=True)
    options: dict[str, st.SearchStrategy[Any]] = {
        "type": st.one_of(TYPES, st.lists(TYPES, min_size=1, max_size=3, unique=True)),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "const": VALUES,
        "minimum": st.integers(-2, 3),
        "maximum": st.integers(-1, 4),
        "exclusiveMinimum": st.sampled_from([-1, 0, 0.5]),
        "exclusiveMaximum": st.sampled_from([1, 2.5, 3]),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "minLength": SMALL,
        "maxLength": SMALL,
        "pattern": PATTERNS,
        "properties": members,
        "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
        "additionalProperties": inner,
        "propertyNames": inner,
        "required": names,
        "minProperties": SMALL,
        "maxProperties": SMALL,
        "dependentRequired": st.dictionaries(NAMES, names, max_size=2),
        "dependentSchemas": members,
        "prefixItems": st.lists(inner, min_size=1, max_size=2),
        "items": inner,
        "contains": inner,
        "minContains": SMALL,
        "maxContains": SMALL,
        "minItems": SMALL,
        "maxItems": SMALL,
        "uniqueItems": st.just(True),
        "allOf": schemas,
        "anyOf": schemas,
        "oneOf": schemas,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "unevaluatedProperties": inner,
        "unevaluatedItems": inner,
    }
    return st.lists(st.sampled_from(sorted(options)), max_size=4, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({name: options[name] for name in chosen})
    )


SIMPLE = st.one_of(st.booleans(), keywords(st.booleans()))
NESTED = st.recursive(SIMPLE | st.just({"$ref": "#/$defs/A"}), keywords, max_leaves=4)
SCHEMAS = st.builds(
    lambda schema, shared: schema if isinstance(schema, bool) else {**schema, "$defs": shared},
    NESTED,
    st.fixed_dictionaries({"A": SIMPLE}),
)


def clean(value: Any) -> Any:
    """Without -0.0 and 2.0, which have no canonical spelling as numbers with a fraction."""
    return json.loads(json.dumps(value))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.lists(VALUES, min_size=8, max_size=8))
def test_agrees_with_a_validator(schema, values):
    validator = jsonschema.Draft202012Validator(schema)
    wrong = []
    for value in values:
        try:
            accepted = holds_value(schema, clean(value), property_order="any", max_whitespace=1)
        except (UnsupportedSchema, GrammarTooComplex):
            return
        except UnsatisfiableSchema:
            accepted = False
        if accepted is not validator.is_valid(value):
            wrong.append((value, accepted))
    assert wrong == []
