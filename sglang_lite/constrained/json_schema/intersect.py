"""Conjunction of alternatives: type by type, every record with every other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.membership import layer_schema, member_schema
from sglang_lite.constrained.json_schema.presence import merged
from sglang_lite.constrained.json_schema.values import common_values
from sglang_lite.errors import GrammarTooComplex

MAX_ALTERNATIVES = 1024
"""How many records of one type a schema may expand to."""

_T = TypeVar("_T")


def intersect(left: R.Alternatives, right: R.Alternatives) -> R.Alternatives:
    """What both allow."""
    if left is R.EVERYTHING:
        return right
    if right is R.EVERYTHING:
        return left
    result: R.Alternatives = {}
    for kind, records in left.items():
        others = right.get(kind)
        if others:
            merged = intersect_records(kind, records, others)
            if merged:
                result[kind] = merged
    return result


def intersect_records(
    kind: R.Kind, left: Sequence[R.Record], right: Sequence[R.Record]
) -> tuple[R.Record, ...]:
    """Every record of one type with every other, contradictions left out."""
    default = R.DEFAULTS[kind]
    if len(left) == 1 and left[0] is default:
        return tuple(right)
    if len(right) == 1 and right[0] is default:
        return tuple(left)
    if len(left) * len(right) > 16 * MAX_ALTERNATIVES:
        raise too_many(len(left) * len(right))
    both = _BOTH[kind]
    result: list[R.Record] = []
    for first in left:
        for second in right:
            merged = first if first == second else both(first, second)
            if merged is not None and merged not in result:
                result.append(merged)
                if len(result) > MAX_ALTERNATIVES:
                    raise too_many(len(result))
    return tuple(result)


def union(*cases: R.Alternatives, absorb: bool = True) -> R.Alternatives:
    """What any of ``cases`` allows; with ``absorb`` a record that allows all replaces others."""
    if len(cases) == 1:
        return cases[0]
    result: dict[R.Kind, list[R.Record]] = {}
    for case in cases:
        for kind, records in case.items():
            known = result.setdefault(kind, [])
            if absorb and len(known) == 1 and known[0] is R.DEFAULTS[kind]:
                continue
            if absorb and records[0] is R.DEFAULTS[kind]:
                known.clear()
            known.extend(record for record in records if record not in known)
            if len(known) > MAX_ALTERNATIVES:
                raise too_many(len(known))
    if absorb and len(result.get("object", ())) > 1:
        result["object"] = merged(result["object"])
    return {kind: tuple(records) for kind, records in result.items()}


def too_many(count: int) -> GrammarTooComplex:
    """The error for an expansion that passes the budget."""
    return GrammarTooComplex(
        f"JSON Schema expands to {count} alternatives of one type; at most {MAX_ALTERNATIVES}"
    )


def _null(left: R.Null, right: R.Null) -> R.Null:
    return left


def _boolean(left: R.Boolean, right: R.Boolean) -> R.Boolean | None:
    allowed = left.allowed & right.allowed
    return R.Boolean(allowed) if allowed else None


def _number(left: R.Number, right: R.Number) -> R.Number | None:
    lower = _stricter(left.lower, right.lower, max)
    upper = _stricter(left.upper, right.upper, min)
    if lower is not None and upper is not None:
        if lower.value > upper.value:
            return None
        if lower.value == upper.value and (lower.exclusive or upper.exclusive):
            return None
    if left.integer is not None and right.integer is not None and left.integer != right.integer:
        return None
    multiple_of = left.multiple_of | right.multiple_of
    not_multiple_of = left.not_multiple_of | right.not_multiple_of
    values = common_values(left.values, right.values)
    if multiple_of & not_multiple_of or values == {}:
        return None
    return R.Number(
        lower,
        upper,
        right.integer if left.integer is None else left.integer,
        multiple_of,
        not_multiple_of,
        values,
        left.excluded | right.excluded,
    )


def _stricter(left: R.Bound | None, right: R.Bound | None, choose: Any) -> R.Bound | None:
    if left is None or right is None:
        return right if left is None else left
    if left.value == right.value:
        return left if left.exclusive else right
    chosen: R.Bound = choose(left, right)
    return chosen


def _string(left: R.String, right: R.String) -> R.String | None:
    minimum = max(left.min_length, right.min_length)
    maximum = least(left.max_length, right.max_length)
    matches = left.matches | right.matches
    values = common_values(left.values, right.values)
    if (maximum is not None and maximum < minimum) or values == {}:
        return None
    if any(match.positive and match._replace(positive=False) in matches for match in matches):
        return None
    return R.String(minimum, maximum, matches, values, left.excluded | right.excluded)


def _array(left: R.Array, right: R.Array) -> R.Array | None:
    minimum = max(left.min_items, right.min_items)
    maximum = least(left.max_items, right.max_items)
    prefix = tuple(
        R.both(item_schema(left, place), item_schema(right, place))
        for place in range(max(len(left.prefix), len(right.prefix)))
    )
    rest = R.both(left.rest, right.rest)
    if rest is None:
        maximum = least(maximum, len(prefix))
    if None in prefix:
        maximum = least(maximum, prefix.index(None))
    values = common_values(left.values, right.values)
    if (maximum is not None and maximum < minimum) or values == {}:
        return None
    evaluated = (
        None
        if left.evaluated is None or right.evaluated is None
        else max(left.evaluated, right.evaluated)
    )
    return R.Array(
        prefix,
        rest,
        minimum,
        maximum,
        _joined(left.contains, right.contains),
        left.unique or right.unique,
        left.repeated or right.repeated,
        values,
        evaluated,
        _joined(left.marks, right.marks),
    )


def item_schema(record: R.Array, place: int) -> R.Conj:
    """What the item at index ``place`` must satisfy."""
    return record.prefix[place] if place < len(record.prefix) else record.rest


def _object(left: R.Object, right: R.Object) -> R.Object | None:
    maximum = least(left.max_properties, right.max_properties)
    values = common_values(left.values, right.values)
    merged = R.Object(
        _joined(left.required, right.required),
        _joined(left.layers, right.layers),
        R.both(left.names, right.names),
        max(left.min_properties, right.min_properties),
        maximum,
        _joined(left.clauses, right.clauses),
        _joined(left.witnesses, right.witnesses),
        values,
    )
    if maximum is not None and maximum < max(merged.min_properties, len(merged.required)):
        return None
    if values == {} or _clash(left, right) or _clash(right, left):
        return None
    return merged


def _clash(first: R.Object, second: R.Object) -> bool:
    """True if a name that ``first`` requires cannot have any value because of ``second``."""
    for name in first.required:
        schema: R.Conj = R.ANYTHING
        for layer in second.layers:
            schema = R.both(schema, layer_schema(layer, name))
        if schema != R.ANYTHING and R.both(schema, member_schema(first, name)) is None:
            return True
    return False


_BOTH: dict[R.Kind, Any] = {
    "null": _null,
    "boolean": _boolean,
    "number": _number,
    "string": _string,
    "array": _array,
    "object": _object,
}


def least(left: int | None, right: int | None) -> int | None:
    """The smaller of two upper bounds, None being no bound."""
    if left is None or right is None:
        return right if left is None else left
    return min(left, right)


def _joined(left: tuple[_T, ...], right: tuple[_T, ...]) -> tuple[_T, ...]:
    if not left or not right:
        return left or right
    return left + tuple(item for item in right if item not in left)
