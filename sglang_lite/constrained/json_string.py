"""JSON strings as terminals: the unrestricted one, and those whose decoded text is restricted.

A *value* may be spelled in every way that JSON has ("json"); all terminals agree on that, so a
pattern that has matched may hand over to the unrestricted string.  A *key* is spelled in one way
only ("json-canonical"), so that no escape smuggles a declared name past its schema.
"""

from __future__ import annotations

from functools import cache, lru_cache
from json.encoder import encode_basestring

from sglang_lite.constrained import ir
from sglang_lite.constrained.algebra import combine
from sglang_lite.constrained.automaton import Automaton, Remainder, any_text, repeated, words
from sglang_lite.constrained.byte_dfa import TextDFA, text_dfa
from sglang_lite.constrained.charset import ANYTHING, CharSet, characters
from sglang_lite.constrained.encoding import Encoding
from sglang_lite.constrained.formats import format_automaton
from sglang_lite.constrained.lengths import bounded
from sglang_lite.constrained.regex import FEW, search

VALUE: Encoding = "json"
KEY: Encoding = "json-canonical"
WHITESPACE = characters(" \t\n\r")


@lru_cache(maxsize=512)
def string_automaton(
    *,
    patterns: tuple[str, ...] = (),
    not_patterns: tuple[str, ...] = (),
    formats: tuple[str, ...] = (),
    not_formats: tuple[str, ...] = (),
    minimum: int = 0,
    maximum: int | None = None,
    excluded: tuple[str, ...] = (),
    enum: tuple[str, ...] | None = None,
) -> Automaton:
    """The decoded texts that satisfy all conditions; lengths are in code points.

    Patterns are searched for, as in JSON Schema.  ``enum`` (None = any text) and ``excluded`` are
    whole texts.  Raises :class:`EmptyLanguage` where nothing is left, :class:`InvalidRegex`,
    :class:`GrammarTooComplex`.
    """
    required = [*map(search, patterns), *map(format_automaton, formats)]
    refused = [*map(search, not_patterns), *map(format_automaton, not_formats)]
    if enum is not None:
        required.append(words(enum))
    if excluded:
        refused.append(words(excluded))
    return bounded(combine(required, refused), minimum, maximum)


def string_node(automaton: Automaton) -> ir.Node:
    """A JSON string, quotes included, whose decoded text is in the language: a value's terminal."""
    rest = automaton.remainder(0)
    if rest is not None and _counts(rest):
        return ir.counted(json_char(rest.members), rest.minimum, rest.maximum)
    return ir.terminal(text_dfa(automaton, VALUE, True))


def _counts(rest: Remainder) -> bool:
    """True where a counter costs less than the states of a DFA."""
    if rest.members == ANYTHING:
        return (rest.minimum, rest.maximum) != (0, None)
    return max(rest.minimum, rest.maximum or 0) > FEW


def key_dfa(automaton: Automaton) -> TextDFA:
    """Object keys, quotes included, each in its canonical spelling."""
    return text_dfa(automaton, KEY, True)


@cache
def json_string() -> TextDFA:
    """Any JSON string with its quotes: the standard terminal, one object for all grammars."""
    return text_dfa(any_text(), VALUE, True)


@cache
def json_key() -> TextDFA:
    """Any JSON string with its quotes in the canonical spelling."""
    return text_dfa(any_text(), KEY, True)


@lru_cache(maxsize=512)
def json_char(members: CharSet = ANYTHING) -> TextDFA:
    """Exactly one character of a JSON string, raw or escaped; a surrogate pair is one."""
    return text_dfa(repeated(members, 1, 1), VALUE, False)


@lru_cache(maxsize=64)
def whitespace(maximum: int) -> TextDFA:
    """At most so many of JSON's four whitespace characters."""
    return text_dfa(repeated(WHITESPACE, 0, maximum), "utf8", False)


def encode_key(name: str) -> bytes:
    """The canonical JSON text of a key or string, quotes included."""
    return encode_basestring(name).encode()
