"""Constraints as plain values: what a generated text must match.

A :data:`Constraint` is what ``gen``, ``Engine.generate`` and the server share.  It holds text
only; compiling it is the business of :mod:`sglang_lite.constrained`, and writing it in another
server's dialect that of :mod:`sglang_lite.lang.backends`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sglang_lite.errors import InvalidRequest, InvalidSchema

PropertyOrder = Literal["schema", "any"]


@dataclass(frozen=True)
class Regex:
    """The whole text matches ``pattern`` (Python's syntax, full match)."""

    pattern: str


@dataclass(frozen=True)
class JsonSchema:
    """The text is a JSON value that satisfies ``schema`` (JSON text, key order kept).

    ``max_whitespace`` bounds every gap between two JSON tokens (0 = compact); there is never
    whitespace after the root value.  ``separators`` = (between items, between key and value), as
    in ``json.dumps``, fixes the layout instead.  ``max_digits`` caps the digits of numbers that
    the schema leaves unbounded (None = no cap).  ``additional_properties`` is the default where a
    schema with ``properties`` is silent; the specification says True.
    """

    schema: str
    property_order: PropertyOrder = "schema"
    max_whitespace: int = 16
    additional_properties: bool = True
    max_digits: int | None = None
    separators: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        if self.property_order not in ("schema", "any"):
            raise InvalidRequest("property_order", self.property_order, '"schema" or "any"')
        if not isinstance(self.additional_properties, bool):
            raise InvalidRequest("additional_properties", self.additional_properties, "a bool")
        if not _is_count(self.max_whitespace, 0):
            raise InvalidRequest("max_whitespace", self.max_whitespace, "an int of at least 0")
        if self.max_digits is not None and not _is_count(self.max_digits, 1):
            raise InvalidRequest("max_digits", self.max_digits, "an int of at least 1, or None")
        if self.separators is not None:
            object.__setattr__(self, "separators", _separators(self.separators))

    @classmethod
    def of(cls, schema: str | bool | Mapping[str, Any] | type, **options: Any) -> JsonSchema:
        """Make one from JSON text, a mapping, a boolean or a Pydantic model class.

        Raises :class:`InvalidSchema` for text that is not JSON.
        """
        if isinstance(schema, type):
            if not hasattr(schema, "model_json_schema"):
                raise InvalidRequest("json_schema", schema, "a Pydantic model, a dict or JSON text")
            schema = schema.model_json_schema()
        if isinstance(schema, str):
            try:
                loaded = json.loads(schema)
            except RecursionError:
                raise InvalidSchema("", "nested too deeply") from None
            except ValueError as error:
                raise InvalidSchema("", f"not JSON: {error}") from None
            if not isinstance(loaded, (dict, bool)):
                raise InvalidSchema("", "a schema is an object or a boolean")
            return cls(schema, **options)
        try:
            return cls(json.dumps(schema, ensure_ascii=False, allow_nan=False), **options)
        except InvalidRequest:
            raise
        except RecursionError:
            raise InvalidSchema("", "nested too deeply") from None
        except (TypeError, ValueError) as error:
            raise InvalidSchema("", f"not JSON: {error}") from None


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _separators(given: Any) -> tuple[str, str]:
    accepted = "a comma and a colon, each with JSON whitespace only"
    if not isinstance(given, (list, tuple)) or len(given) != 2:
        raise InvalidRequest("separators", given, accepted)
    for text, mark in zip(given, (",", ":"), strict=True):
        if not isinstance(text, str) or text.strip(" \t\n\r") != mark:
            raise InvalidRequest("separators", given, accepted)
    return given[0], given[1]


@dataclass(frozen=True)
class Choice:
    """The text is exactly one of ``choices``."""

    choices: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.choices:
            raise InvalidRequest("choices", self.choices, "at least one choice")
        object.__setattr__(self, "choices", tuple(self.choices))


@dataclass(frozen=True)
class Grammar:
    """The text derives from ``text``, a grammar in Lark's or in (GB)NF's notation.

    ``start`` names the first rule; by default ``root`` in EBNF and ``start`` in Lark.
    """

    text: str
    syntax: Literal["ebnf", "lark"] = "ebnf"
    start: str | None = None


@dataclass(frozen=True)
class StructuralTag:
    """Free text in which each trigger starts a tag whose content is constrained (JSON text)."""

    spec: str

    @classmethod
    def of(cls, spec: str | Mapping[str, Any]) -> StructuralTag:
        """Make one from JSON text or a mapping."""
        return cls(spec if isinstance(spec, str) else json.dumps(spec, ensure_ascii=False))


@dataclass(frozen=True)
class Prefixed:
    """The text is ``prefix`` followed by a text of ``constraint``."""

    prefix: str
    constraint: Constraint


Constraint: TypeAlias = Regex | JsonSchema | Choice | Grammar | StructuralTag | Prefixed

ANY_JSON = "$$ANY$$"
"""SGLang's spelling of "any JSON object" in its ``json_schema`` field."""


def constraint_from_fields(
    *,
    json_schema: str | bool | Mapping[str, Any] | type | None = None,
    regex: str | None = None,
    ebnf: str | None = None,
    lark: str | None = None,
    choices: Sequence[str] | None = None,
    structural_tag: str | Mapping[str, Any] | None = None,
    json_options: Mapping[str, Any] | None = None,
    prefix: str | None = None,
) -> Constraint | None:
    """The one constraint among SGLang's field names, or None; "" counts as not given.

    ``json_options`` are the options of :class:`JsonSchema`; ``prefix`` makes it a
    :class:`Prefixed`.  Raises :class:`InvalidRequest` where two constraints are given, because
    obeying one would ignore the other, and for options that nothing takes.
    """
    fields: dict[str, Any] = {
        "json_schema": json_schema,
        "regex": regex,
        "ebnf": ebnf,
        "lark": lark,
        "choices": choices,
        "structural_tag": structural_tag,
    }
    given = [name for name, value in fields.items() if value is not None and value != ""]
    if len(given) > 1:
        raise InvalidRequest(
            given[1], fields[given[1]], f"only one constraint, and {given[0]} is set"
        )
    if json_options and given != ["json_schema"]:
        raise InvalidRequest("json_options", json_options, "only with json_schema")
    if not given:
        if prefix:
            raise InvalidRequest("prefix", prefix, "only with a constraint")
        return None
    if prefix is not None and not isinstance(prefix, str):
        raise InvalidRequest("prefix", prefix, "a str")
    name, value = given[0], fields[given[0]]
    constraint: Any
    if name == "json_schema":
        schema = {"type": "object"} if value == ANY_JSON else value
        constraint = JsonSchema.of(schema, **_json_options(json_options))
    elif name == "choices":
        constraint = _choice(value)
    elif name == "structural_tag":
        constraint = StructuralTag.of(value)
    elif not isinstance(value, str):
        raise InvalidRequest(name, value, "a str")
    elif name == "regex":
        constraint = Regex(value)
    else:
        constraint = Grammar(value, "lark" if name == "lark" else "ebnf")
    return Prefixed(prefix, constraint) if prefix else constraint


CONSTRAINT_FIELDS = (
    *("json_schema", "regex", "ebnf", "lark", "choices", "structural_tag"),
    *("json_options", "prefix"),
)
"""The arguments of :func:`constraint_from_fields`."""

JSON_OPTIONS = tuple(f.name for f in dataclasses.fields(JsonSchema) if f.name != "schema")


def _json_options(given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not set(given) <= set(JSON_OPTIONS):
        accepted = f"a mapping of some of {', '.join(JSON_OPTIONS)}"
        raise InvalidRequest("json_options", given, accepted)
    return given


def _choice(value: Any) -> Choice:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidRequest("choices", value, "a list of str")
    if not all(isinstance(item, str) for item in value):
        raise InvalidRequest("choices", value, "a list of str")
    return Choice(tuple(value))
