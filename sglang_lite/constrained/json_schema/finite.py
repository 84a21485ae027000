"""Conjunctions with few values: listed ones, short ranges of integers, finite patterns."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from sglang_lite.constrained.automaton import EmptyLanguage
from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.membership import fits
from sglang_lite.constrained.json_schema.strings import string_automaton
from sglang_lite.constrained.json_schema.values import listing

if TYPE_CHECKING:
    from sglang_lite.constrained.json_schema.normalise import Normaliser


def finite_values(to: Normaliser, schema: R.Conj, limit: int) -> R.Listed | None:
    """All values of a conjunction, None if there may be more than ``limit``."""
    values: dict[Hashable, Any] = {}
    for records in to.alternatives(schema).values():
        for record in records:
            found = record_values(to, record, limit)
            if found is None or len(found) + len(values) > limit:
                return None
            values.update(found)
    return values


def record_values(to: Normaliser, record: R.Record, limit: int) -> R.Listed | None:
    """All values of a record, None if there may be more than ``limit``."""
    if isinstance(record, R.Null):
        return listing((None,))
    if isinstance(record, R.Boolean):
        return listing(sorted(record.allowed))
    if record.values is not None:
        return record.values
    if isinstance(record, R.Number):
        return _integers(to, record, limit)
    if isinstance(record, R.String) and (record.matches or record.max_length is not None):
        try:
            texts = string_automaton(record).enumerate(limit)
        except EmptyLanguage:
            return {}
        return None if texts is None else listing(texts)
    return None


def _integers(to: Normaliser, record: R.Number, limit: int) -> R.Listed | None:
    if record.integer is not True or record.lower is None or record.upper is None:
        return None
    first, last = int(record.lower.value) - 1, int(record.upper.value) + 1
    if last - first > limit + 2:
        return None
    return listing(n for n in range(first, last + 1) if fits(n, record, to.satisfies))
