"""The shapes of keyword values: counts, numbers, lists of names."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sglang_lite.constrained.json_schema.document import Node
from sglang_lite.constrained.json_schema.values import is_integer
from sglang_lite.errors import InvalidSchema


def count_of(node: Node, keyword: str, value: Any) -> int:
    """A count, which may be written ``2.0``."""
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise InvalidSchema(f"{node.pointer}/{keyword}", f"{value!r} is not a count")
    if not is_integer(value) or value < 0:
        raise InvalidSchema(f"{node.pointer}/{keyword}", f"{value} is not a count")
    return int(value)


def number_of(node: Node, keyword: str, value: Any) -> Decimal:
    """A number, exact."""
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise InvalidSchema(f"{node.pointer}/{keyword}", f"{value!r} is not a number")
    return Decimal(value)


def names_of(node: Node, keyword: str, value: Any) -> tuple[str, ...]:
    """A list of strings, without repetitions."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidSchema(f"{node.pointer}/{keyword}", "a list of names")
    return tuple(dict.fromkeys(value))
