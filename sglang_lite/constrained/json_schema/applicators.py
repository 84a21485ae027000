"""Keywords that apply other schemas to the same value: $ref, allOf, anyOf, oneOf, not, if, ...

Each function gets the normaliser, the term, the keyword and its value, ``tracking`` (see
:mod:`.unevaluated`) and what the term's own keywords have said so far, and returns what the
keyword says; the caller intersects.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import TYPE_CHECKING, Any

from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_schema.intersect import intersect, union
from sglang_lite.constrained.json_schema.negate import negated_terms
from sglang_lite.constrained.json_schema.satisfiable import overlap, pruned
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
    beside: R.Alternatives,
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
        return R.EVERYTHING
    return to.expand(R.Term(target, True, to.document.enter(target, term.scope)), tracking)


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
    beside: R.Alternatives,
) -> R.Alternatives:
    result = R.EVERYTHING
    for branch in _branches(to, term, keyword, value):
        result = intersect(result, to.expand_all(branch, tracking))
    return result


def _any_of(
    to: Normaliser,
    term: R.Term,
    keyword: str,
    value: Any,
    tracking: bool,
    beside: R.Alternatives,
) -> R.Alternatives:
    branches = _branches(to, term, keyword, value)
    found = [to.expand_all(branch, tracking) for branch in branches]
    if not tracking:
        return union(*found)
    if len(found) > MAX_TRACKED:
        reason = f"has over {MAX_TRACKED} branches beside an unevaluated keyword"
        to.refuse(term.node, keyword, reason)
        return union(*found)
    # Annotations come from every branch that holds, so each set of branches is one case.
    cases = []
    for size in range(1, len(found) + 1):
        for chosen in combinations(found, size):
            case = R.EVERYTHING
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
    beside: R.Alternatives,
) -> R.Alternatives:
    """Exactly one: each branch, minus those others that it can overlap."""
    branches = _branches(to, term, keyword, value)
    found = [to.expand_all(branch, tracking) for branch in branches]
    inside = [intersect(beside, branch) for branch in found]
    others: list[list[int]] = [[] for _ in branches]
    for first, second in combinations(range(len(branches)), 2):
        if overlap(to, inside[first], inside[second]):
            others[first].append(second)
            others[second].append(first)
    cases = []
    for place, case in enumerate(found):
        for other in others[place]:
            case = pruned(to, intersect(case, _none(to, branches[other])))
        cases.append(case)
    return union(*cases, absorb=not tracking)


def _none(to: Normaliser, schema: R.Conj) -> R.Alternatives:
    """The negation of a conjunction."""
    return union(*(to.expand_all(negated) for negated in negated_terms(schema)))


def _not(
    to: Normaliser,
    term: R.Term,
    keyword: str,
    value: Any,
    tracking: bool,
    beside: R.Alternatives,
) -> R.Alternatives:
    return _none(to, to.in_place(term, value, keyword))


def _if(
    to: Normaliser,
    term: R.Term,
    keyword: str,
    value: Any,
    tracking: bool,
    beside: R.Alternatives,
) -> R.Alternatives:
    """(if and then) or (not if and else)."""
    schema = term.node.schema
    if "then" not in schema and "else" not in schema and not tracking:
        return R.EVERYTHING
    condition = to.in_place(term, value, "if")
    holds = to.expand_all(condition, tracking)
    fails = _none(to, condition)
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
    beside: R.Alternatives,
) -> R.Alternatives:
    """dependentSchemas, and the schemas in dependencies: absent, or present and it holds."""
    if not isinstance(value, dict):
        raise InvalidSchema(f"{term.node.pointer}/{keyword}", f"{keyword} is an object")
    result = R.EVERYTHING
    for name, schema in value.items():
        if keyword == "dependencies" and isinstance(schema, (list, str)):
            continue
        demanded = to.expand_all(to.in_place(term, schema, keyword, name), tracking)
        absent = R.Object(layers=(R.Layer({name: None}, annotates=False),))
        present: R.Alternatives = {"object": (R.Object(required=(name,)),)}
        free: R.Alternatives = {**R.EVERYTHING, "object": (absent,)}
        result = intersect(result, union(free, intersect(present, demanded), absorb=not tracking))
    return result


APPLICATORS: dict[str, Callable[..., R.Alternatives]] = {
    "$ref": reference,
    "$dynamicRef": reference,
    "$recursiveRef": reference,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "dependentSchemas": _dependent,
    "dependencies": _dependent,
}
