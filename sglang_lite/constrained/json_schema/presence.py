"""Which members are there: unions of objects that differ in nothing else become one object.

``anyOf`` and ``oneOf`` over ``required``, ``dependentRequired`` and their negations only speak of
presence.  As clauses of one object (conjunctive normal form) they cost the engine a few bits; as
alternatives each of them would carry all members again.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

from sglang_lite.constrained.json_schema import records as R

MAX_CLAUSES = 48
"""Objects stay apart where one would need more clauses."""

_Clauses: TypeAlias = "frozenset[R.Clause]"


@lru_cache(maxsize=4096)
def forbidding(name: str) -> R.Layer:
    """The layer that forbids the key ``name``: one object for one name."""
    return R.Layer(properties={name: None}, annotates=False)


def merged(records: Iterable[R.Record]) -> list[R.Record]:
    """``records``, with those that differ in presence only joined where that stays small."""
    groups: dict[object, list[R.Object]] = {}
    for record in records:
        assert isinstance(record, R.Object)
        groups.setdefault(_base(record), []).append(record)
    result: list[R.Record] = []
    for group in groups.values():
        result.extend(_joined(group) if len(group) > 1 else group)
    return result


def _base(record: R.Object) -> object:
    """What two records must share to differ in presence only."""
    if record.values is not None:
        return id(record)
    layers = tuple(id(layer) for layer in record.layers if not _forbids(layer))
    witnesses = tuple(map(id, record.witnesses))
    return (layers, witnesses, record.names, record.min_properties, record.max_properties)


def _forbids(layer: R.Layer) -> bool:
    return len(layer.properties) == 1 and layer is forbidding(next(iter(layer.properties)))


def _joined(group: list[R.Object]) -> list[R.Object]:
    joined = _clauses(group[0])
    for record in group[1:]:
        found = _either(joined, _clauses(record))
        if found is None:
            return group
        joined = found
    named = dict.fromkeys(name for record in group for name in record.required)
    required = [name for name in named if R.Clause(frozenset((name,))) in joined]
    refused = [clause for clause in joined if not clause.present and len(clause.absent) == 1]
    units = {R.Clause(frozenset((name,))) for name in required}.union(refused)
    layers = [layer for layer in group[0].layers if not _forbids(layer)]
    layers += [forbidding(name) for name in sorted(name for c in refused for name in c.absent)]
    clauses = sorted(joined - units, key=lambda c: (sorted(c.present), sorted(c.absent)))
    return [
        group[0]._replace(required=tuple(required), layers=tuple(layers), clauses=tuple(clauses))
    ]


def _clauses(record: R.Object) -> _Clauses:
    """Everything that a record says about presence."""
    found = set(record.clauses)
    found.update(R.Clause(frozenset((name,))) for name in record.required)
    for layer in record.layers:
        if _forbids(layer):
            found.add(R.Clause(absent=frozenset(layer.properties)))
    return frozenset(found)


def _either(left: _Clauses, right: _Clauses) -> _Clauses | None:
    """The clauses of "left or right", None if there are too many."""
    found: set[R.Clause] = set()
    for one in left:
        for other in right:
            clause = R.Clause(one.present | other.present, one.absent | other.absent)
            if not clause.present & clause.absent:
                found.add(clause)
    # What implies a clause is shorter, so it comes before it.
    kept: list[R.Clause] = []
    for clause in sorted(found, key=lambda c: len(c.present) + len(c.absent)):
        if not any(k.present <= clause.present and k.absent <= clause.absent for k in kept):
            kept.append(clause)
            if len(kept) > MAX_CLAUSES:
                return None
    return frozenset(kept)
