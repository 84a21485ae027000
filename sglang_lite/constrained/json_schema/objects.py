"""Object records as IR objects.

Every declared name becomes a member whose value satisfies all the schemas that apply to that name;
each class of other keys becomes an extra.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from sglang_lite.constrained import ir
from sglang_lite.constrained.algebra import combine
from sglang_lite.constrained.automaton import Automaton, EmptyLanguage
from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.keys import declared_names, key_classes, key_sets
from sglang_lite.constrained.json_schema.membership import member_schemas
from sglang_lite.constrained.json_schema.satisfiable import satisfiable
from sglang_lite.constrained.json_schema.witnesses import (
    declared_witnesses,
    undeclared_witnesses,
    with_member,
)
from sglang_lite.constrained.json_string import encode_key, key_dfa

if TYPE_CHECKING:
    from sglang_lite.constrained.json_schema.lower import Lowering

MAX_NAMED = 64
"""So many undeclared keys that can be a witness are named one by one."""
WITNESS_STEPS = 15
"""What one case of a witness costs in the normaliser's budget; ten times as much for each needed
key beyond three: the ways in which keys may break many rules multiply, each with its states."""


Needed: TypeAlias = "tuple[tuple[Automaton, R.Conj], ...]"
"""Classes of undeclared keys, one of each of which must be there, and the schemas of its value."""
Case: TypeAlias = "tuple[R.Object, Needed]"


def lower_object(to: Lowering, record: R.Object, needed: Needed = ()) -> ir.Node:
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
    for found, schema in needed:
        extras.append(ir.Extra(key_dfa(found), to.value(schema), needed=True))
    return to.object(
        members,
        extras,
        minimum=record.min_properties,
        maximum=record.max_properties,
        clauses=clauses,
    )


def _with_witness(to: Lowering, record: R.Object, needed: Needed) -> ir.Node:
    """Objects with one more witness: one case for each key or class of keys that can be it."""
    witness = record.witnesses[0]
    others = to.closed(record._replace(witnesses=record.witnesses[1:]))
    cases: list[Case] = [
        (case, needed) for case in declared_witnesses(to.normaliser, others, witness)
    ]
    for keys, value in undeclared_witnesses(to.normaliser, others, witness):
        cases += _cases(others, keys, value, needed)
        # A key that an earlier witness needs may be this one, too.
        for place, (taken, demanded) in enumerate(needed):
            both = R.both(value, demanded)
            with suppress(EmptyLanguage):
                shared = combine([keys, taken])
                if satisfiable(to.normaliser, both):
                    cases += _cases(others, shared, both, needed[:place] + needed[place + 1 :])
    nodes = []
    for case, more in cases:
        to.normaliser.spend(WITNESS_STEPS * 10 ** max(0, len(more) - 3))
        nodes.append(lower_object(to, case, more))
    return ir.union(*nodes)


def _cases(record: R.Object, keys: Automaton, value: R.Conj, needed: Needed) -> list[Case]:
    """``record`` with one of the undeclared ``keys``: each by its name, or one of the class."""
    names = keys.enumerate(MAX_NAMED)
    if names is None:
        return [(record, (*needed, (keys, value)))]
    return [(with_member(record, name, value), needed) for name in names]
