"""Objects that must break a rule somewhere: negated additionalProperties, patternProperties, ...

Some member has to have a key of a certain class and a value that does not satisfy a schema.  Every
declared name of that class is one case; the undeclared keys of the class are another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sglang_lite.constrained.algebra import combine
from sglang_lite.constrained.automaton import Automaton, EmptyLanguage, words
from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.keys import declared_names, key_classes, key_sets
from sglang_lite.constrained.json_schema.membership import member_schema, witness_key
from sglang_lite.constrained.json_schema.negate import negated_terms
from sglang_lite.constrained.json_schema.satisfiable import satisfiable
from sglang_lite.constrained.json_schema.strings import matching

if TYPE_CHECKING:
    from sglang_lite.constrained.json_schema.normalise import Normaliser


def declared_witnesses(to: Normaliser, record: R.Object, witness: R.Witness) -> Iterator[R.Object]:
    """``record`` with one of its declared names as the witness, for each that can be one."""
    listed, _ = key_sets(to, record.names)
    for name in declared_names(record, listed):
        if record.names and not to.satisfies(name, record.names):
            continue
        if not witness_key(witness, name, to.satisfies):
            continue
        for negated in negated_terms(witness.obeys):
            if satisfiable(to, R.both(member_schema(record, name), negated)):
                yield with_member(record, name, negated)


def with_member(record: R.Object, name: str, schema: R.Conj) -> R.Object:
    """``record`` with ``name`` there, its value as ``schema`` says."""
    return record._replace(
        required=tuple(dict.fromkeys((*record.required, name))),
        layers=(*record.layers, R.Layer({name: schema}, annotates=False)),
    )


def undeclared_witnesses(
    to: Normaliser, record: R.Object, witness: R.Witness
) -> Iterator[tuple[Automaton, R.Conj]]:
    """The classes of undeclared keys that can be the witness, and the schema of its value."""
    listed, keys = key_sets(to, record.names)
    if keys is None:
        return
    names = tuple(declared_names(record, listed))
    for found, schema in key_classes(record, keys):
        for negated in negated_terms(witness.obeys):
            value = R.both(schema, negated)
            if not satisfiable(to, value):
                continue
            for key in _class_keys(to, found, witness, names):
                yield key, value


def _class_keys(
    to: Normaliser, keys: Automaton, witness: R.Witness, names: tuple[str, ...]
) -> Iterator[Automaton]:
    """Those of ``keys`` that are of the witness's class and not declared, if any."""
    patterns: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    refused = [words(names)] if names else []
    if witness.pattern is not None:
        patterns = (witness.pattern,)
    elif witness.layer is not None:
        others = tuple(witness.layer.patterns)
        if witness.layer.properties:
            refused.append(words(tuple(witness.layer.properties)))
    else:
        listed, allowed = key_sets(to, witness.names)
        refused += [words(listed)] if listed else []
        refused += [allowed] if allowed is not None else []
    try:
        yield combine([matching(patterns, others, keys)], refused)
    except EmptyLanguage:
        return
