"""``contains`` with its bounds, for one or several such keywords on one array.

Every item belongs to one *kind*: the set of ``contains`` schemas it is counted for.  Bounds on a
schema's count are bounds on sums over kinds, so they become a union of cases in which each kind has
bounds of its own.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from sglang_lite.constrained import ir
from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.intersect import item_schema
from sglang_lite.constrained.json_schema.negate import negated_terms

if TYPE_CHECKING:
    from sglang_lite.constrained.json_schema.lower import Lowering

ItemKind: TypeAlias = tuple[bool, ...]
"""For each ``contains`` of the array whether an item is counted for it."""

MAX_CASES = 512
"""How many ways to distribute counts over kinds are tried."""


def lower_contains(to: Lowering, record: R.Array) -> ir.Node | None:
    """The items of an array with ``contains``; None where there are too many cases."""
    wanted = record.contains
    if 1 << len(wanted) > MAX_CASES:
        return None
    kinds = list(product((True, False), repeat=len(wanted)))
    lower, upper = _lower_bounds(wanted, kinds), _upper_bounds(wanted, kinds)
    if lower is None or upper is None or len(lower) * len(upper) > MAX_CASES:
        return None
    places = max(len(record.prefix), *(each.start for each in wanted))
    head = [tuple(_item(to, record, kind, place) for kind in kinds) for place in range(places)]
    items = [_item(to, record, kind, places) for kind in kinds]
    cases = []
    for least, most in product(lower, upper):
        bounds = [
            ir.Kind(item, low, high) for item, low, high in zip(items, least, most, strict=True)
        ]
        if all(kind.maximum is None or kind.minimum <= kind.maximum for kind in bounds):
            cases.append(
                ir.repeat_kinds(bounds, record.min_items, record.max_items, to.syntax.comma, head)
            )
    return ir.union(*cases)


def _item(to: Lowering, record: R.Array, kind: ItemKind, place: int) -> ir.Node:
    """An item of this kind at index ``place``.

    Where a schema has no maximum an item may satisfy it without being counted, so the negation is
    needed only beside a maximum.
    """
    schemas = [item_schema(record, place)]
    for counted, each in zip(kind, record.contains, strict=True):
        if place < each.start:
            if counted:
                return ir.NEVER
        elif counted:
            schemas = [R.both(schema, each.schema) for schema in schemas]
        elif each.maximum is not None:
            schemas = [
                R.both(schema, negated)
                for schema in schemas
                for negated in negated_terms(each.schema)
            ]
    return ir.union(*(to.value(schema) for schema in schemas))


def _lower_bounds(
    wanted: tuple[R.Contains, ...], kinds: list[ItemKind]
) -> list[tuple[int, ...]] | None:
    """The smallest counts of the kinds with which every minimum is reached."""
    if len(wanted) == 1:
        return [tuple(wanted[0].minimum if counted else 0 for (counted,) in kinds)]
    counts = _count_vectors(kinds, max(each.minimum for each in wanted))
    if counts is None:
        return None
    enough = [
        vector
        for vector in counts
        if all(_sum(vector, kinds, which) >= each.minimum for which, each in enumerate(wanted))
    ]
    return [v for v in enough if not any(w != v and _covers(v, w) for w in enough)]


def _upper_bounds(
    wanted: tuple[R.Contains, ...], kinds: list[ItemKind]
) -> list[tuple[int | None, ...]] | None:
    """The largest counts of the kinds with which every maximum is kept; None is no limit."""
    limits = {which: each.maximum for which, each in enumerate(wanted) if each.maximum is not None}
    if not limits:
        return [(None,) * len(kinds)]
    if len(wanted) == 1:
        return [tuple(limits[0] if counted else None for (counted,) in kinds)]
    counts = _count_vectors(kinds, max(limits.values()))
    if counts is None:
        return None
    free = [not any(kind[which] for which in limits) for kind in kinds]
    kept = [
        vector
        for vector in counts
        if all(_sum(vector, kinds, which) <= limit for which, limit in limits.items())
        and not any(count for count, unlimited in zip(vector, free, strict=True) if unlimited)
    ]
    largest = [v for v in kept if not any(w != v and _covers(w, v) for w in kept)]
    return [
        tuple(None if unlimited else count for count, unlimited in zip(vector, free, strict=True))
        for vector in largest
    ]


def _count_vectors(kinds: list[ItemKind], most: int) -> list[tuple[int, ...]] | None:
    """All counts from 0 to ``most`` for every kind that counts for something."""
    ranges = [range(most + 1) if any(kind) else range(1) for kind in kinds]
    total = 1
    for values in ranges:
        total *= len(values)
    return None if total > MAX_CASES else list(product(*ranges))


def _sum(vector: tuple[int, ...], kinds: list[ItemKind], which: int) -> int:
    return sum(count for count, kind in zip(vector, kinds, strict=True) if kind[which])


def _covers(more: tuple[int, ...], less: tuple[int, ...]) -> bool:
    return all(a >= b for a, b in zip(more, less, strict=True))
