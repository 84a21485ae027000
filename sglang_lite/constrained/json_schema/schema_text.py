"""The text of a schema as JSON values: numbers exact, and nothing that is not JSON."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

from sglang_lite.errors import GrammarTooComplex, InvalidSchema

MAX_EXPONENT = 400
"""Largest power of ten in a number of a schema."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read(text: str) -> Any:
    """The schema that ``text`` is: a dict or a bool, its numbers int or :class:`Decimal`.

    Raises :class:`InvalidSchema` for text that is no schema and :class:`GrammarTooComplex`.
    """
    try:
        root = _DECODER.decode(text)
    except RecursionError:
        raise GrammarTooComplex("JSON Schema nested too deeply to be read") from None
    except GrammarTooComplex:
        raise
    except ValueError as error:
        raise InvalidSchema("", f"not JSON: {error}") from None
    if not isinstance(root, (dict, bool)):
        raise InvalidSchema("", "a schema is an object or a boolean")
    if not _is_unicode(text, root):
        raise InvalidSchema("", "a lone surrogate is not a character")
    return root


def _is_unicode(text: str, root: Any) -> bool:
    """False where a lone surrogate stands in the text or is written as an escape."""
    try:
        if not text.isascii():
            text.encode()
        if "\\u" in text and _SURROGATE.search(text):
            json.dumps(root, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return False
    return True


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    if value and abs(value.adjusted()) > MAX_EXPONENT:
        raise GrammarTooComplex(f"the number {text} has more than {MAX_EXPONENT} digits")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_float=_decimal, parse_constant=_no_constant)
