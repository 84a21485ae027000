"""Every server's way to ask for a constraint, turned into the one :data:`Constraint`.

OpenAI's ``response_format``; vLLM's ``structured_outputs`` and its older ``guided_*``; SGLang's
``regex``, ``ebnf``, ``json_schema`` and ``structural_tag``; llama.cpp's ``grammar`` and flat
``json_schema``.  Exactly one may be active: obeying one of two would ignore the other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from sglang_lite.constraint import (
    CONSTRAINT_FIELDS,
    Choice,
    Constraint,
    Grammar,
    JsonSchema,
    Prefixed,
    Regex,
    StructuralTag,
    constraint_from_fields,
)
from sglang_lite.errors import InvalidRequest, InvalidSchema
from sglang_lite.runtime.server.config import JsonStyle
from sglang_lite.runtime.server.errors import invalid
from sglang_lite.runtime.server.schemas.wire import Many, WireModel

ANY_OBJECT = {"type": "object"}

Schema = dict[str, Any] | bool | str
"""A JSON Schema as a value, or as JSON text (SGLang's form)."""


@dataclass(frozen=True)
class WireConstraint:
    """A constraint and the field that asked for it, which errors name."""

    constraint: Constraint
    param: str


class JsonSchemaFormat(WireModel):
    """OpenAI's ``response_format.json_schema``."""

    name: str = Field(default="schema", pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str = ""
    schema_: dict[str, Any] | bool = Field(alias="schema")
    strict: bool | Literal["true", "false"] = True


class ResponseFormat(WireModel):
    """``response_format``, with llama.cpp's flat forms and SGLang's structural tags."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    name: str = ""
    strict: bool | Literal["true", "false"] = True
    structures: Many[dict[str, Any]] | None = None
    triggers: Many[str] | None = None
    format: dict[str, Any] | None = None

    def to_constraint(self) -> WireConstraint | None:
        """The constraint, or None for plain text."""
        if self.type == "text":
            self._refuse("schema", "json_schema", "structures", "triggers", "format")
            return None
        if self.type == "structural_tag":
            self._refuse("schema", "json_schema")
            spec = self.model_dump(by_alias=True, include={"type", "structures", "triggers"})
            given = {**spec, "format": self.format}
            tag = {name: value for name, value in given.items() if value is not None}
            return WireConstraint(StructuralTag.of(tag), "response_format")
        self._refuse("structures", "triggers", "format")
        if self.type == "json_object":
            self._refuse("json_schema")
            schema = ANY_OBJECT if self.schema_ is None else self.schema_
            return WireConstraint(JsonSchema.of(schema), "response_format.schema")
        if self.json_schema is not None:
            self._refuse("schema")
            schema, param = self.json_schema.schema_, "response_format.json_schema.schema"
        elif self.schema_ is not None:
            schema, param = self.schema_, "response_format.schema"
        else:
            raise invalid(
                "response_format.json_schema",
                "response_format of type 'json_schema' needs json_schema.schema",
                "missing_required_parameter",
            )
        return WireConstraint(JsonSchema.of(schema), param)

    def _refuse(self, *names: str) -> None:
        for name in names:
            if getattr(self, "schema_" if name == "schema" else name) is not None:
                raise invalid(
                    f"response_format.{name}",
                    f"response_format of type '{self.type}' does not take '{name}'",
                )


class StructuredOutputs(WireModel):
    """vLLM's ``structured_outputs``: exactly one of the first six."""

    json_: Schema | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: Many[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False

    def to_constraint(self) -> WireConstraint:
        """The one constraint."""
        kinds = ("json_", "regex", "choice", "grammar", "json_object", "structural_tag")
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(given) != 1:
            raise invalid(
                "structured_outputs",
                "structured_outputs needs exactly one of json, regex, choice, grammar, "
                f"json_object, structural_tag; it has {len(given)}",
            )
        kind = given[0].rstrip("_")
        param = f"structured_outputs.{kind}"
        value = getattr(self, given[0])
        if value == "" or (value is False and kind == "json_object"):
            raise invalid(param, f"{param}={json.dumps(value)} asks for nothing; leave it out")
        constraint = build(kind, value, param)
        if isinstance(constraint, JsonSchema):
            if self.disable_any_whitespace:
                constraint = replace(constraint, max_whitespace=0)
            if self.disable_additional_properties:
                constraint = replace(constraint, additional_properties=False)
        elif self.disable_any_whitespace or self.disable_additional_properties:
            raise invalid(param, "disable_* options of structured_outputs need json")
        return WireConstraint(constraint, param)


class ConstraintFields(WireModel):
    """The constraint fields of a chat or completion request."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: Many[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None
    json_schema: Schema | None = None
    structural_tag: str | dict[str, Any] | None = None

    def wire_constraint(self, style: JsonStyle) -> WireConstraint | None:
        """The one active constraint, or None; two are a 400."""
        found: list[WireConstraint] = []
        if self.response_format is not None:
            from_format = self.response_format.to_constraint()
            found += [from_format] if from_format else []
        if self.structured_outputs is not None:
            found.append(self.structured_outputs.to_constraint())
        for name in _FLAT_FIELDS:
            value = getattr(self, name)
            if value is None or value == "" or (name == "guided_json_object" and not value):
                continue
            kind = name.removeprefix("guided_").replace("json_schema", "json")
            found.append(WireConstraint(build(kind, value, name), name))
        if len(found) > 1:
            raise invalid(
                found[1].param,
                f"only one constraint may be active; {found[0].param} is set too",
            )
        return styled(found[0], style) if found else None


_FLAT_FIELDS = (
    *(f"guided_{kind}" for kind in ("json", "regex", "choice", "grammar", "json_object")),
    *("regex", "ebnf", "grammar", "json_schema", "structural_tag"),
)


def build(kind: str, value: Any, param: str) -> Constraint:
    """One constraint from its dialects' name; ``param`` is what an error names."""
    if kind == "json":
        return JsonSchema.of(value)
    if kind == "json_object":
        return JsonSchema.of(ANY_OBJECT)
    if kind == "regex":
        return Regex(value)
    if kind == "choice":
        if not value:
            raise InvalidRequest(param, value, "at least one choice")
        return Choice(tuple(value))
    if kind == "structural_tag":
        return StructuralTag.of(value)
    # vLLM takes both notations in one field; only (GB/E)BNF writes rules with "::=".
    return Grammar(value, "ebnf" if kind == "ebnf" or "::=" in value else "lark")


def native_constraint(fields: dict[str, Any], style: JsonStyle) -> WireConstraint | None:
    """The constraint among SGLang's ``sampling_params``, taken out of ``fields``."""
    given = {name: fields.pop(name) for name in CONSTRAINT_FIELDS if name in fields}
    try:
        constraint = constraint_from_fields(**given)
    except InvalidRequest as error:
        raise invalid(f"sampling_params.{error.field}", str(error)) from None
    except InvalidSchema as error:
        raise invalid("sampling_params.json_schema", str(error), error.code) from None
    if constraint is None:
        return None
    name = next(name for name, value in given.items() if value not in (None, ""))
    # Here "json_options" say how JSON is laid out, and without them it is free.
    style = replace(style, separators=None)
    return styled(WireConstraint(constraint, f"sampling_params.{name}"), style)


def styled(wire: WireConstraint, style: JsonStyle) -> WireConstraint:
    """The server's bounds, where the request has none of its own."""
    constraint = wire.constraint
    if isinstance(constraint, Prefixed):
        inner = styled(replace(wire, constraint=constraint.constraint), style).constraint
        return replace(wire, constraint=replace(constraint, constraint=inner))
    if not isinstance(constraint, JsonSchema):
        return wire
    whitespace = constraint.max_whitespace
    if style.max_whitespace is not None:
        whitespace = min(style.max_whitespace, whitespace)
    digits = constraint.max_digits if constraint.max_digits is not None else style.max_digits
    bounded = replace(constraint, max_whitespace=whitespace, max_digits=digits)
    if constraint.separators is None and whitespace == JsonSchema.max_whitespace:
        bounded = replace(bounded, separators=style.separators)
    return replace(wire, constraint=bounded)
