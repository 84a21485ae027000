"""Object records as IR objects: declared members, and a partition of all other keys.

Every name that some keyword mentions becomes a member whose value satisfies all the schemas that
apply to that name.  The other keys are split by the patterns they match, so that each class of
keys has one conjunction for its values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from sglang_lite.constrained import ir
from sglang_lite.constrained.algebra import combine, union
from sglang_lite.constrained.automaton import Automaton, EmptyLanguage, any_text
from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.membership import member_schema
from sglang_lite.constrained.json_schema.strings import string_automaton
from sglang_lite.constrained.json_string import encode_key, key_dfa
from sglang_lite.constrained.regex import search
from sglang_lite.errors import GrammarTooComplex

if TYPE_CHECKING:
    from sglang_lite.constrained.json_schema.lower import Lowering

MAX_KEY_CLASSES = 256
"""How many classes the patterns of one object may split the keys into."""
MAX_LISTED_KEYS = 1024
"""Largest finite set of key names that is listed rather than matched."""


class KeyClass(NamedTuple):
    """Keys that match all ``patterns`` and none of ``others``, and the schema of their values."""

    patterns: tuple[str, ...]
    others: tuple[str, ...]
    schema: R.Conj


def lower_object(to: Lowering, record: R.Object) -> ir.Node:
    """The record as JSON text."""
    if record.witnesses:
        return _with_witness(to, record)
    record = to.closed(record)
    listed, keys = _key_sets(to, record.names)
    names = _declared(record, listed)
    places = {name: place for place, name in enumerate(names)}
    required = frozenset(record.required)
    members = []
    for name in names:
        schema = member_schema(record, name)
        if schema is not None and record.names and not to.normaliser.satisfies(name, record.names):
            schema = None
        value = to.value(schema)
        members.append(ir.Member(encode_key(name), value, name in required))
    clauses = [
        ir.Clause(present=(places[other],), absent=(places[name],))
        for name, others in record.implies
        for other in others
    ]
    syntax = to.syntax
    return ir.object_(
        members,
        [] if keys is None else _extras(to, record, keys),
        order=to.property_order,
        minimum=record.min_properties,
        maximum=record.max_properties,
        clauses=clauses,
        open=syntax.open_object,
        colon=syntax.colon,
        comma=syntax.comma,
        close=syntax.close_object,
    )


def _declared(record: R.Object, listed: tuple[str, ...]) -> list[str]:
    """Every name that is mentioned, in the order of the schema."""
    names: dict[str, None] = {}
    for layer in record.layers:
        names.update(dict.fromkeys(layer.properties))
    names.update(dict.fromkeys(record.required))
    for name, others in record.implies:
        names.update(dict.fromkeys((name, *others)))
    names.update(dict.fromkeys(listed))
    return list(names)


def _key_sets(to: Lowering, names: R.Conj) -> tuple[tuple[str, ...], Automaton | None]:
    """What propertyNames leaves: names to be listed, and a regular set of other keys."""
    if names == R.ANYTHING:
        return (), any_text()
    listed: list[str] = []
    keys: Automaton | None = None
    for record in to.normaliser.alternatives(names).get("string", ()):
        assert isinstance(record, R.String)
        try:
            found = string_automaton(record)
        except EmptyLanguage:
            continue
        if record.values is not None and len(record.values) <= MAX_LISTED_KEYS:
            listed.extend(record.values)
        else:
            keys = found if keys is None else union([keys, found])
    return tuple(listed), keys


def _extras(to: Lowering, record: R.Object, keys: Automaton) -> Iterator[ir.Extra]:
    """The undeclared keys; classes with the same schema are one."""
    by_schema: dict[R.Conj, Automaton] = {}
    for key_class in _classes(record):
        if key_class.schema is None:
            continue
        try:
            found = combine(
                [keys, *(search(text) for text in key_class.patterns)],
                [search(text) for text in key_class.others],
            )
        except EmptyLanguage:
            continue
        known = by_schema.get(key_class.schema)
        by_schema[key_class.schema] = found if known is None else union([known, found])
    for schema, automaton in by_schema.items():
        yield ir.Extra(key_dfa(automaton), to.value(schema))


def _classes(record: R.Object) -> list[KeyClass]:
    """The classes of keys that the patterns make, empty ones left out as soon as they arise."""
    patterns = dict.fromkeys(text for layer in record.layers for text in layer.patterns)
    classes: list[tuple[tuple[str, ...], tuple[str, ...]]] = [((), ())]
    for text in patterns:
        classes = [
            case
            for inside, outside in classes
            for case in (((*inside, text), outside), (inside, (*outside, text)))
            if len(patterns) == 1 or _inhabited(*case)
        ]
        if len(classes) > MAX_KEY_CLASSES:
            raise GrammarTooComplex(
                f"patternProperties make more than {MAX_KEY_CLASSES} classes of keys"
            )
    # Where every class has the same schema there is no need to tell them apart.
    schemas = {_class_schema(record, inside) for inside, _ in classes}
    if len(schemas) == 1:
        return [KeyClass((), (), schemas.pop())]
    return [KeyClass(inside, outside, _class_schema(record, inside)) for inside, outside in classes]


def _inhabited(patterns: tuple[str, ...], others: tuple[str, ...]) -> bool:
    try:
        combine([search(text) for text in patterns], [search(text) for text in others])
    except EmptyLanguage:
        return False
    return True


def _class_schema(record: R.Object, matched: tuple[str, ...]) -> R.Conj:
    schema: R.Conj = R.ANYTHING
    for layer in record.layers:
        applied = [layer.patterns[text] for text in matched if text in layer.patterns]
        for wanted in applied or [layer.additional]:
            schema = R.both(schema, wanted)
    return schema


def _with_witness(to: Lowering, record: R.Object) -> ir.Node:
    witness = record.witnesses[0]
    keyword = (
        "patternProperties"
        if witness.pattern is not None
        else "propertyNames"
        if witness.layer is None
        else "additionalProperties"
    )
    to.normaliser.refuse(witness.origin, keyword, "cannot be negated")
    return lower_object(to, record._replace(witnesses=()))
