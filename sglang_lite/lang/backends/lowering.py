"""Sampling parameters and constraints in other servers' words.

What a dialect cannot say is refused with :class:`NotSupported` before anything is sent, because a
server that does not know a field ignores it.
"""

from __future__ import annotations

import importlib.util
import json
import re
from typing import Any

import regex

from sglang_lite.constraint import (
    JSON_OPTIONS,
    Choice,
    Constraint,
    Grammar,
    JsonSchema,
    Prefixed,
    Regex,
    StructuralTag,
)
from sglang_lite.errors import BackendError, NotSupported
from sglang_lite.sampling_params import SamplingParams

FILLS_CONTEXT = 1 << 30
"""A server of ours cuts it to the room in the context; null would be its default length."""


def sglang_params(params: SamplingParams, *, ours: bool = False) -> dict[str, Any]:
    """SGLang's ``sampling_params``; only what differs from the defaults.

    ``ours``: the server knows what this package adds to them.
    """
    defaults = SamplingParams()
    fields: dict[str, Any] = {}
    if not ours:
        params = _ending_by_itself(params)
    for name in vars(defaults):
        value = getattr(params, name)
        if name != "constraint" and value != getattr(defaults, name):
            fields[name] = list(value) if isinstance(value, tuple) else value
    # These two are sent always: servers differ in their defaults.
    limit = FILLS_CONTEXT if ours and params.max_new_tokens is None else params.max_new_tokens
    fields |= {"temperature": params.temperature, "max_new_tokens": limit}
    if "seed" in fields:
        fields["sampling_seed"] = fields.pop("seed")
    if "logit_bias" in fields:
        fields["logit_bias"] = {str(token): bias for token, bias in params.logit_bias}
    constrained = _our_constraint if ours else _sglang_constraint
    return {**fields, **constrained(params.constraint)}


def _ending_by_itself(params: SamplingParams) -> SamplingParams:
    """The parameters for a server where a constrained text ends by an end-of-sequence token."""
    if params.stop_outside:
        raise NotSupported("stop_outside is not supported by this server")
    return params if params.stop_outside is None else params.replace(stop_outside=None)


def _our_constraint(constraint: Constraint | None) -> dict[str, Any]:
    """The arguments of :func:`~sglang_lite.constraint.constraint_from_fields`."""
    if isinstance(constraint, Prefixed):
        return {**_our_constraint(constraint.constraint), "prefix": constraint.prefix}
    if isinstance(constraint, JsonSchema):
        standard = JsonSchema("true")
        options = {name: getattr(constraint, name) for name in JSON_OPTIONS}
        changed = {k: v for k, v in options.items() if v != getattr(standard, k)}
        fields: dict[str, Any] = {"json_schema": constraint.schema}
        return {**fields, "json_options": changed} if changed else fields
    if isinstance(constraint, Choice):
        return {"choices": list(constraint.choices)}
    if isinstance(constraint, Grammar) and constraint.syntax == "lark":
        return {"lark": _grammar_text(constraint)}
    return _sglang_constraint(constraint)


def _sglang_constraint(constraint: Constraint | None) -> dict[str, Any]:
    if constraint is None:
        return {}
    if isinstance(constraint, Regex):
        return {"regex": constraint.pattern}
    if isinstance(constraint, Choice):
        return {"regex": "|".join(map(re.escape, constraint.choices))}
    if isinstance(constraint, JsonSchema):
        return {"json_schema": strict_schema(constraint)}
    if isinstance(constraint, Grammar):
        if constraint.syntax == "lark":
            raise NotSupported("this server takes grammars in EBNF, not in Lark's syntax")
        return {"ebnf": _grammar_text(constraint)}
    if isinstance(constraint, Prefixed):
        raise NotSupported("this server does not take the prefix of a constraint")
    return {"structural_tag": constraint.spec}


def _grammar_text(grammar: Grammar) -> str:
    if grammar.start is not None:
        raise NotSupported(
            "servers start a grammar with its rule 'root' ('start' in Lark's syntax)"
        )
    return grammar.text


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


