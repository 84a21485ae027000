"""The free text of structural tags: up to a trigger or an end, without excluded texts."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_lite.constrained import ir
from sglang_lite.constrained.automaton import Automaton, any_text
from sglang_lite.constrained.byte_dfa import text_dfa
from sglang_lite.constrained.free_text import free_text
from sglang_lite.constrained.lengths import bounded
from sglang_lite.constrained.tag_fields import Fields
from sglang_lite.errors import GrammarTooComplex

MAX_KEYWORDS = 1000
"""Most triggers, ends and excluded texts of one free text."""
MAX_TRIGGERS = 100
"""Most triggers and ends of one: each is an automaton of its own."""


def text_until(
    keywords: tuple[str, ...], last: str | None, excludes: tuple[str, ...], maximum: int | None
) -> ir.Node:
    """Free text without ``keywords`` and ``excludes``, then ``last`` if there is one."""
    automaton: Automaton = any_text()
    if keywords or excludes:
        automaton = free_text(keywords, last, excludes)
    if maximum is not None:
        automaton = bounded(automaton, 0, maximum + len(last or ""))
    return ir.terminal(text_dfa(automaton))


def check_keywords(fields: Fields, keywords: Sequence[str], excludes: Sequence[str]) -> None:
    """Refuse a keyword that can never be met first, because another word is inside it."""
    words = len(keywords) + len(excludes)
    if words > MAX_KEYWORDS:
        raise GrammarTooComplex(f"{words} triggers, ends and excluded texts in one free text")
    if len(keywords) > MAX_TRIGGERS:
        raise GrammarTooComplex(
            f"{len(keywords)} triggers and ends in one free text; at most {MAX_TRIGGERS}"
        )
    for inner in (*keywords, *excludes):
        for outer in keywords:
            place = outer.find(inner)
            if place >= 0 and (inner in excludes or place < len(outer) - len(inner)):
                raise fields.error(f"'{outer}' contains '{inner}', so it can never be met")
