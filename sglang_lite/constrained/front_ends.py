"""The front ends that turn constraints into languages, and what they remember."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from sglang_lite.constrained import ir
from sglang_lite.constraint import (
    Choice,
    Constraint,
    Grammar,
    JsonSchema,
    Prefixed,
    Regex,
    StructuralTag,
)
from sglang_lite.errors import InvalidRequest

OnUnsupported = Literal["error", "warn"]


def forget_automata() -> None:
    """Have the front ends make their automata anew: those that were made hold too many states."""
    from sglang_lite.constrained import (
        free_text,
        fused,
        grammar_terminals,
        json_string,
        numbers,
        regex,
    )
    from sglang_lite.constrained.json_schema import lower, strings

    memos = (regex.full_match, regex.search, strings._regular, json_string.string_automaton)
    for memo in (*memos, numbers.number_automaton, free_text.free_text, fused.fused_dfa):
        memo.cache_clear()
    grammar_terminals.shortest_match.cache_clear()
    lower._plain.cache_clear()  # with the leaves that all documents share


def source_bytes(constraint: Constraint) -> int:
    """The size of what a constraint was written in, for the budget of sources."""
    if isinstance(constraint, Prefixed):
        return len(constraint.prefix) + source_bytes(constraint.constraint)
    if isinstance(constraint, Regex):
        return len(constraint.pattern)
    if isinstance(constraint, JsonSchema):
        return len(constraint.schema)
    if isinstance(constraint, Choice):
        return sum(map(len, constraint.choices))
    return len(constraint.text if isinstance(constraint, Grammar) else constraint.spec)


def lower_constraint(constraint: Constraint, on_unsupported: OnUnsupported) -> ir.Language:
    """Ask the front end; imported late, so that a process pays for those that it uses."""
    if isinstance(constraint, JsonSchema):
        from sglang_lite.constrained.json_schema import lower_json_schema

        return lower_json_schema(constraint, on_unsupported=on_unsupported)
    if isinstance(constraint, Regex):
        from sglang_lite.constrained.regex import lower_regex

        return lower_regex(constraint.pattern)
    if isinstance(constraint, Choice):
        from sglang_lite.constrained.grammar import lower_choice

        return lower_choice(constraint.choices)
    if isinstance(constraint, Grammar):
        from sglang_lite.constrained.grammar import lower_grammar

        return lower_grammar(constraint.text, constraint.syntax, start=constraint.start)
    if isinstance(constraint, StructuralTag):
        from sglang_lite.constrained.structural_tag import lower_structural_tag

        return lower_structural_tag(constraint.spec)
    if isinstance(constraint, Prefixed):
        inner = lower_constraint(constraint.constraint, on_unsupported)
        return replace(inner, root=ir.sequence(ir.literal(constraint.prefix), inner.root))
    accepted = "one of the kinds of Constraint"  # type: ignore[unreachable]
    raise InvalidRequest("constraint", constraint, accepted)
