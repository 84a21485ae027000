"""JSON values as the specification sees them: types, equality, canonical spelling.

Numbers are ``int`` or :class:`~decimal.Decimal` (never ``float``), so that bounds and multiples
are exact.  ``1`` and ``1.0`` are the same number; ``true`` is no number.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from sglang_lite.constrained.json_schema.records import Kind, Listed


def kind_of(value: Any) -> Kind:
    """The JSON type of a value."""
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, list) else "number"


def identity(value: Any) -> Hashable:
    """A hashable stand-in: two values have equal ones if and only if JSON calls them equal."""
    if isinstance(value, bool) or value is None:
        return (value,)
    if isinstance(value, list):
        return ("array", tuple(identity(item) for item in value))
    if isinstance(value, dict):
        return ("object", frozenset((name, identity(item)) for name, item in value.items()))
    return value


def listing(values: Iterable[Any]) -> Listed:
    """A finite set of values; the first of equal ones is kept."""
    found: dict[Hashable, Any] = {}
    for value in values:
        found.setdefault(identity(value), value)
    return found


def common_values(left: Listed | None, right: Listed | None) -> Listed | None:
    """The values that both sets hold, None being no restriction at all."""
    if left is None or right is None:
        return right if left is None else left
    return {mark: value for mark, value in left.items() if mark in right}


def is_integer(value: int | Decimal) -> bool:
    """True for a number without a fraction, however it is spelled."""
    return isinstance(value, int) or value == value.to_integral_value()


def is_multiple(value: int | Decimal, divisor: Decimal) -> bool:
    """Exact divisibility."""
    return (Fraction(value) / Fraction(divisor)).denominator == 1


def spell_number(value: int | Decimal) -> str:
    """The canonical spelling of a number: no exponent, no superfluous zero."""
    if isinstance(value, int):
        return str(value)
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def spellings(value: Any) -> tuple[str, ...]:
    """The texts of anything but an array or an object: canonical, and a number as it was given."""
    if isinstance(value, (int, Decimal)) and not isinstance(value, bool):
        return spell_number(value), str(value)
    return (json.dumps(value, ensure_ascii=False),)
