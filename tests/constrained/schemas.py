"""Shorthand for tests: does a schema's language hold a text?"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from sglang_lite.constrained import ir
from sglang_lite.constrained.json_schema import lower_json_schema
from sglang_lite.constraint import JsonSchema
from tests.constrained.acceptor import accepts


@lru_cache(maxsize=256)
def _language(schema: str, options: tuple[tuple[str, Any], ...]) -> ir.Language:
    return lower_json_schema(JsonSchema(schema, **dict(options)))


def language(schema: Any, **options: Any) -> ir.Language:
    """The lowered language of a schema given as a Python value or as JSON text."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return _language(text, tuple(sorted(options.items())))


def holds(schema: Any, text: str | bytes, **options: Any) -> bool:
    """True if ``text`` is in the language of ``schema``."""
    return accepts(language(schema, **options), text)


def holds_value(schema: Any, value: Any, **options: Any) -> bool:
    """True if ``value``, written by ``json.dumps``, is in the language of ``schema``."""
    return holds(schema, json.dumps(value, ensure_ascii=False), **options)
