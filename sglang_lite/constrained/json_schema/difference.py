"""What one set of alternatives allows and another does not.

The complement of a record is an "or" over its constraints, so subtracting many records one after
the other could multiply.  What keeps that small: a record is only subtracted from those it
overlaps; a tag (a required member with listed values) is told apart before everything else, so
that what has another tag overlaps no more; contradictions are dropped at once, and so is every
alternative that another one contains by having a subset of its constraints.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.document import Node
from sglang_lite.constrained.json_schema.intersect import (
    MAX_ALTERNATIVES,
    intersect_records,
    too_many,
)
from sglang_lite.constrained.json_schema.negate import complement, forbid, negated_terms
from sglang_lite.constrained.json_schema.presence import merged
from sglang_lite.constrained.json_schema.satisfiable import satisfiable_record

if TYPE_CHECKING:
    from sglang_lite.constrained.json_schema.normalise import Normaliser


def subtract(
    to: Normaliser,
    found: R.Alternatives,
    refused: R.Alternatives,
    origin: Node,
    *,
    absorb: bool = True,
) -> R.Alternatives:
    """``found`` without ``refused``, the schema at ``origin``.

    ``absorb`` drops alternatives that others contain, which loses what they have evaluated.
    """
    result: R.Alternatives = {}
    for kind, records in found.items():
        kept = list(records)
        for other in refused.get(kind, ()):
            kept = _without(to, kind, kept, other, origin)
            if absorb and kind == "object":
                kept = merged(absorbed(kept))
        if kept:
            result[kind] = tuple(kept)
    return result


def _without(
    to: Normaliser, kind: R.Kind, records: Iterable[R.Record], other: R.Record, origin: Node
) -> list[R.Record]:
    kept: list[R.Record] = []
    for record in records:
        to.spend(1)
        both = intersect_records(kind, (record,), (other,))
        if not both or not satisfiable_record(to, both[0]):
            kept.append(record)
            continue
        parts = to.complement(other, origin)
        to.spend(len(parts))
        for case in intersect_records(kind, (record,), parts):
            if case not in kept and satisfiable_record(to, case):
                kept.append(case)
        if len(kept) > MAX_ALTERNATIVES:
            raise too_many(len(kept))
    return kept


def complement_parts(to: Normaliser, record: R.Record, origin: Node) -> tuple[R.Record, ...]:
    """The complement of ``record``; all parts but those about a tag agree with the tag."""
    parts = tuple(complement(record, origin, to))
    tags = _tags(record)
    if not tags:
        return parts
    first: list[R.Record] = []
    agreed: tuple[R.Record, ...] = (R.Object(),)
    for name, schema in tags.items():
        first.append(forbid(name))
        for negated in negated_terms(schema):
            other = R.Object(required=(name,), layers=(to.member(name, negated),))
            first.extend(intersect_records("object", agreed, (other,)))
        same = R.Object(required=(name,), layers=(to.member(name, schema),))
        agreed = intersect_records("object", agreed, (same,))
    return (*first, *intersect_records("object", agreed, parts))


def _tags(record: R.Record) -> dict[str, R.Conj]:
    """The required members with listed values, each with its schema."""
    tags: dict[str, R.Conj] = {}
    if isinstance(record, R.Object):
        for layer in record.layers:
            for name, schema in layer.properties.items():
                if name in record.required and schema and any(map(_lists_values, schema)):
                    tags.setdefault(name, schema)
    return tags


def _lists_values(term: R.Term) -> bool:
    schema = term.node.schema
    return term.positive and isinstance(schema, dict) and ("enum" in schema or "const" in schema)


def absorbed(records: list[R.Record]) -> list[R.Record]:
    """Objects without those that another one contains, judged by their constraints alone."""
    if len(records) < 3:
        return records
    marked = [(_constraints(record), place) for place, record in enumerate(records)]
    kept: list[tuple[frozenset[object], int]] = []
    for marks, place in sorted(marked, key=lambda entry: (len(entry[0]), entry[1])):
        if not any(fewer <= marks for fewer, _ in kept):
            kept.append((marks, place))
    return [records[place] for place in sorted(place for _, place in kept)]


def _constraints(record: R.Record) -> frozenset[object]:
    assert isinstance(record, R.Object)
    marks: set[object] = set(record.required)
    marks.update(id(layer) for layer in record.layers)
    marks.update(id(witness) for witness in record.witnesses)
    marks.update(record.clauses)
    marks.add(("names", record.names))
    marks.add(("count", record.min_properties, record.max_properties))
    if record.values is not None:
        marks.add(id(record))
    return frozenset(marks)
