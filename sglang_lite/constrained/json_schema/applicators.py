"""Keywords that apply other schemas to the same value: $ref, allOf, anyOf, oneOf, not, if, ...

Each function gets the normaliser, the term, the keyword and its value, ``tracking`` (see
:mod:`.unevaluated`) and ``found``, what the term's other keywords have said so far, and returns
``found`` narrowed by the keyword.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import TYPE_CHECKING, Any

from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.difference import subtract
from sglang_lite.constrained.json_schema.intersect import (
    MAX_ALTERNATIVES,
    intersect,
    too_many,
    union,
)
from sglang_lite.constrained.json_schema.negate import forbid
from sglang_lite.constrained.json_schema.satisfiable import overlap
from sglang_lite.errors import InvalidSchema, UnsupportedSchema

if TYPE_CHECKING:
    from sglang_lite.constrained.json_schema.normalise import Normaliser

MAX_TRACKED = 6
"""Branches of an anyOf whose combinations are told apart beside unevaluated*."""


def reference(
    to: Normaliser,
    term: R.Term,
    keyword: str,
    value: Any,
    tracking: bool,
    found: R.Alternatives,
) -> R.Alternatives:
    """$ref, $dynamicRef and $recursiveRef."""
    node = term.node
    if not isinstance(value, str):
        raise InvalidSchema(f"{node.pointer}/{keyword}", f"{keyword} is a string")
    try:
        if keyword == "$ref":
            target = to.document.resolve(node, keyword, value)
        else:
            target = to.document.resolve_dynamic(node, keyword, value, term.scope)
    except UnsupportedSchema as error:
        to.refuse(node, error.keyword, error.reason)
        return found
    target_term = R.Term(target, True, to.document.enter(target, term.scope))
    return intersect(found, to.expand(target_term, tracking))


def _branches(to: Normaliser, term: R.Term, keyword: str, value: Any) -> list[R.Conj]:
    if not isinstance(value, list) or not value:
        raise InvalidSchema(f"{term.node.pointer}/{keyword}", "a list of at least one schema")
    return [to.in_place(term, branch, keyword, str(place)) for place, branch in enumerate(value)]


def _all_of(
    to: Normaliser,
    term: R.Term,
    keyword: str,
    value: Any,
    tracking: bool,
    found: R.Alternatives,
) -> R.Alternatives:
    for branch in _branches(to, term, keyword, value):
        found = intersect(found, to.expand_all(branch, tracking))
    return found


def _any_of(
    to: Normaliser,
    term: R.Term,
    keyword: str,
    value: Any,
    tracking: bool,
    found: R.Alternatives,
) -> R.Alternatives:
    branches = [to.expand_all(each, tracking) for each in _branches(to, term, keyword, value)]
    if not tracking:
        return intersect(found, union(*branches))
    if len(branches) > MAX_TRACKED:
        reason = f"has over {MAX_TRACKED} branches beside an unevaluated keyword"
        to.refuse(term.node, keyword, reason)
        return intersect(found, union(*branches))
    # Annotations come from every branch that holds, so each set of branches is one case.
    cases = []
    for size in range(1, len(branches) + 1):
        for chosen in combinations(branches, size):
            case = found
            for branch in chosen:
                case = intersect(case, branch)
            cases.append(case)
    return union(*cases, absorb=False)


def _one_of(
    to: Normaliser,
    term: R.Term,
    keyword: str,
    value: Any,
    tracking: bool,
    found: R.Alternatives,
) -> R.Alternatives:
    """Exactly one: each branch, minus those others that it can overlap."""
    branches = [to.expand_all(each, tracking) for each in _branches(to, term, keyword, value)]
    found = {
        kind: records
        for kind, records in found.items()
        if sum(branch.get(kind) == (R.DEFAULTS[kind],) for branch in branches) < 2
    }  # Two branches that are silent about a type both hold for all its values.
    inside = [intersect(found, branch) for branch in branches]
    for kind in found:
        count = sum(len(branch.get(kind, ())) for branch in inside)
        if count > MAX_ALTERNATIVES:
            raise too_many(count)
    others: list[list[R.Alternatives]] = [[] for _ in branches]
    for first, second in combinations(range(len(branches)), 2):
        if overlap(to, inside[first], inside[second]):
            others[first].append(branches[second])
            others[second].append(branches[first])
    cases = []
    for case, refused in zip(inside, others, strict=True):
        for other in refused:
            case = subtract(to, case, other, term.node, absorb=not tracking)
        cases.append(case)
    return union(*cases, absorb=not tracking)


def _not(
    to: Normaliser,
    term: R.Term,
    keyword: str,
    value: Any,
    tracking: bool,
    found: R.Alternatives,
) -> R.Alternatives:
    refused = to.expand_all(to.in_place(term, value, keyword))
    return subtract(to, found, refused, term.node, absorb=not tracking)


def _if(
    to: Normaliser,
    term: R.Term,
    keyword: str,
    value: Any,
    tracking: bool,
    found: R.Alternatives,
) -> R.Alternatives:
    """(if and then) or (not if and else)."""
    schema = term.node.schema
    if "then" not in schema and "else" not in schema and not tracking:
        return found
    condition = to.expand_all(to.in_place(term, value, "if"), tracking)
    holds = intersect(found, condition)
    fails = subtract(to, found, condition, term.node, absorb=not tracking)
    if "then" in schema:
        then = to.in_place(term, schema["then"], "then")
        holds = intersect(holds, to.expand_all(then, tracking))
    if "else" in schema:
        otherwise = to.in_place(term, schema["else"], "else")
        fails = intersect(fails, to.expand_all(otherwise, tracking))
    return union(holds, fails, absorb=not tracking)


def _dependent(
    to: Normaliser,
    term: R.Term,
    keyword: str,
    value: Any,
    tracking: bool,
    found: R.Alternatives,
) -> R.Alternatives:
    """dependentSchemas, and the schemas in dependencies: absent, or present and it holds."""
    if not isinstance(value, dict):
        raise InvalidSchema(f"{term.node.pointer}/{keyword}", f"{keyword} is an object")
    for name, schema in value.items():
        if keyword == "dependencies" and isinstance(schema, (list, str)):
            continue
        demanded = to.expand_all(to.in_place(term, schema, keyword, name), tracking)
        free: R.Alternatives = {**R.EVERYTHING, "object": (forbid(name),)}
        present: R.Alternatives = {"object": (R.Object(required=(name,)),)}
        both = intersect(found, intersect(present, demanded))
        found = union(intersect(found, free), both, absorb=not tracking)
    return found


APPLICATORS: dict[str, Callable[..., R.Alternatives]] = {
    "$ref": reference,
    "$dynamicRef": reference,
    "$recursiveRef": reference,
    "allOf": _all_of,
    "anyOf": _any_of,
    "dependentSchemas": _dependent,
    "dependencies": _dependent,
    "oneOf": _one_of,
    "if": _if,
    "not": _not,
}
"""In the order in which they are applied: what subtracts comes last, so that little is left."""
