"""Array records as repetitions."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from sglang_lite.constrained import ir
from sglang_lite.constrained.algebra import union
from sglang_lite.constrained.automaton import Automaton, EmptyLanguage, words
from sglang_lite.constrained.byte_dfa import text_dfa
from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.contains import lower_contains
from sglang_lite.constrained.json_schema.finite import finite_values, record_values
from sglang_lite.constrained.json_schema.intersect import least
from sglang_lite.constrained.json_schema.strings import string_automaton
from sglang_lite.constrained.json_schema.values import spell_number
from sglang_lite.constrained.json_string import key_dfa

if TYPE_CHECKING:
    from sglang_lite.constrained.json_schema.lower import Lowering

MAX_DISTINCT = 64
"""Largest finite set of items that uniqueItems is enforced over, whatever the items are."""
MAX_NUMBERS = 10_000
"""Largest finite set of numbers, none of which begins another, that it is enforced over."""


def lower_array(to: Lowering, record: R.Array) -> ir.Node:
    """The record as JSON text."""
    if record.unique is not None and (record.max_items is None or record.max_items > 1):
        distinct = _distinct_texts(to, record)
        if distinct is not None:
            return distinct
        items = _unique(to, record)
    elif record.repeated is not None:
        to.normaliser.refuse(record.repeated, "uniqueItems", "cannot be negated")
        items = _items(to, record)
    elif record.contains:
        items = _containing(to, record)
    else:
        items = _items(to, record)
    return to.array(items)


def _items(to: Lowering, record: R.Array) -> ir.Node:
    head = record.prefix if record.max_items is None else record.prefix[: record.max_items]
    full = record.max_items is not None and record.max_items <= len(head)
    return ir.repeat(
        ir.NEVER if full else to.value(record.rest),
        record.min_items,
        record.max_items,
        to.syntax.comma,
        [to.value(schema) for schema in head],
    )


def _containing(to: Lowering, record: R.Array) -> ir.Node:
    found = lower_contains(to, record)
    if found is None:
        origin = record.contains[0].origin
        assert origin is not None
        reason = "has too many combinations with other contains of the same array"
        to.normaliser.refuse(origin, "contains", reason)
        return _items(to, record)
    return found


def _distinct_texts(to: Lowering, record: R.Array) -> ir.Node | None:
    """Distinct strings, and constants among them, each in its canonical spelling; else None.

    To the engine they are the keys of an object without values, none of which comes twice.  Their
    spellings must be prefix-free, as keys are, which those of numbers seldom are.
    """
    if record.prefix or record.contains:
        return None
    if finite_values(to.normaliser, record.rest, MAX_DISTINCT) is not None:
        return None
    texts: list[Automaton] = []
    constants: set[str] = set()
    for records in to.normaliser.alternatives(record.rest).values():
        for each in records:
            if isinstance(each, R.Null):
                constants.add("null")
            elif isinstance(each, R.Boolean):
                constants.update("true" if value else "false" for value in each.allowed)
            elif isinstance(each, R.Number):
                numbers = record_values(to.normaliser, each, MAX_NUMBERS)
                if numbers is None:
                    return None
                constants.update(map(spell_number, numbers.values()))
            elif not isinstance(each, R.String):
                return None
            else:
                with suppress(EmptyLanguage):
                    texts.append(string_automaton(each, portable=True))
    ordered = sorted(constants)
    if any(after.startswith(text) for text, after in pairwise(ordered)):
        return None
    keys = [key_dfa(union(texts))] if texts else []
    if constants:
        keys.append(text_dfa(words(tuple(ordered)), "utf8", False))
    return ir.object_(
        extras=[ir.Extra(key, ir.EMPTY) for key in keys],
        minimum=record.min_items,
        maximum=record.max_items,
        open=to.syntax.open_array,
        colon=ir.EMPTY,
        comma=to.syntax.comma,
        close=to.syntax.close_array,
        distinct=True,
    )


def _unique(to: Lowering, record: R.Array) -> ir.Node:
    """Items from finite sets: one kind for each value, which may stand once."""
    origin = record.unique
    assert origin is not None
    places = record.prefix if record.max_items is None else record.prefix[: record.max_items]
    listed = [finite_values(to.normaliser, schema, MAX_DISTINCT) for schema in places]
    rest_needed = record.max_items is None or record.max_items > len(places)
    rest = finite_values(to.normaliser, record.rest, MAX_DISTINCT) if rest_needed else {}
    if rest is None or any(values is None for values in listed):
        reason = f"needs items from a set of at most {MAX_DISTINCT} values"
        to.normaliser.refuse(origin, "uniqueItems", reason)
        return _containing(to, record) if record.contains else _items(to, record)
    if record.contains:
        to.normaliser.refuse(origin, "uniqueItems", "is combined with contains")
        return _containing(to, record)
    every = {mark: value for values in (*listed, rest) for mark, value in (values or {}).items()}
    if len(every) > MAX_DISTINCT:
        to.normaliser.refuse(origin, "uniqueItems", f"has more than {MAX_DISTINCT} values")
        return _items(to, record)
    nodes = {mark: to.constant(value) for mark, value in every.items()}
    head = [
        tuple(node if mark in (values or ()) else ir.NEVER for mark, node in nodes.items())
        for values in listed
    ]
    return ir.repeat_kinds(
        [ir.Kind(nodes[mark] if mark in rest else ir.NEVER, 0, 1) for mark in nodes],
        record.min_items,
        least(record.max_items, len(every)),
        to.syntax.comma,
        head,
    )
