"""Schemas of the usual shape, straight to IR nodes.

Most schemas only say: an object of these members, an array of such items, a string of that length.
Reading these into records and back costs far more than writing their node down, and none of the
algebra is needed.  Whatever is not of this shape, or not well-formed, is left to the general way,
which refuses it with its place where it has to; the language is the same on both ways.
"""

from __future__ import annotations

from collections.abc import Set
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

from sglang_lite.constrained import budget, ir
from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.document import Node
from sglang_lite.constrained.json_schema.drafts import ANNOTATIONS, IDENTIFIERS, is_unknown
from sglang_lite.constrained.json_string import encode_key, json_key
from sglang_lite.errors import ConstraintError, GrammarTooComplex

if TYPE_CHECKING:
    from sglang_lite.constrained.json_schema.lower import Lowering

MAX_DEPTH = 16
"""How deeply nodes are nested in each other; what is deeper becomes a rule of its own."""
MAX_WAYS = 5_000
"""How many alternatives of an ``anyOf`` may differ, listed strings aside."""
MAX_DIFFERENT = 5_000
"""How many different schemas of numbers and strings one document may hold: each is an automaton."""
MAX_LEAVES = 4096
"""How many schemas of numbers and strings are remembered for all documents."""

Tokens: TypeAlias = tuple[str, ...]
"""The way from a place down to a schema that has no place of its own yet."""

_SILENT = ANNOTATIONS | IDENTIFIERS
_BARE = ANNOTATIONS | {"type"}
_NUMBERS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_OF_KIND: dict[str, frozenset[str]] = {
    "object": frozenset(("properties", "required", "additionalProperties")),
    "string": frozenset(("minLength", "maxLength", "pattern", "format")),
    "number": _NUMBERS,
    "integer": _NUMBERS,
    "array": frozenset(("items", "minItems", "maxItems")),
    "boolean": frozenset(),
    "null": frozenset(),
}
_EVERY_KIND = tuple(kind for kind in _OF_KIND if kind != "integer")
_WITH_TYPE = {kind: rules | {"type"} for kind, rules in _OF_KIND.items()}
_RULES = frozenset().union(("type", "enum", "const", "$ref", "anyOf"), *_OF_KIND.values())
_PLAIN_VALUES = frozenset((str, int, Decimal, bool))
_TEXTS = frozenset((str,))


