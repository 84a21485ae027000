"""Does a JSON value satisfy a record?  Used to filter enums through all their siblings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.strings import matches_text
from sglang_lite.constrained.json_schema.values import identity, is_integer, is_multiple

Satisfies: TypeAlias = Callable[[Any, R.Conj], bool]
"""Whether a value satisfies a conjunction (the normaliser's method)."""


def in_record(value: Any, record: R.Record, satisfies: Satisfies) -> bool:
    """True if ``value``, of the record's JSON type, is one of its values."""
    if isinstance(record, R.Boolean):
        return value in record.allowed
    if isinstance(record, R.Null):
        return True
    if record.values is not None and identity(value) not in record.values:
        return False
    return fits(value, record, satisfies)


def fits(value: Any, record: R.Record, satisfies: Satisfies) -> bool:
    """True if ``value`` obeys all constraints of the record, its listed values left aside."""
    if isinstance(record, R.Number):
        return _in_number(value, record)
    if isinstance(record, R.String):
        return _in_string(value, record)
    if isinstance(record, R.Array):
        return _in_array(value, record, satisfies)
    assert isinstance(record, R.Object)
    return _in_object(value, record, satisfies)


def _in_number(value: Any, record: R.Number) -> bool:
    if record.lower is not None:
        bound, exclusive = record.lower
        if value < bound or (exclusive and value == bound):
            return False
    if record.upper is not None:
        bound, exclusive = record.upper
        if value > bound or (exclusive and value == bound):
            return False
    if record.integer is not None and is_integer(value) is not record.integer:
        return False
    if value in record.excluded:
        return False
    return all(is_multiple(value, divisor) for divisor in record.multiple_of) and not any(
        is_multiple(value, divisor) for divisor in record.not_multiple_of
    )


def _in_string(value: str, record: R.String) -> bool:
    if len(value) < record.min_length or value in record.excluded:
        return False
    if record.max_length is not None and len(value) > record.max_length:
        return False
    return all(matches_text(match, value) for match in record.matches)


def _in_array(value: list[Any], record: R.Array, satisfies: Satisfies) -> bool:
    if len(value) < record.min_items:
        return False
    if record.max_items is not None and len(value) > record.max_items:
        return False
    for index, item in enumerate(value):
        schema = record.prefix[index] if index < len(record.prefix) else record.rest
        if not satisfies(item, schema):
            return False
    for wanted in record.contains:
        count = sum(satisfies(item, wanted.schema) for item in value[wanted.start :])
        if count < wanted.minimum or (wanted.maximum is not None and count > wanted.maximum):
            return False
    if record.unique is not None or record.repeated is not None:
        distinct = len({identity(item) for item in value}) == len(value)
        if record.unique is not None and not distinct:
            return False
        if record.repeated is not None and distinct:
            return False
    return True


def _in_object(value: dict[str, Any], record: R.Object, satisfies: Satisfies) -> bool:
    if len(value) < record.min_properties or any(name not in value for name in record.required):
        return False
    if record.max_properties is not None and len(value) > record.max_properties:
        return False
    for clause in record.clauses:
        if clause.absent <= value.keys() and clause.present.isdisjoint(value):
            return False
    for name, item in value.items():
        if not satisfies(name, record.names) or not satisfies(item, member_schema(record, name)):
            return False
    return all(
        any(
            witness_key(witness, name, satisfies) and not satisfies(item, witness.obeys)
            for name, item in value.items()
        )
        for witness in record.witnesses
    )


def witness_key(witness: R.Witness, name: str, satisfies: Satisfies) -> bool:
    """True if a key is of the class that a witness is about."""
    if witness.pattern is not None:
        return matches_text(R.Match("pattern", witness.pattern), name)
    if witness.layer is not None:
        return is_additional(witness.layer, name)
    return not satisfies(name, witness.names)


def is_additional(layer: R.Layer, name: str) -> bool:
    """True if ``name`` is an additional key of this layer."""
    return name not in layer.properties and not any(
        matches_text(R.Match("pattern", pattern), name) for pattern in layer.patterns
    )


def member_schema(record: R.Object, name: str) -> R.Conj:
    """What the value of the key ``name`` must satisfy: the schemas of all layers."""
    if len(record.layers) == 1:
        return layer_schema(record.layers[0], name)
    schema: R.Conj = R.ANYTHING
    for layer in record.layers:
        schema = R.both(schema, layer_schema(layer, name))
    return schema


def member_schemas(record: R.Object, names: Iterable[str]) -> dict[str, R.Conj]:
    """:func:`member_schema` of many names: layers are not asked about names they don't mention."""
    if len(record.layers) < 3:
        return {name: member_schema(record, name) for name in names}
    everywhere = []
    mentions: dict[str, list[int]] = {}
    for place, layer in enumerate(record.layers):
        if layer.patterns or layer.additional != R.ANYTHING:
            everywhere.append(place)
        else:
            for name in layer.properties:
                mentions.setdefault(name, []).append(place)
    found = {}
    for name in names:
        schema: R.Conj = R.ANYTHING
        for place in sorted((*everywhere, *mentions.get(name, ()))):
            schema = R.both(schema, layer_schema(record.layers[place], name))
        found[name] = schema
    return found


def layer_schema(layer: R.Layer, name: str) -> R.Conj:
    """What one layer demands of the value of the key ``name``."""
    if not layer.patterns:
        return layer.properties.get(name, layer.additional)
    schema = layer.properties.get(name, R.ANYTHING)
    known = name in layer.properties
    for pattern, value in layer.patterns.items():
        if matches_text(R.Match("pattern", pattern), name):
            known, schema = True, R.both(schema, value)
    return schema if known else layer.additional