_OPENAI_FIELDS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "n": "n",
    "stop": "stop",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "logit_bias": "logit_bias",
}
_EXTENDED_FIELDS = {
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "min_new_tokens": "min_tokens",
    "stop_token_ids": "stop_token_ids",
    "ignore_eos": "ignore_eos",
    "skip_special_tokens": "skip_special_tokens",
}
_DIALECT_FIELDS = {
    "openai": {},
    "sglang": {"stop_regex": "stop_regex", "no_stop_trim": "no_stop_trim"},
    "vllm": {
        "no_stop_trim": "include_stop_str_in_output",
        "spaces_between_special_tokens": "spaces_between_special_tokens",
    },
}


def openai_params(params: SamplingParams, dialect: str, *, chat: bool) -> dict[str, Any]:
    """The fields of a chat or text completion for ``dialect`` (openai, vllm, sglang)."""
    names = _OPENAI_FIELDS | _DIALECT_FIELDS[dialect]
    if dialect != "openai":
        names |= _EXTENDED_FIELDS
    defaults = SamplingParams()
    params = _ending_by_itself(params)
    fields: dict[str, Any] = {"temperature": params.temperature}
    if params.max_new_tokens is not None:
        newest = chat and dialect == "openai"
        name = "max_completion_tokens" if newest else "max_tokens"
        fields[name] = params.max_new_tokens
    elif not chat:
        raise NotSupported("max_new_tokens=None: a completion API takes its default for it")
    for name in vars(defaults):
        value = getattr(params, name)
        if name in ("constraint", "max_new_tokens") or value == getattr(defaults, name):
            continue
        if name not in names:
            raise NotSupported(f"{name} is not supported by a server of dialect {dialect!r}")
        fields[names[name]] = list(value) if isinstance(value, tuple) else value
    if "logit_bias" in fields:
        fields["logit_bias"] = {str(token): bias for token, bias in params.logit_bias}
    if dialect == "openai" and len(params.stop) > 4:
        raise NotSupported("OpenAI takes at most 4 stop texts")
    return {**fields, **_openai_constraint(params.constraint, dialect, chat)}


def _openai_constraint(constraint: Constraint | None, dialect: str, chat: bool) -> dict[str, Any]:
    if constraint is None:
        return {}
    kind = type(constraint).__name__
    if dialect == "vllm":
        return {"structured_outputs": _vllm_constraint(constraint)}
    if isinstance(constraint, JsonSchema) and chat:
        schema = json.loads(strict_schema(constraint))
        named = {"name": "answer", "schema": schema, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    if dialect == "sglang" and isinstance(constraint, StructuralTag):
        return {"response_format": json.loads(constraint.spec)}
    if dialect == "sglang":
        return _sglang_constraint(constraint)
    raise NotSupported(f"a {kind} constraint is not supported by OpenAI's API")


def _vllm_constraint(constraint: Constraint) -> dict[str, Any]:
    if isinstance(constraint, Regex):
        return {"regex": constraint.pattern}
    if isinstance(constraint, Choice):
        return {"choice": list(constraint.choices)}
    if isinstance(constraint, JsonSchema):
        return {"json": json.loads(strict_schema(constraint))}
    if isinstance(constraint, Grammar):
        return {"grammar": _grammar_text(constraint)}
    if isinstance(constraint, Prefixed):
        raise NotSupported("this server does not take the prefix of a constraint")
    return {"structural_tag": constraint.spec}


def check_answer(constraint: Constraint | None, text: str) -> None:
    """Raise :class:`BackendError` where a server's finished answer breaks the constraint.

    JSON is checked against its schema where the library `jsonschema` is installed, else only for
    being JSON; grammars cannot be checked here.
    """
    problem: str | None = None
    if isinstance(constraint, Regex) and regex.fullmatch(constraint.pattern, text) is None:
        problem = f"does not match the regex {constraint.pattern!r}"
    elif isinstance(constraint, Choice) and text not in constraint.choices:
        problem = f"is none of {list(constraint.choices)}"
    elif isinstance(constraint, JsonSchema):
        problem = _json_problem(constraint, text)
    if problem is not None:
        raise BackendError(f"the server ignored the constraint: its answer {problem}", 200, text)


def _json_problem(constraint: JsonSchema, text: str) -> str | None:
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"is not JSON ({error})"
    if importlib.util.find_spec("jsonschema") is None:
        return None
    jsonschema = importlib.import_module("jsonschema")
    schema = json.loads(strict_schema(constraint))
    errors = jsonschema.validators.validator_for(schema)(schema).iter_errors(value)
    first = next(errors, None)
    return None if first is None else f"breaks the schema ({first.message})"
