"""Sampling parameters and constraints in other servers' words.

What a dialect cannot say is refused with :class:`NotSupported` before anything is sent, because a
server that does not know a field ignores it.
"""

from __future__ import annotations

import json
import re
from typing import Any

from sglang_lite.constraint import Choice, Constraint, Grammar, JsonSchema, Regex
from sglang_lite.errors import NotSupported
from sglang_lite.sampling_params import SamplingParams


def sglang_params(params: SamplingParams, *, lark: bool = False) -> dict[str, Any]:
    """SGLang's ``sampling_params``; only what differs from the defaults.

    ``lark``: the server also knows that grammar syntax.
    """
    defaults = SamplingParams()
    fields: dict[str, Any] = {}
    for name in vars(defaults):
        value = getattr(params, name)
        if name != "constraint" and value != getattr(defaults, name):
            fields[name] = list(value) if isinstance(value, tuple) else value
    # These two are sent always: servers differ in their defaults.
    fields |= {"temperature": params.temperature, "max_new_tokens": params.max_new_tokens}
    if "seed" in fields:
        fields["sampling_seed"] = fields.pop("seed")
    if "logit_bias" in fields:
        fields["logit_bias"] = {str(token): bias for token, bias in params.logit_bias}
    return {**fields, **_sglang_constraint(params.constraint, lark)}


def _sglang_constraint(constraint: Constraint | None, lark: bool) -> dict[str, Any]:
    if constraint is None:
        return {}
    if isinstance(constraint, Regex):
        return {"regex": constraint.pattern}
    if isinstance(constraint, Choice):
        return {"regex": "|".join(map(re.escape, constraint.choices))}
    if isinstance(constraint, JsonSchema):
        return {"json_schema": strict_schema(constraint)}
    if isinstance(constraint, Grammar):
        if constraint.syntax == "lark" and not lark:
            raise NotSupported("this server takes grammars in EBNF, not in Lark's syntax")
        return {"lark" if constraint.syntax == "lark" else "ebnf": constraint.text}
    return {"structural_tag": constraint.spec}


def strict_schema(constraint: JsonSchema) -> str:
    """The schema with our defaults written out, for servers that know only the standard."""
    schema = json.loads(constraint.schema)
    if not constraint.additional_properties and isinstance(schema, dict):
        _close(schema)
    return json.dumps(schema, ensure_ascii=False)


def _close(schema: Any) -> None:
    """Say ``additionalProperties: false`` wherever properties are listed and nothing is said."""
    if isinstance(schema, list):
        for item in schema:
            _close(item)
    elif isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            schema.setdefault("additionalProperties", False)
        for key, value in schema.items():
            if key not in ("enum", "const", "default", "examples"):
                _close(value)
