"""The drafts of JSON Schema: which keywords each one knows, and where subschemas stand."""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Literal

Draft = Literal[4, 6, 7, 2019, 2020]

ONE_SCHEMA = frozenset(
    (
        *("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if"),
        *("items", "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
    )
)
LIST_OF_SCHEMAS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
MAP_OF_SCHEMAS = frozenset(
    ("$defs", "definitions", "dependentSchemas", "dependencies", "patternProperties", "properties")
)

SINCE: dict[str, Draft] = {
    **dict.fromkeys(("const", "contains", "propertyNames"), 6),
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "minContains", "maxContains"), 2019),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties", "$recursiveRef"), 2019),
    **dict.fromkeys(("prefixItems", "$dynamicRef"), 2020),
}
"""The draft that introduced a keyword; in a document of an earlier one it is an annotation."""

_ASSERTIONS = frozenset(
    (
        *("$ref", "type", "enum", "properties", "required", "patternProperties", "dependencies"),
        *("additionalProperties", "minProperties", "maxProperties", "items", "additionalItems"),
        *("minItems", "maxItems", "uniqueItems", "minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("allOf", "anyOf", "oneOf", "not"),
    )
)
ANNOTATIONS = frozenset(
    (
        *("$comment", "title", "description", "default", "examples", "deprecated", "readOnly"),
        *("writeOnly", "contentEncoding", "contentMediaType", "contentSchema", "name", "label"),
        *("example", "nullable", "discriminator", "options"),
    )
)
"""Keywords that say nothing about a value, those of OpenAPI and of forms among them."""

IDENTIFIERS = frozenset(
    (
        *("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary"),
        *("$defs", "definitions"),
    )
)
"""Keywords that name a schema or hold others for reference."""
SINCE_EVER = _ASSERTIONS | ANNOTATIONS | IDENTIFIERS
"""Keywords that mean the same in every draft, and common annotations."""

_DRAFTS: tuple[tuple[str, Draft], ...] = (
    ("draft-03", 4),
    ("draft-04", 4),
    ("draft-06", 6),
    ("draft-07", 7),
    ("2019-09", 2019),
    ("2020-12", 2020),
)


def draft_of(root: Any) -> Draft:
    """The draft that ``$schema`` declares; the newest one where it is silent."""
    declared = root.get("$schema") if isinstance(root, dict) else None
    if isinstance(declared, str):
        for mark, draft in _DRAFTS:
            if mark in declared:
                return draft
    return 2020


@lru_cache(maxsize=4096)
def is_unknown(keyword: str) -> bool:
    """True for a word that no draft knows and that looks like none of their keywords."""
    return not (keyword in SINCE_EVER or keyword in SINCE or misspelling(keyword))


@lru_cache(maxsize=4096)
def misspelling(keyword: str) -> str | None:
    """The asserting keyword that an unknown one looks like: "emum" is "enum"."""
    if keyword in SINCE_EVER or keyword in SINCE or keyword.startswith(("x-", "_", "$")):
        return None
    known = sorted(word for word in _ASSERTIONS | SINCE.keys() if len(word) > 3)
    return next(iter(get_close_matches(keyword, known, 1, 0.74)), None)
