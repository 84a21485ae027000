"""From alternatives to IR nodes: one rule for each object or array that is visited."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from sglang_lite.constrained import budget, ir
from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.arrays import lower_array
from sglang_lite.constrained.json_schema.direct import Direct
from sglang_lite.constrained.json_schema.document import Document
from sglang_lite.constrained.json_schema.normalise import Normaliser
from sglang_lite.constrained.json_schema.numbers import lower_number
from sglang_lite.constrained.json_schema.objects import lower_object
from sglang_lite.constrained.json_schema.satisfiable import satisfiable
from sglang_lite.constrained.json_schema.strings import lower_string
from sglang_lite.constrained.json_schema.syntax import Syntax
from sglang_lite.constrained.json_schema.values import spellings
from sglang_lite.constrained.json_string import encode_key
from sglang_lite.errors import GrammarTooComplex

MAX_RULES = 50_000
"""How many objects and arrays one schema may lower to."""
MAX_LISTED = 5_000
"""How many objects and arrays one ``enum`` may list: each is a way of its own for a text."""


class Plain(NamedTuple):
    """What is the same in every document: schemas that give no more than a type, and leaves."""

    anything: ir.Node
    nodes: dict[int, ir.Node]
    rules: dict[str, ir.Node]
    leaves: dict[Any, ir.Node]


class Lowering:
    """Turns conjunctions into nodes, each conjunction once.

    Objects and arrays become rules that wait in a list, so neither recursion in the schema nor
    its depth shows in Python's stack.
    """

    def __init__(
        self,
        normaliser: Normaliser,
        syntax: Syntax,
        *,
        property_order: ir.PropertyOrder,
        additional_properties: bool,
        max_digits: int | None,
        share: bool = True,
    ) -> None:
        self.normaliser = normaliser
        self.syntax = syntax
        self.property_order = property_order
        self.additional_properties = additional_properties
        self.max_digits = max_digits
        self.rules: dict[str, ir.Node] = {}
        self._values: dict[tuple[R.Term, ...], ir.Node] = {}
        self._records: dict[int, tuple[R.Record, ir.Node]] = {}
        self._waiting: list[tuple[str, R.Record]] = []
        # Its names are those of the first rules.
        self._plain = _plain(syntax, property_order, max_digits) if share else None
        self._plain_used = False
        self._count = len(self._plain.rules) if self._plain else 0
        self._direct: Direct | None = None
        if self._plain and not normaliser.document.dynamic:
            self._direct = Direct(self, self._plain.leaves)

    def language(self, schema: R.Conj) -> tuple[ir.Node, dict[str, ir.Node]]:
        """The root node and all rules."""
        root = self.value(schema)
        while self._waiting:
            budget.check()
            name, record = self._waiting.pop()
            if isinstance(record, R.Object):
                self.rules[name] = lower_object(self, record)
            else:
                assert isinstance(record, R.Array)
                self.rules[name] = lower_array(self, record)
        if self._plain and self._plain_used:
            self.rules.update(self._plain.rules)
        return root, self.rules

    def value(self, schema: R.Conj) -> ir.Node:
        """Any value that satisfies the conjunction."""
        if self._direct and schema and len(schema) == 1 and schema[0].positive:
            found = self._direct.node(schema[0].node)
            if found is not None:
                return found
        return self.general(schema)

    def general(self, schema: R.Conj) -> ir.Node:
        """The same by way of records, whatever the schema's shape."""
        if schema is None:
            return ir.NEVER
        if not schema and self._plain:
            return self.anything
        known = self._values.get(schema)
        if known is None:
            if satisfiable(self.normaliser, schema):
                known = self._alternatives(self.normaliser.alternatives(schema))
            else:
                known = ir.NEVER
            self._values[schema] = known
        return known

    @property
    def anything(self) -> ir.Node:
        """Any JSON value."""
        assert self._plain is not None
        self._plain_used = True
        return self._plain.anything

    def constant(self, value: Any) -> ir.Node:
        """Exactly ``value``, with this syntax's whitespace."""
        if isinstance(value, list):
            items = [self.constant(item) for item in value]
            return self.array(ir.repeat(ir.NEVER, len(items), len(items), self.syntax.comma, items))
        if isinstance(value, dict):
            members = [
                ir.Member(encode_key(name), self.constant(item), True)
                for name, item in value.items()
            ]
            return self.object(members)
        return ir.literals(spellings(value))

    def array(self, items: ir.Node) -> ir.Node:
        """``items`` in brackets."""
        return ir.sequence(self.syntax.open_array, items, self.syntax.close_array)

    def object(
        self, members: Iterable[ir.Member], extras: Iterable[ir.Extra] = (), **rules: Any
    ) -> ir.Node:
        """An object in this syntax and order of keys; ``rules`` as for ``ir.object_``."""
        syntax = self.syntax
        return ir.object_(
            members,
            extras,
            order=self.property_order,
            open=syntax.open_object,
            colon=syntax.colon,
            comma=syntax.comma,
            close=syntax.close_object,
            **rules,
        )

    def closed(self, record: R.Object) -> R.Object:
        """The record, without other keys where the option says so and the schema is silent."""
        if self.additional_properties or not record.layers:
            return record
        if not all(layer.silent for layer in record.layers if layer.annotates):
            return record
        properties = {name: R.ANYTHING for layer in record.layers for name in layer.properties}
        patterns = {text: R.ANYTHING for layer in record.layers for text in layer.patterns}
        if not properties and not patterns:
            return record
        properties.update(dict.fromkeys(record.required, R.ANYTHING))
        lid = R.Layer(properties, patterns, None, silent=False)
        return record._replace(layers=(*record.layers, lid))

    def _alternatives(self, found: R.Alternatives) -> ir.Node:
        nodes = [self.record(record) for records in found.values() for record in records]
        return nodes[0] if len(nodes) == 1 else ir.union(*nodes)

    def record(self, record: R.Record) -> ir.Node:
        """The values of one record."""
        # The same record object stands for all nodes that only give a type.
        known = self._records.get(id(record))
        if known is None:
            node = self._plain.nodes.get(id(record)) if self._plain else None
            if node is None:
                node = self._lower_record(record)
            elif isinstance(node, ir.Ref):
                self._plain_used = True
            known = self._records[id(record)] = (record, node)
        return known[1]

    def _lower_record(self, record: R.Record) -> ir.Node:
        if isinstance(record, R.String):
            return lower_string(record)
        if isinstance(record, R.Number):
            return lower_number(record, self.max_digits)
        if isinstance(record, R.Null):
            return ir.literal("null")
        if isinstance(record, R.Boolean):
            return ir.literals("true" if value else "false" for value in record.allowed)
        if record.values is not None:
            if len(record.values) > MAX_LISTED:
                raise GrammarTooComplex(
                    f"an enum lists {len(record.values)} objects or arrays; at most {MAX_LISTED}"
                )
            return ir.union(*(self.constant(value) for value in record.values.values()))
        if self._count >= MAX_RULES:
            raise GrammarTooComplex(f"JSON Schema lowers to more than {MAX_RULES} rules")
        name = f"{'array' if isinstance(record, R.Array) else 'object'}{self._count}"
        self._count += 1
        self._waiting.append((name, record))
        return ir.Ref(name)


@lru_cache(maxsize=64)
def _plain(syntax: Syntax, property_order: ir.PropertyOrder, max_digits: int | None) -> Plain:
    lowering = Lowering(
        Normaliser(Document("true")),
        syntax,
        property_order=property_order,
        additional_properties=True,
        max_digits=max_digits,
        share=False,
    )
    anything, rules = lowering.language(R.ANYTHING)
    nodes = {id(record): lowering.record(record) for record in R.DEFAULTS.values()}
    return Plain(anything, nodes, rules, {})
