"""The keywords that assert something about one JSON type, read into records.

Each reader checks the shape of its keyword (:class:`InvalidSchema` names pointer and reason) and
fills the fields of one record.  Bounds may be written ``2.0``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.document import Node, Resource
from sglang_lite.constrained.json_schema.intersect import least
from sglang_lite.constrained.json_schema.shapes import count_of, names_of, number_of
from sglang_lite.errors import InvalidSchema

if TYPE_CHECKING:
    from sglang_lite.constrained.json_schema.keywords import Reader

Fields: TypeAlias = dict[str, Any]
Scope: TypeAlias = tuple[Resource, ...]


def _read_count(field: str, upper: bool) -> Callable[..., None]:
    def read(
        reader: Reader, node: Node, keyword: str, value: Any, scope: Scope, fields: Fields
    ) -> None:
        count = count_of(node, keyword, value)
        fields[field] = least(fields.get(field), count) if upper else count

    return read


def _read_bound(
    reader: Reader, node: Node, keyword: str, value: Any, scope: Scope, fields: Fields
) -> None:
    side = "lower" if keyword.endswith("inimum") else "upper"
    exclusive = keyword.startswith("exclusive")
    if exclusive and isinstance(value, bool):
        return  # Draft 4: it qualifies minimum and maximum, which look for it.
    flag = "exclusiveMinimum" if side == "lower" else "exclusiveMaximum"
    exclusive = exclusive or node.schema.get(flag) is True
    bound = R.Bound(number_of(node, keyword, value), exclusive)
    known: R.Bound | None = fields.get(side)
    if known is not None:
        tighter = bound.value > known.value if side == "lower" else bound.value < known.value
        same = bound.value == known.value and bound.exclusive
        if not (tighter or same):
            return
    fields[side] = bound


def _read_multiple(
    reader: Reader, node: Node, keyword: str, value: Any, scope: Scope, fields: Fields
) -> None:
    divisor = number_of(node, keyword, value)
    if divisor <= 0:
        raise InvalidSchema(f"{node.pointer}/{keyword}", f"{value} is not above 0")
    fields["multiple_of"] = frozenset((divisor,))


def _read_match(
    reader: Reader, node: Node, keyword: str, value: Any, scope: Scope, fields: Fields
) -> None:
    if not isinstance(value, str):
        raise InvalidSchema(f"{node.pointer}/{keyword}", f"{keyword} is a string")
    match = R.Match("pattern" if keyword == "pattern" else "format", value)
    if reader.usable(node, keyword, match):
        fields["matches"] = fields.get("matches", frozenset()) | {match}


def _read_items(
    reader: Reader, node: Node, keyword: str, value: Any, scope: Scope, fields: Fields
) -> None:
    """``prefixItems`` and ``items``, or ``items`` as a list and ``additionalItems``, once."""
    if "evaluated" in fields:
        return
    schema = node.schema
    items, rest_key = schema.get("items"), "items"
    prefix_key, prefix = "prefixItems", schema.get("prefixItems")
    if isinstance(items, list):
        prefix_key, prefix, rest_key = "items", items, "additionalItems"
    elif keyword == "additionalItems":
        return  # Without a list of items it has no meaning.
    if prefix is not None:
        if not isinstance(prefix, list):
            raise InvalidSchema(f"{node.pointer}/{prefix_key}", "a list of schemas")
        fields["prefix"] = tuple(
            reader.schema(node, item, (prefix_key, str(place)), scope)
            for place, item in enumerate(prefix)
        )
    fields["evaluated"] = len(fields.get("prefix", ()))
    if rest_key in schema:
        fields["rest"] = reader.schema(node, schema[rest_key], (rest_key,), scope)
        fields["evaluated"] = None


def _read_contains(
    reader: Reader, node: Node, keyword: str, value: Any, scope: Scope, fields: Fields
) -> None:
    wanted = reader.schema(node, value, ("contains",), scope)
    schema = node.schema
    minimum = count_of(node, "minContains", schema.get("minContains", 1))
    maximum = None
    if "maxContains" in schema:
        maximum = count_of(node, "maxContains", schema["maxContains"])
    fields["contains"] = (R.Contains(wanted, minimum, maximum, 0, node),)
    if reader.document.draft >= 2020:
        fields["marks"] = (wanted,)


def _read_unique(
    reader: Reader, node: Node, keyword: str, value: Any, scope: Scope, fields: Fields
) -> None:
    if not isinstance(value, bool):
        raise InvalidSchema(f"{node.pointer}/{keyword}", f"{keyword} is a boolean")
    if value:
        fields["unique"] = node


def _read_required(
    reader: Reader, node: Node, keyword: str, value: Any, scope: Scope, fields: Fields
) -> None:
    if isinstance(value, bool):
        return  # Draft 3 wrote it into the property; drafts 4 and later give it no meaning.
    fields["required"] = names_of(node, keyword, value)


def _read_members(
    reader: Reader, node: Node, keyword: str, value: Any, scope: Scope, fields: Fields
) -> None:
    """``properties``, ``patternProperties`` and ``additionalProperties`` make one layer, once."""
    if "layers" in fields:
        return
    schema = node.schema
    properties = _schemas(reader, node, "properties", scope)
    patterns = _schemas(reader, node, "patternProperties", scope)
    patterns = {
        text: value
        for text, value in patterns.items()
        if reader.usable(node, "patternProperties", R.Match("pattern", text))
    }
    additional: R.Conj = R.ANYTHING
    silent = "additionalProperties" not in schema
    if not silent:
        additional = reader.schema(
            node, schema["additionalProperties"], ("additionalProperties",), scope
        )
    fields["layers"] = (R.Layer(properties, patterns, additional, silent),)


def _schemas(reader: Reader, node: Node, keyword: str, scope: Scope) -> dict[str, R.Conj]:
    value = node.schema.get(keyword)
    if value is None and keyword not in node.schema:
        return {}
    if not isinstance(value, dict):
        raise InvalidSchema(f"{node.pointer}/{keyword}", f"{keyword} is an object of schemas")
    return {
        name: reader.schema(node, schema, (keyword, name), scope) for name, schema in value.items()
    }


def _read_property_names(
    reader: Reader, node: Node, keyword: str, value: Any, scope: Scope, fields: Fields
) -> None:
    names = reader.schema(node, value, (keyword,), scope)
    if names is None:
        fields["max_properties"] = 0
    else:
        fields["names"] = names


def _read_dependent_required(
    reader: Reader, node: Node, keyword: str, value: Any, scope: Scope, fields: Fields
) -> None:
    """``dependentRequired``, and the lists of names in ``dependencies``."""
    if not isinstance(value, dict):
        raise InvalidSchema(f"{node.pointer}/{keyword}", f"{keyword} is an object")
    rules: list[R.Clause] = []
    for name, names in value.items():
        if keyword == "dependencies" and isinstance(names, str):
            names = [names]
        if keyword == "dependencies" and not isinstance(names, list):
            continue
        rules.extend(
            R.Clause(frozenset((other,)), frozenset((name,)))
            for other in names_of(node, f"{keyword}/{name}", names)
            if other != name
        )
    fields["clauses"] = fields.get("clauses", ()) + tuple(rules)


READERS: dict[str, tuple[R.Kind, Callable[..., None]]] = {
    "minimum": ("number", _read_bound),
    "maximum": ("number", _read_bound),
    "exclusiveMinimum": ("number", _read_bound),
    "exclusiveMaximum": ("number", _read_bound),
    "multipleOf": ("number", _read_multiple),
    "minLength": ("string", _read_count("min_length", upper=False)),
    "maxLength": ("string", _read_count("max_length", upper=True)),
    "pattern": ("string", _read_match),
    "format": ("string", _read_match),
    "minItems": ("array", _read_count("min_items", upper=False)),
    "maxItems": ("array", _read_count("max_items", upper=True)),
    "items": ("array", _read_items),
    "prefixItems": ("array", _read_items),
    "additionalItems": ("array", _read_items),
    "contains": ("array", _read_contains),
    "uniqueItems": ("array", _read_unique),
    "properties": ("object", _read_members),
    "patternProperties": ("object", _read_members),
    "additionalProperties": ("object", _read_members),
    "required": ("object", _read_required),
    "propertyNames": ("object", _read_property_names),
    "minProperties": ("object", _read_count("min_properties", upper=False)),
    "maxProperties": ("object", _read_count("max_properties", upper=True)),
    "dependentRequired": ("object", _read_dependent_required),
    "dependencies": ("object", _read_dependent_required),
}
"""The type that a keyword speaks of, and its reader."""
