"""Object records as IR objects.

Every declared name becomes a member whose value satisfies all the schemas that apply to that name;
each class of other keys becomes an extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from sglang_lite.constrained import ir
from sglang_lite.constrained.automaton import Automaton
from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.keys import declared_names, key_classes, key_sets
from sglang_lite.constrained.json_schema.membership import member_schemas
from sglang_lite.constrained.json_schema.witnesses import (
    declared_witnesses,
    keyword_of,
    undeclared_witnesses,
    with_member,
)
from sglang_lite.constrained.json_string import encode_key, key_dfa

if TYPE_CHECKING:
    from sglang_lite.constrained.json_schema.lower import Lowering

MAX_NAMED = 64
"""So many undeclared keys that can be a witness are named one by one."""
WITNESS_STEPS = 20
"""What one case of a witness costs in the normaliser's budget."""


Needed: TypeAlias = "tuple[Automaton, R.Conj]"
"""Undeclared keys, one of which must be there, and the schema of its value."""


def lower_object(to: Lowering, record: R.Object, needed: Needed | None = None) -> ir.Node:
    """The record as JSON text."""
    if record.witnesses:
        return _with_witness(to, record, needed)
    record = to.closed(record)
    listed, keys = key_sets(to.normaliser, record.names)
    names = declared_names(record, listed)
    places = {name: place for place, name in enumerate(names)}
    required = frozenset(record.required)
    members = []
    for name, schema in member_schemas(record, names).items():
        if schema is not None and record.names and not to.normaliser.satisfies(name, record.names):
            schema = None
        value = to.value(schema)
        members.append(ir.Member(encode_key(name), value, name in required))
    clauses = [
        ir.Clause(
            tuple(places[name] for name in sorted(clause.present)),
            tuple(places[name] for name in sorted(clause.absent)),
        )
        for clause in record.clauses
    ]
    extras = []
    if keys is not None:
        for found, schema in key_classes(record, keys):
            extras.append(ir.Extra(key_dfa(found), to.value(schema)))
    if needed is not None:
        extras.append(ir.Extra(key_dfa(needed[0]), to.value(needed[1]), needed=True))
    return to.object(
        members,
        extras,
        minimum=record.min_properties,
        maximum=record.max_properties,
        clauses=clauses,
    )


def _with_witness(to: Lowering, record: R.Object, needed: Needed | None) -> ir.Node:
    """Objects with one more witness: one case for each key or class of keys that can be it."""
    witness = record.witnesses[0]
    others = to.closed(record._replace(witnesses=record.witnesses[1:]))
    cases: list[tuple[R.Object, Needed | None]] = [
        (case, needed) for case in declared_witnesses(to.normaliser, others, witness)
    ]
    for keys, value in undeclared_witnesses(to.normaliser, others, witness):
        names = keys.enumerate(MAX_NAMED)
        if needed is not None:
            reason = "cannot be negated beside another rule for keys that the schema does not list"
            to.normaliser.refuse(witness.origin, keyword_of(witness), reason)
            return lower_object(to, others, needed)
        if names is None:
            cases.append((others, (keys, value)))
        else:
            cases += [(with_member(others, name, value), None) for name in names]
    nodes = []
    for case, key in cases:
        to.normaliser.spend(WITNESS_STEPS)
        nodes.append(lower_object(to, case, key))
    return ir.union(*nodes)
