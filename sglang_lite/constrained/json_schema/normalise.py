"""From a schema node to alternatives: all its keywords intersected, whatever their mix.

Two tables carry the recursion.  ``expand`` maps one term to what it says; ``alternatives`` maps a
conjunction of terms to what they say together.  Both are memoised by place, not by content, so a
recursive schema comes back to a table entry; a reference that comes back to itself without going
into a member or an item says nothing and is refused.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from sglang_lite.constrained import budget
from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.applicators import APPLICATORS, reference
from sglang_lite.constrained.json_schema.difference import complement_parts, subtract
from sglang_lite.constrained.json_schema.document import Document, Node
from sglang_lite.constrained.json_schema.intersect import intersect
from sglang_lite.constrained.json_schema.keywords import Reader
from sglang_lite.constrained.json_schema.membership import fits, in_record
from sglang_lite.constrained.json_schema.presence import forbidding
from sglang_lite.constrained.json_schema.unevaluated import (
    unevaluated_items,
    unevaluated_properties,
)
from sglang_lite.constrained.json_schema.values import identity, kind_of
from sglang_lite.errors import GrammarTooComplex, InvalidSchema, UnsupportedSchema

MAX_DEPTH = 120
"""How deeply in-place schemas (allOf, anyOf, $ref ...) may nest."""
MAX_STEPS = 40_000
"""How many pairs of records may be intersected to subtract one schema from another."""
MAX_EXPANSIONS = 100_000
"""How many terms and conjunctions one schema may expand to."""
_IN_PLACE = frozenset((*APPLICATORS, "unevaluatedItems", "unevaluatedProperties"))


class SelfReference(InvalidSchema):
    """A schema refers to itself without going into a member or an item."""


class Normaliser:
    """Expands the schemas of one document; see the module's text.

    With ``warn`` a keyword that cannot be enforced is noted in ``warnings`` and left out instead
    of raising :class:`UnsupportedSchema`.
    """

    def __init__(self, document: Document, *, warn: bool = False) -> None:
        self.document = document
        self.warn = warn
        self.warnings: list[str] = []
        self.reader = Reader(document, self.refuse)
        self._expanded: dict[tuple[R.Term, bool], R.Alternatives] = {}
        self._open: dict[R.Term, None] = {}
        self._together: dict[tuple[R.Term, ...], R.Alternatives] = {}
        self.satisfiable: dict[tuple[R.Term, ...], bool] = {}
        self.tag_values: dict[int, tuple[R.Record, dict[str, frozenset[Hashable]]]] = {}
        self._complements: dict[int, tuple[R.Record, tuple[R.Record, ...]]] = {}
        self._members: dict[tuple[str, R.Conj], R.Layer] = {}
        self._steps = 0
        self._constants: dict[Any, R.Term] = {}

    def refuse(self, node: Node, keyword: str, reason: str) -> None:
        """Raise :class:`UnsupportedSchema`, or note it where warnings were asked for."""
        error = UnsupportedSchema(node.pointer, keyword, reason)
        if not self.warn:
            raise error
        if str(error) not in self.warnings:
            self.warnings.append(str(error))

    def root(self) -> R.Conj:
        """The conjunction of the document's root schema."""
        schema = self.document.root.schema
        if isinstance(schema, bool):
            return R.ANYTHING if schema else None
        scope = self.document.enter(self.document.root, ())
        return (R.Term(self.document.root, True, scope),)

    def alternatives(self, schema: R.Conj) -> R.Alternatives:
        """What a conjunction allows; listed values are filtered through everything beside them."""
        if schema is None:
            return R.NOTHING
        if not schema:
            return R.EVERYTHING
        known = self._together.get(schema)
        if known is None:
            result = self.expand_all(schema)
            known = self._together[schema] = self._filtered(result)
        return known

    def satisfies(self, value: Any, schema: R.Conj) -> bool:
        """True if ``value`` satisfies the conjunction."""
        records = self.alternatives(schema).get(kind_of(value), ())
        return any(in_record(value, record, self.satisfies) for record in records)

    def constant(self, origin: Node, value: Any) -> R.Term:
        """The term of ``{"enum": [value]}``."""
        mark = identity(value)
        term = self._constants.get(mark)
        if term is None:
            node = self.document.synthetic(origin, {"enum": [value]})
            term = self._constants[mark] = R.Term(node)
        return term

    def member(self, name: str, schema: R.Conj) -> R.Layer:
        """The layer that only restricts ``name``: one object for one restriction."""
        if schema is None:
            return forbidding(name)
        known = self._members.get((name, schema))
        if known is None:
            known = R.Layer(properties={name: schema}, annotates=False)
            self._members[name, schema] = known
        return known

    def expand(self, term: R.Term, tracking: bool = False) -> R.Alternatives:
        """What one positive term allows.

        With ``tracking`` branches that evaluate different members or items are kept apart, which
        only matters beside unevaluatedProperties and unevaluatedItems.
        """
        key = (term, tracking)
        known = self._expanded.get(key)
        if known is not None:
            return known
        if term in self._open:
            raise SelfReference(
                term.node.pointer, "refers to itself without going into a member or an item"
            )
        if len(self._open) >= MAX_DEPTH:
            raise GrammarTooComplex(f"JSON Schema nests more than {MAX_DEPTH} schemas in place")
        if len(self._expanded) + len(self._together) >= MAX_EXPANSIONS:
            raise GrammarTooComplex(f"JSON Schema expands to more than {MAX_EXPANSIONS} schemas")
        budget.check()
        self._open[term] = None
        try:
            result = self._schema(term, tracking)
        finally:
            del self._open[term]
        self._expanded[key] = result
        return result

    def _schema(self, term: R.Term, tracking: bool) -> R.Alternatives:
        node, schema = term.node, term.node.schema
        if isinstance(schema, bool):
            return R.EVERYTHING if schema else R.NOTHING
        if "$ref" in schema and self.document.draft <= 7:
            return reference(self, term, "$ref", schema["$ref"], tracking, R.EVERYTHING)
        result = self.reader.read(node, term.scope)
        if schema.keys().isdisjoint(_IN_PLACE):
            return result
        tracking = tracking or "unevaluatedProperties" in schema or "unevaluatedItems" in schema
        for keyword, apply in APPLICATORS.items():
            if keyword in schema:
                result = apply(self, term, keyword, schema[keyword], tracking, result)
        if "unevaluatedItems" in schema:
            result = unevaluated_items(self, term, result)
        if "unevaluatedProperties" in schema:
            result = unevaluated_properties(self, term, result)
        return result

    def complement(self, record: R.Record, origin: Node) -> tuple[R.Record, ...]:
        """Everything of its type that ``record`` refuses; the same objects when asked again."""
        known = self._complements.get(id(record))
        if known is None:
            known = self._complements[id(record)] = (
                record,
                complement_parts(self, record, origin),
            )
        return known[1]

    def spend(self, steps: int) -> None:
        """Count work on products of alternatives; raise where the budget is used up."""
        budget.check()
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise GrammarTooComplex(
                f"JSON Schema takes more than {MAX_STEPS} intersections to tell its branches apart"
            )

    def in_place(self, term: R.Term, value: Any, *tokens: str) -> R.Conj:
        """The conjunction of a subschema of ``term`` that applies to the same value."""
        return self.reader.schema(term.node, value, tokens, term.scope)

    def expand_all(self, schema: R.Conj, tracking: bool = False) -> R.Alternatives:
        """What a conjunction allows, listed values not yet filtered."""
        if schema is None:
            return R.NOTHING
        result = R.EVERYTHING
        for term in schema:
            if term.positive:
                result = intersect(result, self.expand(term, tracking))
        for term in schema:
            if not term.positive:
                refused = self.expand(term._replace(positive=True))
                result = subtract(self, result, refused, term.node, absorb=not tracking)
        return result

    def _filtered(self, found: R.Alternatives) -> R.Alternatives:
        """``found`` with the listed values of each record checked against all its constraints."""
        if not any(_lists(record) for records in found.values() for record in records):
            return found
        result: R.Alternatives = {}
        for kind, records in found.items():
            kept = [self._only_members(record) for record in records]
            present = tuple(record for record in kept if record is not None)
            if present:
                result[kind] = present
        return result

    def _only_members(self, record: R.Record) -> R.Record | None:
        if isinstance(record, (R.Null, R.Boolean)) or record.values is None:
            return record
        if record == type(record)(values=record.values):
            return record  # nothing but a list
        listed = {
            mark: value
            for mark, value in record.values.items()
            if fits(value, record, self.satisfies)
        }
        if not listed:
            return None
        return type(record)(values=listed)


def _lists(record: R.Record) -> bool:
    return not isinstance(record, (R.Null, R.Boolean)) and record.values is not None
