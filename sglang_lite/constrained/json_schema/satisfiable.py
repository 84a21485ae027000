"""Is there any value at all?  A sound "no", and "yes" where it would take long to know.

Used to tell the branches of a oneOf apart and to drop alternatives that contradict themselves.
Whatever slips through is harmless: the engine prunes texts that cannot be finished.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from sglang_lite.constrained import budget
from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.intersect import intersect, item_schema
from sglang_lite.constrained.json_schema.membership import fits, member_schema
from sglang_lite.constrained.json_schema.strings import string_is_empty
from sglang_lite.constrained.json_schema.values import identity
from sglang_lite.errors import GrammarTooComplex, InvalidSchema

if TYPE_CHECKING:
    from sglang_lite.constrained.json_schema.normalise import Normaliser

_FREE = frozenset(map(id, R.DEFAULTS.values()))
MAX_NESTING = 12
"""How deep a contradiction is looked for."""


def overlap(to: Normaliser, left: R.Alternatives, right: R.Alternatives) -> bool:
    """False if no value is in both."""
    budget.check()
    for kind, records in left.items():
        others = right.get(kind, ())
        for first in records:
            for second in others:
                if _listed_apart(first, second) or tagged_apart(to, first, second):
                    continue
                to.spend(1)
                both = intersect({kind: (first,)}, {kind: (second,)})
                if both and satisfiable_record(to, both[kind][0]):
                    return True
    return False


def _listed_apart(left: R.Record, right: R.Record) -> bool:
    """True if both list their values and share none."""
    if isinstance(left, (R.Null, R.Boolean)) or isinstance(right, (R.Null, R.Boolean)):
        return False
    ours, theirs = left.values, right.values
    return ours is not None and theirs is not None and ours.keys().isdisjoint(theirs)


def tagged_apart(to: Normaliser, left: R.Record, right: R.Record) -> bool:
    """True if a member that both require has listed values, of which they share none."""
    ours, theirs = _tag_values(to, left), _tag_values(to, right)
    return any(name in theirs and values.isdisjoint(theirs[name]) for name, values in ours.items())


def _tag_values(to: Normaliser, record: R.Record) -> dict[str, frozenset[Hashable]]:
    """The required members that have a list of values, each with at least its values."""
    known = to.tag_values.get(id(record))
    if known is None:
        found: dict[str, frozenset[Hashable]] = {}
        if isinstance(record, R.Object) and record.values is None:
            for name in record.required:
                for term in member_schema(record, name) or ():
                    schema = term.node.schema
                    if term.positive and isinstance(schema, dict):
                        listed = _listed(schema, to.document.draft)
                        if listed is not None:
                            found[name] = found.get(name, listed) & listed
        known = to.tag_values[id(record)] = (record, found)
    return known[1]


def _listed(schema: dict[str, Any], draft: int) -> frozenset[Hashable] | None:
    if draft <= 7 and "$ref" in schema:
        return None  # Its siblings mean nothing.
    if isinstance(schema.get("enum"), list):
        return frozenset(map(identity, schema["enum"]))
    return frozenset((identity(schema["const"]),)) if "const" in schema else None


def satisfiable(to: Normaliser, schema: R.Conj, depth: int = 0) -> bool:
    """False if no value satisfies the conjunction."""
    if schema is None:
        return False
    if not schema or depth > MAX_NESTING:
        return True
    known = to.satisfiable.get(schema)
    if known is not None:
        return known
    # While it is being found out, say yes: a "no" below then never rests on a guess.
    to.satisfiable[schema] = True
    try:
        found = to.alternatives(schema)
    except GrammarTooComplex:
        return True
    except InvalidSchema:
        # The schema is being expanded right now, or is wrong, which its lowering will report.
        del to.satisfiable[schema]
        return True
    for records in found.values():
        for record in records:
            if satisfiable_record(to, record, depth + 1):
                return True
    to.satisfiable[schema] = False
    return False


def satisfiable_record(to: Normaliser, record: R.Record, depth: int = 0) -> bool:
    """False if no value satisfies the record."""
    if isinstance(record, (R.Null, R.Boolean)) or id(record) in _FREE:
        return True
    if record.values is not None:
        return any(_member(to, value, record) for value in record.values.values())
    if isinstance(record, R.Object):
        return _object(to, record, depth)
    if isinstance(record, R.Array):
        return _array(to, record, depth)
    if isinstance(record, R.String):
        if record.max_length is not None and record.max_length < record.min_length:
            return False
        return not string_is_empty(record)
    return _number(record)


def _number(record: R.Number) -> bool:
    lower, upper = record.lower, record.upper
    if lower is None or upper is None or lower.value < upper.value:
        if record.integer is not True or lower is None or upper is None:
            return True
        first = lower.value.to_integral_value(rounding="ROUND_CEILING")
        last = upper.value.to_integral_value(rounding="ROUND_FLOOR")
        if lower.exclusive and first == lower.value:
            first += 1
        if upper.exclusive and last == upper.value:
            last -= 1
        count = int(last - first) + 1
        if count > len(record.excluded):
            return count > 0
        return any(int(first) + step not in record.excluded for step in range(count))
    return lower.value == upper.value and lower.value not in record.excluded


def _array(to: Normaliser, record: R.Array, depth: int) -> bool:
    if record.max_items is not None and record.max_items < record.min_items:
        return False
    return all(
        satisfiable(to, item_schema(record, place), depth)
        for place in range(min(record.min_items, len(record.prefix) + 1))
    )


def _object(to: Normaliser, record: R.Object, depth: int) -> bool:
    fewest = max(record.min_properties, len(record.required))
    if record.max_properties is not None and record.max_properties < fewest:
        return False
    for name in record.required:
        if not satisfiable(to, member_schema(record, name), depth):
            return False
        if record.names and not _allowed_name(to, record.names, name):
            return False
    return True


def _allowed_name(to: Normaliser, names: R.Conj, name: str) -> bool:
    try:
        return to.satisfies(name, names)
    except InvalidSchema:
        return True


def _member(to: Normaliser, value: Any, record: R.Record) -> bool:
    try:
        return fits(value, record, to.satisfies)
    except InvalidSchema:
        return True