class Direct:
    """The direct way of one document; each schema is lowered once."""

    def __init__(self, to: Lowering, leaves: dict[Any, ir.Node]) -> None:
        self._to = to
        self._leaves = leaves
        self._document = to.normaliser.document
        self._nodes: dict[int, ir.Node] = {}
        self._places: dict[Node, ir.Node] = {}
        self._open: dict[Node, int] = {}
        self._recursive: set[Node] = set()
        self._depth = 0
        self._different: set[Any] = set()

    def node(self, place: Node) -> ir.Node | None:
        """The values of the schema at ``place``; None where it is not of the usual shape.

        A schema that refers to itself becomes a rule; one that does so in place is not usual.
        """
        found = self._places.get(place)
        if found is None and isinstance(place.schema, dict):
            name = f"schema{place.index}"
            if place in self._open:
                if self._open[place] == self._depth:
                    return None
                self._recursive.add(place)
                return ir.Ref(name)
            self._open[place] = self._depth
            found = self._usual(place.schema, place, ())
            del self._open[place]
            if place in self._recursive:
                self._to.rules[name] = found or self._to.general((R.Term(place),))
                found = ir.Ref(name)
            if found is not None:
                self._places[place] = found
        return found

    def _bare(self, schema: Any) -> ir.Node | None:
        """The node of a schema that gives the type of a leaf and no more, as most members do."""
        if schema.__class__ is dict and schema.keys() <= _BARE:
            kind = schema.get("type")
            if kind.__class__ is str:
                return self._leaves.get((kind,))
        return None

    def _value(self, schema: Any, place: Node, tokens: Tokens) -> ir.Node:
        """The values of ``schema``, which stands ``tokens`` below ``place``."""
        if not isinstance(schema, dict):
            return self._general(schema, place, tokens)
        found = self._nodes.get(id(schema))
        if found is None:
            found = self._usual(schema, place, tokens)
            if found is None:
                found = self._general(schema, place, tokens)
            self._nodes[id(schema)] = found
        return found

    def _general(self, schema: Any, place: Node, tokens: Tokens) -> ir.Node:
        return self._to.general(self._to.normaliser.reader.schema(place, schema, tokens, ()))

    def _usual(self, schema: dict[str, Any], place: Node, tokens: Tokens) -> ir.Node | None:
        """One schema; None where it is not of the usual shape."""
        if tokens and ("$id" in schema or "id" in schema):
            place, tokens = self._document.below(place, schema, tokens), ()
        rules: Set[str] = schema.keys() - _SILENT
        kind = schema.get("type")
        if kind.__class__ is str and kind in _OF_KIND and rules <= _WITH_TYPE[kind]:
            return self._one_kind(kind, rules, schema, place, tokens)
        if not rules <= _RULES:
            rules = {rule for rule in rules if not is_unknown(rule)}
            if not rules <= _RULES:
                return None
        kinds = schema.get("type", _EVERY_KIND)
        if "type" in rules:
            if isinstance(kinds, str):
                kinds = (kinds,)
            if not isinstance(kinds, (tuple, list)) or not all(map(_OF_KIND.__contains__, kinds)):
                return None
            rules = rules - {"type"}
        elif not rules:
            return self._to.anything
        elif len(rules) == 1 and "$ref" in rules:
            return self._reference(schema, place)
        elif len(rules) == 1 and "anyOf" in rules:
            return self._any_of(schema, place, tokens)
        if len(rules) == 1 and ("enum" in rules or "const" in rules):
            return self._listed(schema, kinds)
        return self._typed(kinds, rules, schema, place, tokens)

    def _typed(
        self,
        kinds: tuple[str, ...] | list[str],
        rules: Set[str],
        schema: dict[str, Any],
        place: Node,
        tokens: Tokens,
    ) -> ir.Node | None:
        """``rules``, each of which is about one of ``kinds``."""
        if len(kinds) == 1:
            return self._one_kind(kinds[0], rules, schema, place, tokens)
        if not rules <= frozenset().union(*map(_OF_KIND.__getitem__, kinds)):
            return None
        nodes: list[ir.Node] = []
        for kind in kinds:
            if kind != "integer" or "number" not in kinds:
                own = rules & _OF_KIND[kind]
                node = self._one_kind(kind, own, schema, place, tokens)
                if node is None:
                    return None
                nodes.append(node)
        return ir.union(*nodes)

    def _one_kind(
        self, kind: str, rules: Set[str], schema: dict[str, Any], place: Node, tokens: Tokens
    ) -> ir.Node | None:
        """Values of one kind, of which ``rules`` speak, and perhaps of the type."""
        if not rules <= _WITH_TYPE[kind]:
            return None
        if kind != "object" and kind != "array":
            return self._leaf(kind, rules - {"type"}, schema, place, tokens)
        if self._depth >= MAX_DEPTH:
            return None  # too deep for nodes within nodes
        budget.check()
        self._depth += 1
        lower = self._object if kind == "object" else self._array
        found = lower(schema, place, tokens)
        self._depth -= 1
        return found

    def _reference(self, schema: dict[str, Any], place: Node) -> ir.Node | None:
        reference = schema["$ref"]
        if not isinstance(reference, str):
            return None
        try:
            target = self._document.resolve(place, "$ref", reference)
        except ConstraintError:
            return None
        found = self.node(target)
        if found is None:
            found = self._places[target] = self._to.general((R.Term(target),))
        return found

    def _any_of(self, schema: dict[str, Any], place: Node, tokens: Tokens) -> ir.Node | None:
        branches = schema["anyOf"]
        if not isinstance(branches, list) or not branches:
            return None
        found: dict[ir.Node, None] = {}
        ways = 0
        for index, branch in enumerate(branches):
            node = self._value(branch, place, (*tokens, "anyOf", str(index)))
            if node not in found:
                found[node] = None
                ways += not isinstance(node, (ir.Literal, ir.LiteralSet))
                if ways > MAX_WAYS:
                    raise GrammarTooComplex(
                        f"an anyOf of {len(branches)} schemas; at most {MAX_WAYS} that differ"
                    )
        return ir.union(*found)

    def _object(self, schema: dict[str, Any], place: Node, tokens: Tokens) -> ir.Node | None:
        to = self._to
        properties, required = schema.get("properties", {}), schema.get("required", ())
        if not isinstance(properties, dict) or not isinstance(required, (list, tuple)):
            return None
        if not set(map(type, required)) <= _TEXTS:
            return None
        silent = "additionalProperties" not in schema
        if silent and not properties and not required:
            return to.record(R.DEFAULTS["object"])
        if silent:
            others = to.anything
        else:
            below = (*tokens, "additionalProperties")
            others = self._value(schema["additionalProperties"], place, below)
        needed = frozenset(required)
        members = [
            ir.Member(
                encode_key(name),
                self._bare(value) or self._value(value, place, (*tokens, "properties", name)),
                name in needed,
            )
            for name, value in properties.items()
        ]
        members += [
            ir.Member(encode_key(name), others, True)
            for name in dict.fromkeys(required)
            if name not in properties
        ]
        closed = silent and properties and not to.additional_properties
        return to.object(members, () if closed else (ir.Extra(json_key(), others),))

    def _array(self, schema: dict[str, Any], place: Node, tokens: Tokens) -> ir.Node | None:
        to = self._to
        fewest, most = schema.get("minItems", 0), schema.get("maxItems")
        items = schema.get("items", True)
        if not _is_count(fewest) or not (most is None or _is_count(most)):
            return None
        if isinstance(items, list):
            return None
        if items is True and not fewest and most is None:
            return to.record(R.DEFAULTS["array"])
        node = self._bare(items) or self._value(items, place, (*tokens, "items"))
        return to.array(ir.repeat(node, fewest, most, to.syntax.comma))

    def _leaf(
        self, kind: str, rules: Set[str], schema: dict[str, Any], place: Node, tokens: Tokens
    ) -> ir.Node | None:
        """Numbers, strings and constants go the general way once for all documents."""
        names = sorted(rules)
        values = [schema[name] for name in names]
        types = [value.__class__ for value in values]
        if not _PLAIN_VALUES.issuperset(types):
            return None
        key = (kind, *names, *types, *values)
        self._different.add(key)
        if len(self._different) > MAX_DIFFERENT:
            raise GrammarTooComplex(
                f"JSON Schema has more than {MAX_DIFFERENT} different numbers and strings"
            )
        found = self._leaves.get(key)
        if found is None:
            alone = {"type": kind, **{rule: schema[rule] for rule in rules}}
            term = R.Term(self._document.synthetic(place, alone, *tokens))
            found = self._to.general((term,))
            if not self._to.normaliser.warn:
                if len(self._leaves) >= MAX_LEAVES:
                    self._leaves.clear()
                self._leaves[key] = found
        return found

    def _listed(self, schema: dict[str, Any], kinds: tuple[str, ...]) -> ir.Node | None:
        """A list of strings and constants."""
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        if not isinstance(values, list) or ("const" in schema and self._document.draft < 6):
            return None
        texts = []
        for value in values:
            if isinstance(value, str):
                if "string" in kinds:
                    texts.append(encode_key(value))
            elif value is None:
                if "null" in kinds:
                    texts.append(b"null")
            elif isinstance(value, bool):
                if "boolean" in kinds:
                    texts.append(b"true" if value else b"false")
            else:
                return None
        return ir.literals(texts) if texts else None


def _is_count(value: Any) -> bool:
    return value.__class__ is int and value >= 0
