"""EBNF text in the notation of llama.cpp's GBNF and xgrammar's EBNF.

    root  ::= "[" ws (value ("," ws value)*)? "]"   # a comment
    value ::= [0-9]+ | "\\"" [^"\\x00-\\x1f]{1,20} "\\""
    ws    ::= [ \\t\\n]*

A rule ends where the next ``name ::=`` begins, so alternatives may go over lines anywhere.  ``.``
is any character.  Text is Unicode: a class is a set of characters, never of bytes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

from lark import Lark, Token
from lark.exceptions import UnexpectedInput, UnexpectedToken

from sglang_lite.constrained import grammar_expression as expression
from sglang_lite.constrained import ir
from sglang_lite.constrained.grammar_expression import MAX_NESTING, Expression
from sglang_lite.constrained.grammar_rules import Rules
from sglang_lite.errors import GrammarTooComplex, InvalidGrammar

_META_GRAMMAR = r"""
start: rule*
rule: RULE alternatives
alternatives: sequence ("|" sequence)*
sequence: item*
item: (NAME | STRING | CLASS | ANY | group) suffix*
group: "(" alternatives ")"
suffix: OPERATOR | "{" NUMBER "}" | "{" NUMBER? COMMA NUMBER? "}"

RULE.2: /[A-Za-z0-9_][A-Za-z0-9_-]*\s*::=/
NAME: /[A-Za-z0-9_][A-Za-z0-9_-]*/
STRING: /"([^"\\]|\\.)*"/s
CLASS: /\[([^\]\\]|\\.)*\]/s
ANY: "."
OPERATOR: /[?*+]/
NUMBER: /[0-9]+/
COMMA: ","
%ignore /[ \t\r\n]+/
%ignore /#[^\n]*/
"""

Branch: TypeAlias = Any
"""A parse tree of lark: its children are branches and tokens."""

_OPAQUE = re.compile(r'"(?:[^"\\]|\\.)*"?|\[(?:[^\]\\]|\\.)*\]?|#[^\n]*', re.S)
"""Literals, classes (with or without their end, so that no start is tried in vain), comments."""
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.S)
_SIMPLE_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "b": "\b", "a": "\a"}
_SIMPLE_ESCAPES |= {"0": "\0", "e": "\x1b"} | {char: char for char in "\"'\\[]^-?/.|(){}*+$"}
_ELSEWHERE = {
    "<": "references to tokens cannot be used in a grammar",
    "(=": "look-ahead cannot be used in a grammar",
}
_MACROS = ("TagDispatch", "TokenTagDispatch", "Token", "ExcludeToken", "Regex", "Substring")


def lower_ebnf(text: str, start: str = "root") -> ir.Language:
    """The language of rule ``start`` of the grammar ``text``.

    Raises InvalidGrammar with line and column, or GrammarTooComplex.
    """
    expression.check_size(text, _OPAQUE)
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        raise _syntax_error(text, error) from None
    return _Builder(tree).language(start)


@functools.cache
def _parser() -> Lark:
    return Lark(_META_GRAMMAR, parser="lalr", maybe_placeholders=False)


def _syntax_error(text: str, error: UnexpectedInput) -> InvalidGrammar:
    position: int | None = error.pos_in_stream
    ended = isinstance(error, UnexpectedToken) and error.token.type == "$END"
    if position is None or ended:
        lines = text.rstrip().split("\n")
        return InvalidGrammar("the grammar ends too early", (len(lines), len(lines[-1]) + 1))
    where = (text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position))
    for sign, reason in _ELSEWHERE.items():
        if text.startswith(sign, position) or text.startswith(sign, position - 1):
            return InvalidGrammar(reason, where)
    shown = text[position : position + 20].split("\n")[0]
    return InvalidGrammar(f"unexpected {shown!r}", where)


class _Builder:
    """Walks the parse tree once."""

    def __init__(self, tree: Branch) -> None:
        self._bodies: dict[str, tuple[Token, Branch]] = {}
        for rule in tree.children:
            head, body = rule.children
            name = head.value[:-3].rstrip()
            if name in self._bodies:
                raise InvalidGrammar(f"rule '{name}' is defined twice", _where(head))
            self._bodies[name] = (head, body)

    def language(self, start: str) -> ir.Language:
        if start not in self._bodies:
            raise InvalidGrammar(f"there is no rule '{start}' to start with")
        rules = Rules({name: _where(head) for name, (head, _) in self._bodies.items()})
        for name, (_, body) in self._bodies.items():
            rules.add(name, self._alternatives(body).node())
        return rules.language(ir.Ref(start))

    def _alternatives(self, tree: Branch) -> Expression:
        sequences = [
            expression.sequence([self._item(item) for item in row.children])
            for row in tree.children
        ]
        return expression.union(sequences)

    def _item(self, item: Branch) -> Expression:
        atom, *suffixes = item.children
        part = self._atom(atom)
        if len(suffixes) > MAX_NESTING:
            raise GrammarTooComplex(f"more than {MAX_NESTING} repetition signs in a row")
        for suffix in suffixes:
            part = _repeated(part, suffix.children)
        return part

    def _atom(self, atom: Branch) -> Expression:
        if not isinstance(atom, Token):
            return self._alternatives(atom.children[0])
        if atom.type == "STRING":
            return expression.text("".join(char for char, _ in _characters(atom)))
        if atom.type == "CLASS":
            return expression.pattern(_character_class(atom))
        if atom.type == "ANY":
            return expression.pattern("(?s:.)")
        if atom.value not in self._bodies:
            reason = f"rule '{atom.value}' is not defined"
            if atom.value in _MACROS:
                reason = f"the macro {atom.value}() is not supported"
            raise InvalidGrammar(reason, _where(atom))
        return expression.call(atom.value)


def _where(token: Token) -> tuple[int, int]:
    return token.line or 1, token.column or 1


def _repeated(part: Expression, signs: list[Token]) -> Expression:
    first = signs[0]
    if first.type == "OPERATOR":
        minimum, maximum = {"?": (0, 1), "*": (0, None), "+": (1, None)}[first.value]
        return expression.repeat(part, minimum, maximum)
    numbers = [int(sign[:9]) for sign in signs if sign.type == "NUMBER"]
    minimum = 0 if first.type == "COMMA" else numbers[0]
    maximum = None if signs[-1].type == "COMMA" else numbers[-1]
    expression.check_bounds(minimum, maximum, _where(first))
    return expression.repeat(part, minimum, maximum)


def _characters(token: Token) -> Iterator[tuple[str, bool]]:
    """The characters of a literal or class, without its ends, and whether each was escaped."""
    body = token.value[1:-1]
    place = 0
    while place < len(body):
        if body[place] != "\\":
            char, escaped = body[place], False
            place += 1
        else:
            match = _ESCAPE.match(body, place)
            char, escaped = (_escape(match, token) if match else "\\"), True
            place = match.end() if match else place + 1
        if "\ud800" <= char <= "\udfff":
            raise InvalidGrammar("a surrogate is not a character", _where(token))
        yield char, escaped


def _escape(match: re.Match[str], token: Token) -> str:
    digits = match[1] or match[2] or match[3]
    if digits is None and match[4] in _SIMPLE_ESCAPES:
        return _SIMPLE_ESCAPES[match[4]]
    if digits is None or int(digits, 16) > 0x10FFFF:
        raise InvalidGrammar(f"unknown escape {match[0]!r} in {token.value!r}", _where(token))
    return chr(int(digits, 16))


def _character_class(token: Token) -> str:
    """The class ``token`` in Python's regex syntax."""
    chars = list(_characters(token))
    negated = bool(chars) and chars[0] == ("^", False)
    ranges: list[str] = []
    place = int(negated)
    while place < len(chars):
        low = high = chars[place][0]
        place += 1
        if place + 1 < len(chars) and chars[place] == ("-", False):
            high = chars[place + 1][0]
            place += 2
        if high < low:
            raise InvalidGrammar(f"range {low!r} to {high!r} is reversed", _where(token))
        ranges.append(f"\\U{ord(low):08x}-\\U{ord(high):08x}")
    if not ranges and not negated:
        raise InvalidGrammar("a character class without characters", _where(token))
    return f"[{'^' if negated else ''}{''.join(ranges)}]" if ranges else "(?s:.)"
