"""The keys of an object: declared names, and a partition of all the others.

Every name that some keyword mentions is declared.  The other keys are split by the patterns they
match, so that each class of keys has one conjunction for its values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sglang_lite.constrained.algebra import union
from sglang_lite.constrained.automaton import Automaton, EmptyLanguage, any_text
from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.strings import matching, string_automaton
from sglang_lite.errors import GrammarTooComplex

if TYPE_CHECKING:
    from sglang_lite.constrained.json_schema.normalise import Normaliser

MAX_KEY_CLASSES = 64
"""How many classes the patterns of one object may split the keys into."""
MAX_LISTED_KEYS = 1024
"""Largest finite set of key names that is listed rather than matched."""


def declared_names(record: R.Object, listed: Iterable[str] = ()) -> list[str]:
    """Every name that is mentioned, in the order of the schema; ``listed`` by propertyNames."""
    names: dict[str, None] = {}
    for layer in record.layers:
        names.update(dict.fromkeys(layer.properties))
    names.update(dict.fromkeys(record.required))
    for clause in record.clauses:
        names.update(dict.fromkeys(sorted(clause.absent | clause.present)))
    names.update(dict.fromkeys(listed))
    return list(names)


def key_sets(to: Normaliser, names: R.Conj) -> tuple[tuple[str, ...], Automaton | None]:
    """What propertyNames leaves: names to be listed, and a regular set of other keys."""
    if names == R.ANYTHING:
        return (), any_text()
    listed: list[str] = []
    keys: list[Automaton] = []
    for record in to.alternatives(names).get("string", ()):
        assert isinstance(record, R.String)
        try:
            found = string_automaton(record)
        except EmptyLanguage:
            continue
        if record.values is not None and len(record.values) <= MAX_LISTED_KEYS:
            listed.extend(record.values.values())
        else:
            keys.append(found)
    return tuple(listed), union(keys) if keys else None


def key_classes(record: R.Object, keys: Automaton) -> list[tuple[Automaton, R.Conj]]:
    """Classes of ``keys`` and the schema of their values; forbidden and empty ones are left out."""
    if not any(layer.patterns for layer in record.layers):
        schema = _class_schema(record, ())
        return [] if schema is None else [(keys, schema)]
    by_schema: dict[R.Conj, list[Automaton]] = {}
    for inside, outside, schema in _classes(record):
        if schema is None:
            continue
        try:
            found = matching(inside, outside, keys)
        except EmptyLanguage:
            continue
        by_schema.setdefault(schema, []).append(found)
    return [
        (union(parts) if len(parts) > 1 else parts[0], schema)
        for schema, parts in by_schema.items()
    ]


def _classes(record: R.Object) -> list[tuple[tuple[str, ...], tuple[str, ...], R.Conj]]:
    """(patterns matched, patterns not matched, schema), empty classes left out as they arise."""
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
    found = [(inside, outside, _class_schema(record, inside)) for inside, outside in classes]
    # Where every class has the same schema there is no need to tell them apart.
    return [((), (), found[0][2])] if len({schema for *_, schema in found}) == 1 else found


def _inhabited(patterns: tuple[str, ...], others: tuple[str, ...]) -> bool:
    try:
        matching(patterns, others, any_text())
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
