"""unevaluatedProperties and unevaluatedItems, by what each alternative has evaluated.

An alternative is one way for the other keywords to hold, so it knows which members and items they
looked at.  Where several branches of an anyOf hold at once all of them count; the normaliser then
*tracks*: it keeps one alternative for each set of branches.  Negations evaluate nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.intersect import intersect_records

if TYPE_CHECKING:
    from sglang_lite.constrained.json_schema.normalise import Normaliser


def unevaluated_properties(to: Normaliser, term: R.Term, found: R.Alternatives) -> R.Alternatives:
    """``found`` with the keyword's schema on the members that an alternative leaves."""
    value = term.node.schema["unevaluatedProperties"]
    schema = to.in_place(term, value, "unevaluatedProperties")
    result: list[R.Record] = []
    for record in found.get("object", ()):
        assert isinstance(record, R.Object)
        known = [layer for layer in record.layers if layer.annotates]
        if all(layer.silent for layer in known):
            layer = R.Layer(
                {name: R.ANYTHING for layer in known for name in layer.properties},
                {text: R.ANYTHING for layer in known for text in layer.patterns},
                schema,
                silent=False,
            )
            narrowed = (R.Object(layers=(layer,)),)
            result.extend(intersect_records("object", (record,), narrowed))
        else:
            result.append(record)
    return _with(found, "object", result)


def unevaluated_items(to: Normaliser, term: R.Term, found: R.Alternatives) -> R.Alternatives:
    """``found`` with the keyword's schema on the items that an alternative leaves."""
    schema = to.in_place(term, term.node.schema["unevaluatedItems"], "unevaluatedItems")
    result: list[R.Record] = []
    for record in found.get("array", ()):
        assert isinstance(record, R.Array)
        if record.evaluated is None:
            result.append(record)
        else:
            wanted = _either(to, term, (schema, *record.marks))
            seen = (R.ANYTHING,) * record.evaluated
            narrowed = (R.Array(prefix=seen, rest=wanted, evaluated=None),)
            result.extend(intersect_records("array", (record,), narrowed))
    return _with(found, "array", result)


def _with(found: R.Alternatives, kind: R.Kind, records: list[R.Record]) -> R.Alternatives:
    result = {**found, kind: tuple(records)}
    if not records:
        del result[kind]
    return result


def _either(to: Normaliser, term: R.Term, schemas: tuple[R.Conj, ...]) -> R.Conj:
    """One conjunction that holds where one of ``schemas``, each a single schema, does."""
    if R.ANYTHING in schemas:
        return R.ANYTHING
    branches = [schema for schema in schemas if schema is not None]
    if len(branches) < 2:
        return branches[0] if branches else None
    parts = [branch[0].node.schema for branch in branches]
    node = to.document.synthetic(term.node, {"anyOf": parts}, "unevaluatedItems")
    return (R.Term(node, True, term.scope),)
