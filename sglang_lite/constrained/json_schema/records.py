"""What a schema says about one JSON type: plain records, joined by "or" and by "and".

A schema is held as *alternatives*: for each JSON type a tuple of records, any of which may hold
(disjunctive normal form).  A type without an entry is not allowed.  Inside a record the schemas of
members and items are *conjunctions* of terms that stay unexpanded until somebody visits them, so
recursion costs nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypeAlias

from sglang_lite.constrained.json_schema.document import Node, Resource

Kind = Literal["null", "boolean", "number", "string", "array", "object"]
KINDS: tuple[Kind, ...] = ("object", "string", "number", "array", "boolean", "null")
"""The JSON types, in the order in which alternatives are written; an integer is a number."""


class Term(NamedTuple):
    """One schema or, with ``positive`` False, its negation.

    ``scope`` are the resources entered on the way (only in documents with dynamic references).
    """

    node: Node
    positive: bool = True
    scope: tuple[Resource, ...] = ()


Conj: TypeAlias = "tuple[Term, ...] | None"
"""All of these terms, sorted and distinct; () allows everything, None nothing."""

ANYTHING: tuple[Term, ...] = ()

Listed: TypeAlias = Mapping[Hashable, Any]
"""A finite set of JSON values, each under its :func:`~.values.identity`."""


def both(left: Conj, right: Conj) -> Conj:
    """The conjunction of two conjunctions."""
    if left is None or right is None:
        return None
    if not left or left == right:
        return right
    if not right:
        return left
    terms = {*left, *right}
    for term in terms:
        if not term.positive and Term(term.node, True, term.scope) in terms:
            return None
    return tuple(sorted(terms, key=_order))


def _order(term: Term) -> tuple[Any, ...]:
    if not term.scope:
        return (term.node.index, term.positive)
    return (term.node.index, term.positive, tuple(entered.root.index for entered in term.scope))


class Null(NamedTuple):
    """The value ``null``."""


class Boolean(NamedTuple):
    """``true``, ``false`` or both."""

    allowed: frozenset[bool] = frozenset((True, False))


class Bound(NamedTuple):
    """One end of an interval of numbers."""

    value: Decimal
    exclusive: bool = False


class Number(NamedTuple):
    """Numbers between two bounds, integers (or not), multiples (or not)."""

    lower: Bound | None = None
    upper: Bound | None = None
    integer: bool | None = None
    multiple_of: frozenset[Decimal] = frozenset()
    not_multiple_of: frozenset[Decimal] = frozenset()
    values: Listed | None = None
    excluded: frozenset[Any] = frozenset()


class Match(NamedTuple):
    """A regular set of strings by pattern or format; with ``positive`` False all the others."""

    keyword: Literal["pattern", "format"]
    text: str
    positive: bool = True


class String(NamedTuple):
    """Strings by length in code points and by regular sets."""

    min_length: int = 0
    max_length: int | None = None
    matches: frozenset[Match] = frozenset()
    values: Listed | None = None
    excluded: frozenset[Any] = frozenset()


class Contains(NamedTuple):
    """From ``minimum`` to ``maximum`` items from index ``start`` on satisfy ``schema``."""

    schema: Conj
    minimum: int = 1
    maximum: int | None = None
    start: int = 0
    origin: Node | None = None


class Array(NamedTuple):
    """Items by position, by count, by what they contain.

    ``evaluated`` is how many leading items a keyword that annotates has looked at (None: all);
    ``marks`` are the schemas whose matching items count as evaluated.
    """

    prefix: tuple[Conj, ...] = ()
    rest: Conj = ANYTHING
    min_items: int = 0
    max_items: int | None = None
    contains: tuple[Contains, ...] = ()
    unique: Node | None = None
    repeated: Node | None = None
    values: Listed | None = None
    evaluated: int | None = 0
    marks: tuple[Conj, ...] = ()


class Layer(NamedTuple):
    """``properties``, ``patternProperties`` and ``additionalProperties`` of one schema object.

    They belong together: additional keys are those that the two others of *this* schema leave.
    ``silent`` where there is no additionalProperties; ``annotates`` is False below a negation.
    """

    properties: Mapping[str, Conj] = {}
    patterns: Mapping[str, Conj] = {}
    additional: Conj = ANYTHING
    silent: bool = True
    annotates: bool = True


class Witness(NamedTuple):
    """Some member has a key of a certain class and a value that does *not* satisfy ``obeys``.

    The class: keys that match ``pattern``; else keys that are additional in ``layer``; else keys
    that violate ``names``.  The negation of patternProperties, additionalProperties, propertyNames.
    """

    origin: Node
    obeys: Conj
    pattern: str | None = None
    layer: Layer | None = None
    names: Conj = ANYTHING


class Clause(NamedTuple):
    """One of ``present`` is there, or one of ``absent`` is missing."""

    present: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()


class Object(NamedTuple):
    """Members by name, by count, by which others are present."""

    required: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()
    names: Conj = ANYTHING
    min_properties: int = 0
    max_properties: int | None = None
    clauses: tuple[Clause, ...] = ()
    witnesses: tuple[Witness, ...] = ()
    values: Listed | None = None


Record: TypeAlias = Null | Boolean | Number | String | Array | Object
Alternatives: TypeAlias = dict[Kind, tuple[Record, ...]]

DEFAULTS: dict[Kind, Record] = {
    "object": Object(),
    "string": String(),
    "number": Number(),
    "array": Array(),
    "boolean": Boolean(),
    "null": Null(),
}
EVERYTHING: Alternatives = {kind: (record,) for kind, record in DEFAULTS.items()}
NOTHING: Alternatives = {}
