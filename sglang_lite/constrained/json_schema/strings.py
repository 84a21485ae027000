"""String records as automata: patterns, formats, lengths, exclusions, for values and for keys."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache

from sglang_lite.constrained import ir
from sglang_lite.constrained.algebra import combine
from sglang_lite.constrained.automaton import Automaton, EmptyLanguage, repeated, words
from sglang_lite.constrained.charset import characters
from sglang_lite.constrained.formats import FORMATS, format_automaton
from sglang_lite.constrained.json_schema import records as R
from sglang_lite.constrained.json_string import encode_key, json_char, json_string, string_node
from sglang_lite.constrained.lengths import bounded
from sglang_lite.constrained.regex import search

DISPUTED_SPACE = characters("\x1c\x1d\x1e\x1f\x85\ufeff")
"""Whitespace for ECMA-262 or for Python's ``re``, but not for both."""
_SPACE = re.compile(r"(?<!\\)(?:\\\\)*\\[sS]")


def is_known(match: R.Match) -> bool:
    """False for a format that is only an annotation.

    Raises :class:`~sglang_lite.errors.InvalidRegex` for a pattern that cannot be compiled.
    """
    if match.keyword == "format":
        return match.text in FORMATS
    with suppress(EmptyLanguage):
        search(match.text)
    return True


def matches_text(match: R.Match, text: str) -> bool:
    """True if ``text`` is in the set."""
    try:
        return _automaton(match).matches(text) is match.positive
    except EmptyLanguage:
        return not match.positive


def matching(patterns: Iterable[str], others: Iterable[str], within: Automaton) -> Automaton:
    """The texts of ``within`` that match all ``patterns`` and none of ``others``.

    Raises :class:`EmptyLanguage` where there is none.
    """
    positive = [R.Match("pattern", text) for text in patterns]
    return combine(
        [within, *(_automaton(match) for match in positive)],
        _refused([R.Match("pattern", text) for text in others]),
    )


def string_automaton(record: R.String, *, portable: bool = False) -> Automaton:
    """The texts of a record; raises :class:`EmptyLanguage` where there is none.

    With ``portable`` only those that validators of any regex dialect accept: where a pattern speaks
    of whitespace, none of the characters that are whitespace for some of them only.
    """
    if record.values is not None:
        return words(tuple(record.values.values()))
    regular = _regular(record.matches, record.excluded)
    if portable and any(map(_speaks_of_space, record.matches)):
        regular = combine([regular, repeated(~DISPUTED_SPACE)])
    return bounded(regular, record.min_length, record.max_length)


def _speaks_of_space(match: R.Match) -> bool:
    return match.keyword == "pattern" and _SPACE.search(match.text) is not None


def string_is_empty(record: R.String) -> bool:
    """True if no text satisfies the record; found out only where that takes a search."""
    if record.values is not None or not (record.matches or record.excluded):
        return False
    try:
        string_automaton(record)
    except EmptyLanguage:
        return True
    return False


def lower_string(record: R.String) -> ir.Node:
    """The record as JSON text; listed values in their canonical spelling."""
    if record.values is not None:
        return ir.literals(encode_key(value) for value in record.values.values())
    if not record.matches and not record.excluded:
        if record.min_length == 0 and record.max_length is None:
            return ir.terminal(json_string())
        return ir.counted(json_char(), record.min_length, record.max_length)
    try:
        return string_node(string_automaton(record, portable=True))
    except EmptyLanguage:
        return ir.NEVER


@lru_cache(maxsize=4096)
def _regular(matches: frozenset[R.Match], excluded: frozenset[str]) -> Automaton:
    ordered = sorted(matches)
    refused = _refused([match for match in ordered if not match.positive])
    if excluded:
        refused.append(words(tuple(sorted(excluded))))
    return combine([_automaton(match) for match in ordered if match.positive], refused)


def _refused(matches: Iterable[R.Match]) -> list[Automaton]:
    """The automata of ``matches``, without those that no text matches anyway."""
    found = []
    for match in matches:
        with suppress(EmptyLanguage):
            found.append(_automaton(match))
    return found


def _automaton(match: R.Match) -> Automaton:
    return search(match.text) if match.keyword == "pattern" else format_automaton(match.text)
