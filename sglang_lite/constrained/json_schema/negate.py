"""Complement of one record, by De Morgan down to single constraints.

It is an "or" over its constraints, each turned around: a minimum
becomes a maximum, a required name a forbidden one, a property's schema its negation (which stays
a term and is expanded only if visited).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.document import Node
from sglang_lite.constrained.json_schema.intersect import intersect_records
from sglang_lite.constrained.json_schema.presence import forbidding
from sglang_lite.constrained.json_schema.values import listing


class Parts(Protocol):
    """What negation needs of the normaliser."""

    def constant(self, origin: Node, value: Any) -> R.Term:
        """The term of ``{"enum": [value]}``."""

    def member(self, name: str, schema: R.Conj) -> R.Layer:
        """The layer that only restricts ``name``: one object for one restriction."""


def negated_terms(schema: R.Conj) -> list[R.Conj]:
    """The negation of a conjunction, as conjunctions any of which may hold."""
    if schema is None:
        return [R.ANYTHING]
    return [(term._replace(positive=not term.positive),) for term in schema]


def complement(record: R.Record, origin: Node, make: Parts) -> Iterator[R.Record]:
    """Records, any of which may hold, for everything of its type that ``record`` refuses.

    ``origin`` is the schema to blame where one of them cannot be enforced.
    """
    if isinstance(record, R.Boolean):
        others = frozenset((True, False)) - record.allowed
        if others:
            yield R.Boolean(others)
    elif isinstance(record, R.Number):
        yield from _numbers(record)
    elif isinstance(record, R.String):
        yield from _strings(record)
    elif isinstance(record, R.Array):
        yield from _arrays(record, origin, make)
    elif isinstance(record, R.Object):
        yield from _objects(record, origin, make)


def _numbers(record: R.Number) -> Iterator[R.Number]:
    if record.lower is not None:
        yield R.Number(upper=R.Bound(record.lower.value, not record.lower.exclusive))
    if record.upper is not None:
        yield R.Number(lower=R.Bound(record.upper.value, not record.upper.exclusive))
    if record.integer is not None:
        yield R.Number(integer=not record.integer)
    for divisor in record.multiple_of:
        yield R.Number(not_multiple_of=frozenset((divisor,)))
    for divisor in record.not_multiple_of:
        yield R.Number(multiple_of=frozenset((divisor,)))
    if record.values is not None:
        yield R.Number(excluded=frozenset(record.values.values()))
    if record.excluded:
        yield R.Number(values=listing(sorted(record.excluded)))


def _strings(record: R.String) -> Iterator[R.String]:
    if record.min_length:
        yield R.String(max_length=record.min_length - 1)
    if record.max_length is not None:
        yield R.String(min_length=record.max_length + 1)
    for match in sorted(record.matches):
        yield R.String(matches=frozenset((match._replace(positive=not match.positive),)))
    if record.values is not None:
        yield R.String(excluded=frozenset(record.values.values()))
    if record.excluded:
        yield R.String(values=listing(sorted(record.excluded)))


def _arrays(record: R.Array, origin: Node, make: Parts) -> Iterator[R.Array]:
    for place, schema in enumerate(record.prefix):
        for negated in negated_terms(schema):
            prefix = (R.ANYTHING,) * place + (negated,)
            yield R.Array(prefix=prefix, min_items=place + 1)
    for negated in negated_terms(record.rest):
        witness = R.Contains(negated, 1, None, len(record.prefix), origin)
        yield R.Array(contains=(witness,))
    if record.min_items:
        yield R.Array(max_items=record.min_items - 1)
    if record.max_items is not None:
        yield R.Array(min_items=record.max_items + 1)
    for wanted in record.contains:
        if wanted.minimum:
            fewer = wanted._replace(minimum=0, maximum=wanted.minimum - 1)
            yield R.Array(contains=(fewer,))
        if wanted.maximum is not None:
            yield R.Array(contains=(wanted._replace(minimum=wanted.maximum + 1, maximum=None),))
    if record.unique is not None:
        yield R.Array(repeated=record.unique)
    if record.repeated is not None:
        yield R.Array(unique=record.repeated)
    if record.values is not None:
        unlike: tuple[R.Record, ...] = (R.Array(),)
        for value in record.values.values():
            others = tuple(_arrays(_like_array(value, origin, make), origin, make))
            unlike = intersect_records("array", unlike, others)
        yield from unlike  # type: ignore[misc]


def _like_array(value: list[Any], origin: Node, make: Parts) -> R.Array:
    prefix = tuple((make.constant(origin, item),) for item in value)
    return R.Array(prefix=prefix, min_items=len(value), max_items=len(value))


def _objects(record: R.Object, origin: Node, make: Parts) -> Iterator[R.Object]:
    for name in record.required:
        yield forbid(name)
    for layer in record.layers:
        yield from _layer(layer, origin, make)
    if record.names != R.ANYTHING:
        yield R.Object(witnesses=(R.Witness(origin, None, names=record.names),))
    if record.min_properties:
        yield R.Object(max_properties=record.min_properties - 1)
    if record.max_properties is not None:
        yield R.Object(min_properties=record.max_properties + 1)
    for clause in record.clauses:
        layers = tuple(forbidding(name) for name in sorted(clause.present))
        yield R.Object(required=tuple(sorted(clause.absent)), layers=layers)
    for witness in record.witnesses:
        yield _obey(witness)
    if record.values is not None:
        unlike: tuple[R.Record, ...] = (R.Object(),)
        for value in record.values.values():
            others = tuple(_objects(_like_object(value, origin, make), origin, make))
            unlike = intersect_records("object", unlike, others)
        yield from unlike  # type: ignore[misc]


def forbid(name: str) -> R.Object:
    """Objects without the key ``name``."""
    return R.Object(layers=(forbidding(name),))


def _layer(layer: R.Layer, origin: Node, make: Parts) -> Iterator[R.Object]:
    for name, schema in layer.properties.items():
        for negated in negated_terms(schema):
            yield R.Object(required=(name,), layers=(make.member(name, negated),))
    for pattern, schema in layer.patterns.items():
        if schema != R.ANYTHING:
            yield R.Object(witnesses=(R.Witness(origin, schema, pattern=pattern),))
    if layer.additional != R.ANYTHING:
        yield R.Object(witnesses=(R.Witness(origin, layer.additional, layer=layer),))


def _obey(witness: R.Witness) -> R.Object:
    """No key of the witness's class violates its schema."""
    if witness.pattern is not None:
        layer = R.Layer(patterns={witness.pattern: witness.obeys}, annotates=False)
        return R.Object(layers=(layer,))
    if witness.layer is not None:
        known = witness.layer
        layer = R.Layer(
            dict.fromkeys(known.properties, R.ANYTHING),
            dict.fromkeys(known.patterns, R.ANYTHING),
            witness.obeys,
            silent=False,
            annotates=False,
        )
        return R.Object(layers=(layer,))
    return R.Object(names=witness.names)


def _like_object(value: dict[str, Any], origin: Node, make: Parts) -> R.Object:
    members = {name: (make.constant(origin, item),) for name, item in value.items()}
    layer = R.Layer(members, {}, None, silent=False, annotates=False)
    return R.Object(required=tuple(value), layers=(layer,))
