"""Number records as terminals."""

from __future__ import annotations

from decimal import Decimal

from sglang_lite.constrained import ir
from sglang_lite.constrained.automaton import EmptyLanguage
from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.values import spellings
from sglang_lite.constrained.numbers import number_dfa


def lower_number(record: R.Number, max_digits: int | None) -> ir.Node:
    """The record as JSON text: canonical spellings, at most ``max_digits`` where unbounded.

    A listed value may also be written the way the schema wrote it (``1.0`` beside ``1``).
    """
    if record.values is not None:
        return ir.literals(text for value in record.values.values() for text in spellings(value))
    lower, upper = record.lower, record.upper
    try:
        return ir.terminal(
            number_dfa(
                integer=record.integer is True,
                minimum=None if lower is None or lower.exclusive else lower.value,
                maximum=None if upper is None or upper.exclusive else upper.value,
                exclusive_minimum=lower.value if lower and lower.exclusive else None,
                exclusive_maximum=upper.value if upper and upper.exclusive else None,
                multiple_of=tuple(sorted(record.multiple_of)),
                not_multiple_of=_not_multiples(record),
                excluded=tuple(sorted(record.excluded)),
                max_digits=max_digits,
            )
        )
    except EmptyLanguage:
        return ir.NEVER


def _not_multiples(record: R.Number) -> tuple[Decimal, ...]:
    whole = {Decimal(1)} if record.integer is False else set()
    return tuple(sorted(record.not_multiple_of | whole))
