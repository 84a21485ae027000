"""Constraints as plain values: what a generated text must match.

A :data:`Constraint` is what ``gen``, ``Engine.generate`` and the server share.  It holds text
only; compiling it is the business of :mod:`sglang_lite.constrained`, and writing it in another
server's dialect that of :mod:`sglang_lite.lang.backends`.
"""

from __future__ import annotations

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
    whitespace after the root value.  ``max_digits`` caps the digits of numbers that the schema
    leaves unbounded (None = no cap).  ``additional_properties`` is the default where a schema with
    ``properties`` is silent; the specification says True.
    """

    schema: str
    property_order: PropertyOrder = "schema"
    max_whitespace: int = 16
    additional_properties: bool = True
    max_digits: int | None = None

    def __post_init__(self) -> None:
        if self.property_order not in ("schema", "any"):
            raise InvalidRequest("property_order", self.property_order, '"schema" or "any"')
        if not _is_count(self.max_whitespace, 0):
            raise InvalidRequest("max_whitespace", self.max_whitespace, "an int of at least 0")
        if self.max_digits is not None and not _is_count(self.max_digits, 1):
            raise InvalidRequest("max_digits", self.max_digits, "an int of at least 1, or None")

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
    """The text derives from ``text``, a grammar in Lark's or in (GB)NF's notation."""

    text: str
    syntax: Literal["ebnf", "lark"] = "ebnf"


@dataclass(frozen=True)
class StructuralTag:
    """Free text in which each trigger starts a tag whose content is constrained (JSON text)."""

    spec: str

    @classmethod
    def of(cls, spec: str | Mapping[str, Any]) -> StructuralTag:
        """Make one from JSON text or a mapping."""
        return cls(spec if isinstance(spec, str) else json.dumps(spec, ensure_ascii=False))


Constraint: TypeAlias = Regex | JsonSchema | Choice | Grammar | StructuralTag

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
) -> Constraint | None:
    """The one constraint among SGLang's field names, or None; "" counts as not given.

    Raises :class:`InvalidRequest` where two are given, because obeying one would ignore the other.
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
    if not given:
        return None
    name, value = given[0], fields[given[0]]
    if name == "json_schema":
        return JsonSchema.of({"type": "object"} if value == ANY_JSON else value)
    if name == "choices":
        return _choice(value)
    if name == "structural_tag":
        return StructuralTag.of(value)
    if not isinstance(value, str):
        raise InvalidRequest(name, value, "a str")
    return Regex(value) if name == "regex" else Grammar(value, "lark" if name == "lark" else "ebnf")


def _choice(value: Any) -> Choice:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidRequest("choices", value, "a list of str")
    if not all(isinstance(item, str) for item in value):
        raise InvalidRequest("choices", value, "a list of str")
    return Choice(tuple(value))
