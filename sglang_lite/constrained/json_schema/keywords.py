"""What one schema object asserts by itself, read into records: type, enum, const, and the rest.

The keywords of each type are read by the functions of :mod:`.assertions`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.assertions import READERS, Fields, Scope
from sglang_lite.constrained.json_schema.document import Document, Node
from sglang_lite.constrained.json_schema.drafts import ANNOTATIONS
from sglang_lite.constrained.json_schema.strings import is_known
from sglang_lite.constrained.json_schema.values import (
    common_values,
    kind_of,
    listing,
)
from sglang_lite.errors import InvalidRegex, InvalidSchema

Refuse: TypeAlias = Callable[[Node, str, str], None]

_BY_TYPE: dict[str, R.Alternatives] = {
    **{kind: {kind: (record,)} for kind, record in R.DEFAULTS.items()},
    "integer": {"number": (R.Number(integer=True),)},
}


_PLAIN = ANNOTATIONS | {"type"}


class Reader:
    """Reads one schema object's own assertions; it never looks into subschemas."""

    def __init__(self, document: Document, refuse: Refuse) -> None:
        self.document = document
        self._refuse = refuse
        self._plain_types: dict[str, R.Conj] = {}

    def read(self, node: Node, scope: Scope) -> R.Alternatives:
        """The alternatives of ``node`` by type, enum, const and the keywords of each type."""
        schema = node.schema
        fields: dict[R.Kind, Fields] = {}
        for keyword, value in schema.items():
            entry = READERS.get(keyword)
            if entry is not None:
                kind, read = entry
                read(self, node, keyword, value, scope, fields.setdefault(kind, {}))
        result = _of_types(node, schema["type"]) if "type" in schema else R.EVERYTHING
        if fields:
            result = {
                kind: (_with(kind, records[0], fields[kind]),) if kind in fields else records
                for kind, records in result.items()
            }
        for keyword in ("enum", "const"):
            if keyword in schema:
                result = _listed(node, keyword, schema[keyword], result)
        return result

    def _plain(self, name: str) -> R.Conj:
        """The conjunction of a schema that only gives a type: one for all its places."""
        known = self._plain_types.get(name)
        if known is None:
            node = self.document.synthetic(self.document.root, {"type": name})
            known = self._plain_types[name] = (R.Term(node),)
        return known

    def usable(self, node: Node, keyword: str, match: R.Match) -> bool:
        """False for a format that is an annotation and for a pattern that has been refused."""
        try:
            return is_known(match)
        except InvalidRegex as error:
            self._refuse(node, keyword, f"{match.text!r}: {error.reason}")
            return False

    def schema(self, node: Node, value: Any, tokens: tuple[str, ...], scope: Scope) -> R.Conj:
        """The conjunction of one subschema of ``node``."""
        if value is True:
            return R.ANYTHING
        if value is False:
            return None
        if isinstance(value, dict) and value.keys() <= _PLAIN:
            if "type" not in value:
                return R.ANYTHING
            name = value["type"]
            if isinstance(name, str) and name in _BY_TYPE:
                return self._plain(name)
        child = self.document.below(node, value, tokens)
        return (R.Term(child, True, self.document.enter(child, scope)),)


def _with(kind: R.Kind, record: R.Record, fields: Fields) -> R.Record:
    if record is R.DEFAULTS[kind]:
        return type(record)(**fields)  # takes half the time of _replace
    return record._replace(**fields)


def _of_types(node: Node, value: Any) -> R.Alternatives:
    """One record for each type that ``type`` allows."""
    names = value if isinstance(value, list) else [value]
    result: R.Alternatives = {}
    for name in names:
        found = _BY_TYPE.get(name) if isinstance(name, str) else None
        if found is None:
            raise InvalidSchema(node.pointer + "/type", f"{name!r} is not a JSON type")
        if len(names) == 1:
            return found
        # "integer" adds nothing to "number", whichever comes first.
        result = {**found, **result} if name == "integer" else {**result, **found}
    return result


def _listed(node: Node, keyword: str, value: Any, result: R.Alternatives) -> R.Alternatives:
    """Narrow ``result`` to the values of enum or const."""
    if keyword == "enum" and not isinstance(value, list):
        raise InvalidSchema(node.pointer + "/enum", "enum is a list")
    by_kind: dict[R.Kind, list[Any]] = {}
    for item in value if keyword == "enum" else [value]:
        by_kind.setdefault(kind_of(item), []).append(item)
    narrowed: R.Alternatives = {}
    for kind, items in by_kind.items():
        for record in result.get(kind, ()):
            if isinstance(record, R.Null):
                narrowed[kind] = (record,)
            elif isinstance(record, R.Boolean):
                allowed = record.allowed & frozenset(items)
                if allowed:
                    narrowed[kind] = (R.Boolean(allowed),)
            else:
                listed = common_values(record.values, listing(items))
                if listed:
                    narrowed[kind] = (record._replace(values=listed),)
    return narrowed
