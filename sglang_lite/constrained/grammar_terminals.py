"""Terminals of a Lark grammar: what they mean without a lexer.

A terminal is the set of texts that its regex matches in full, so the grammar may split a text into
terminals in every possible way, as lark's Earley parser does with ``lexer="dynamic_complete"``.
Two things would mean something else to a lexer:

* A lazy quantifier asks for the shortest match, so a terminal with one keeps the texts of which no
  beginning is in the terminal, too: ``/".*?"/`` has no quote inside.  That is what a lexer does
  where fixed text follows the quantifier; anything else is refused.
* Look-around at the edge of a terminal would look at its neighbours, and is refused.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

from sglang_lite.constrained import grammar_expression as expression
from sglang_lite.constrained import ir, regex_ast
from sglang_lite.constrained.automaton import DEAD, NO_ARCS, Arcs, Automaton, merge_arcs
from sglang_lite.constrained.byte_dfa import text_dfa
from sglang_lite.constrained.charset import CharSet, characters
from sglang_lite.constrained.grammar_expression import Expression
from sglang_lite.constrained.regex import full_match
from sglang_lite.constrained.regex_parser import parse
from sglang_lite.errors import GrammarTooComplex, InvalidGrammar, InvalidRegex

MAX_SUBSTRINGS = 100_000

_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.S)
_SIMPLE_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "\\": "\\", '"': '"'}
_LITERAL_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.S)
_GROUP = re.compile(r"\(\?(?:P<\w+>|[aimsux-]*:|[=!>]|<[=!])")
_LAZY = re.compile(r"(?:[*+?]|\{\d*,?\d*\})\?")
_GREEDY = re.compile(r"[*+?{]")
_SUBSTRINGS = ("substring_chunks", "substring_words", "substring_chars")
_LEADING_FLAGS = re.compile(r"\(\?([aimsux]+)\)")


def string(token: str, where: tuple[int, int] | None) -> Expression:
    """The literal ``"…"`` or ``"…"i``."""
    value = unquote(token.removesuffix("i"), where)
    if not value:
        raise InvalidGrammar("an empty literal; leave the alternative empty instead", where)
    if token.endswith("i"):
        return expression.pattern(f"(?i:{re.escape(value)})", len(value))
    return expression.text(value)


def unquote(token: str, where: tuple[int, int] | None) -> str:
    """The text of a literal; an unknown escape keeps its backslash."""

    def replace(match: re.Match[str]) -> str:
        digits = match[1] or match[2] or match[3]
        if digits is None:
            return _SIMPLE_ESCAPES.get(match[4], match[0])
        if int(digits, 16) > 0x10FFFF or 0xD800 <= int(digits, 16) < 0xE000:
            raise InvalidGrammar(f"{match[0]} is not a character", where)
        return chr(int(digits, 16))

    value = _ESCAPE.sub(replace, token[1:-1])
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise InvalidGrammar("a surrogate is not a character", where)
    return value


def character_range(low: str, high: str, where: tuple[int, int] | None) -> Expression:
    """``"a".."z"``."""
    first, last = unquote(low, where), unquote(high, where)
    if len(first) != 1 or len(last) != 1 or first > last:
        raise InvalidGrammar(f"{low}..{high} is not a range of characters", where)
    return expression.pattern(f"[\\U{ord(first):08x}-\\U{ord(last):08x}]")


def regexp(token: str, where: tuple[int, int] | None) -> Expression:
    """``/…/flags``."""
    end = token.rindex("/")
    body, flags = token[1:end], token[end + 1 :].replace("u", "")
    leading = _LEADING_FLAGS.match(body)
    if leading:
        body, flags = body[leading.end() :], flags + leading[1].replace("u", "")
    if "l" in flags:
        raise InvalidGrammar("flag 'l' depends on the locale", where)
    flags = "".join(dict.fromkeys(flags))
    try:
        tree = parse(body, flags)
    except InvalidRegex as error:
        raise InvalidGrammar(f"{token}: {error.reason}", where) from None
    whole = tree.facts.look or is_lazy(body)
    closing = "\n)" if "x" in flags else ")"  # a comment may be open
    return expression.pattern(f"(?{flags}:{body}{closing}", len(body), whole=whole)


def substrings(json_text: str, where: tuple[int, int] | None) -> Expression:
    """llguidance's ``%regex {"substring_words": "…"}``: any run of neighbouring pieces of a text.

    The pieces are characters (``substring_chars``), words (``substring_words``) or those of a list
    (``substring_chunks``); the empty run is one.
    """
    value = json.loads(json_text)
    if not isinstance(value, dict) or len(value) != 1:
        raise InvalidGrammar(f"%regex takes an object with one key out of {_SUBSTRINGS}", where)
    kind, text = next(iter(value.items()))
    chunks = text if isinstance(text, list) else [text]
    if kind not in _SUBSTRINGS or not all(isinstance(chunk, str) for chunk in chunks):
        raise InvalidGrammar(f"%regex takes text under one of {_SUBSTRINGS}", where)
    if kind != "substring_chunks":
        words = kind == "substring_words"
        chunks = re.findall(r"\s+|\w+|[^\s\w]+" if words else r"(?s:.)", "".join(chunks))
    if sum(map(len, chunks)) > MAX_SUBSTRINGS:
        raise GrammarTooComplex(f"%regex: more than {MAX_SUBSTRINGS} characters")
    automaton = Substrings(tuple(chunks))
    return Expression(None, 0, False, lambda: ir.terminal(text_dfa(automaton)))


class Substrings(Automaton):
    """Runs of neighbouring ``chunks``; a key is the set of places in the text one may be at."""

    def __init__(self, chunks: tuple[str, ...]) -> None:
        self._text = "".join(chunks)
        self._ends = frozenset(itertools.accumulate(map(len, chunks), initial=0))
        self._source = (Substrings, (chunks,))
        super().__init__(self._ends)

    def _accepting(self, key: Any) -> bool:
        return not self._ends.isdisjoint(key)

    def _moves(self, key: Any) -> tuple[tuple[CharSet, ...], Callable[[int], Hashable | None]]:
        following: dict[str, set[int]] = {}
        for place in key:
            if place < len(self._text):
                following.setdefault(self._text[place], set()).add(place + 1)
        places = list(following.values())

        def advance(mask: int) -> Hashable:
            return frozenset(places[mask.bit_length() - 1])

        return tuple(map(characters, following)), advance


def is_lazy(regex: str) -> bool:
    """True where ``regex`` has a lazy quantifier."""
    return len(_split_at_lazy(regex)) > 1


def _split_at_lazy(regex: str) -> list[str]:
    """``regex`` without its lazy quantifiers; groups are plain, classes and escapes are dots."""
    return _LAZY.split(_GROUP.sub("(", _LITERAL_PARTS.sub(".", regex)))


def terminal_node(part: Expression, name: str, where: tuple[int, int] | None) -> ir.Node:
    """The node of a whole terminal; raises InvalidGrammar where it would look at its neighbours."""
    if part.regex is None or part.plain:
        return part.node()
    try:
        if part.whole:
            tree = parse(part.regex)
            if _looks_out(tree, ahead=True) or _looks_out(tree, ahead=False):
                reason = f"terminal {name} looks beyond its own text, which cannot be enforced"
                raise InvalidGrammar(reason, where)
            *lazy, tail = _split_at_lazy(part.regex)
            if lazy:
                if _GREEDY.search(tail) or not tail.strip("()|"):
                    reason = "no fixed text follows the lazy quantifier"
                    raise InvalidGrammar(f"terminal {name}: {reason}", where)
                return ir.terminal(text_dfa(shortest_match(part.regex)))
        return part.node()
    except InvalidRegex as error:
        raise InvalidGrammar(f"terminal {name}: {error.reason}", where) from None


def _looks_out(node: regex_ast.Node, ahead: bool) -> bool:
    """True where a look-around stands at the end (or the beginning) of ``node``."""
    if isinstance(node, regex_ast.Look):
        return node.ahead == ahead
    if isinstance(node, regex_ast.Alt):
        return any(_looks_out(item, ahead) for item in node.items)
    if isinstance(node, regex_ast.Repeat):
        return _looks_out(node.item, ahead)
    if isinstance(node, regex_ast.Seq):
        for item in reversed(node.items) if ahead else node.items:
            if _looks_out(item, ahead):
                return True
            if item.facts.least > 0:
                return False
    return False


@lru_cache(maxsize=1024)
def shortest_match(pattern: str) -> Automaton:
    """The texts that ``pattern`` matches in full but no beginning of which it matches."""
    return ShortestMatch(full_match(pattern))


class ShortestMatch(Automaton):
    """``whole`` without the ways on from accepting states."""

    def __init__(self, whole: Automaton) -> None:
        self._whole = whole
        self._source = (ShortestMatch, (whole,))
        super().__init__(0)

    def _accepting(self, key: Any) -> bool:
        return self._whole.accepts(key)

    def _expand(self, key: Any) -> Arcs:
        if self._whole.accepts(key):
            return NO_ARCS
        partition, targets = self._whole.arcs(key)
        numbers = [DEAD if target == DEAD else self._number(target) for target in targets]
        return merge_arcs(partition, numbers)
