"""Lark's notation, read into definitions.

lark's own loader writes references between terminals out, which is exponential, forgets where a
name stood, and reads imports from the disk.  So this module gives lark a grammar of its notation
and keeps the tree: loops stay loops, optionals stay optionals, every name has its line and column.
"""

from __future__ import annotations

import functools
import json
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

from sglang_lite.constrained.grammar_expression import check_size
from sglang_lite.constrained.grammar_rules import Where
from sglang_lite.errors import InvalidGrammar

Branch: TypeAlias = Any
"""A parse tree of lark: its children are branches and tokens, ``data`` is the rule's name."""

_META_GRAMMAR = r"""
start: _NL? (_statement _NL)*
_statement: rule | terminal | override | extend | ignore | declare | import_
rule: MODIFIERS? RULE parameters? priority? ":" expansions
parameters: "{" RULE ("," RULE)* "}"
priority: "." NUMBER
terminal: TERMINAL priority? ":" expansions
override: "%override" (rule | terminal)
extend: "%extend" (rule | terminal)
ignore: "%ignore" expansions
declare: "%declare" (RULE | TERMINAL)+
import_: "%import" DOT? path (alias | names)?
path: (RULE | TERMINAL) ("." (RULE | TERMINAL))*
alias: "->" (RULE | TERMINAL)
names: "(" (RULE | TERMINAL) ("," (RULE | TERMINAL))* ")"

expansions: expansion ((_OR | _NL_OR) expansion)*
expansion: item* ("->" RULE)?
item: (group | maybe | _value) suffix?
group: "(" expansions ")"
maybe: "[" expansions "]"
suffix: OPERATOR | "~" NUMBER (".." NUMBER)? | BRACES
_value: symbol | usage | range | STRING | REGEXP | EMBEDDED
symbol: RULE | TERMINAL
usage: RULE "{" argument ("," argument)* "}"
argument: _value
range: STRING ".." STRING

MODIFIERS: /!\??(?=[_a-z])|\?!?(?=[_a-z])/
OPERATOR: /[+*]|\?(?![_a-z])/
BRACES: /\{[ \t]*(\d+[ \t]*(,[ \t]*\d*)?|,[ \t]*\d+)[ \t]*\}/
RULE: /_?[a-z][_a-z0-9]*/
TERMINAL: /_?[A-Z][_A-Z0-9]*/
STRING: /"(\\.|[^"\\\n])*"i?/
REGEXP: /\/(?!\/)(\\.|[^\/\\])+\/[imslux]*/s
EMBEDDED: /%(json|regex):\d+/
NUMBER: /[+-]?\d+/
DOT: "."
_OR: "|"
_NL_OR: /\n\|/
_NL: /\n/
%ignore /[ \t\f]+/
%ignore /\\[ ]*\n/
"""

_LIBRARIES = ("common", "lark", "python", "unicode")
_QUOTED = r'"(?:\\.|[^"\\\n])*"|/(?!/)(?:\\.|[^/\\])+/[imslux]*'
_COMMENT = r"(?:(?://|\#)[^\n]*)"
_PARTS = re.compile(
    rf"(?P<quoted>{_QUOTED})|(?P<embedded>%(?:json|regex)\b\s*)"
    rf"|(?P<lines>{_COMMENT}?\r?\n(?:[ \t\f]*{_COMMENT}?\r?\n)*[ \t\f]*)"
    r"|(?P<quote>[\"/])",
    re.S,
)
_FOREIGN = {
    "%llguidance": "options of llguidance are not supported",
    "<": "references to tokens cannot be used in a grammar",
    "@": "references to other grammars are not supported",
}


@dataclass
class Definition:
    """A rule or terminal: its alternatives (none if only declared), and its head."""

    name: str
    bodies: list[tuple[Scope, Branch]]
    where: Where | None
    parameters: tuple[str, ...] = ()
    priority: str | None = None


@dataclass
class Scope:
    """The definitions of one grammar text, and the JSON values written in it."""

    definitions: dict[str, Definition] = field(default_factory=dict)
    ignored: list[Branch] = field(default_factory=list)
    embedded: list[str] = field(default_factory=list)
    library: str = ""


def read_lark(text: str) -> Scope:
    """Read a grammar; raises InvalidGrammar with line and column."""
    scope = Scope()
    _read(scope, text)
    return scope


def where(token: Token, scope: Scope | None = None) -> Where | None:
    """Line and column of ``token``; None in an imported library."""
    if scope is not None and scope.library:
        return None
    return token.line or 1, token.column or 1


@functools.cache
def _parser() -> Lark:
    return Lark(_META_GRAMMAR, parser="lalr", maybe_placeholders=False)


def _read(scope: Scope, text: str) -> None:
    prepared = "".join(_prepared(text.rstrip() + "\n", scope))
    check_size(prepared, _PARTS)
    try:
        tree = _parser().parse(prepared)
    except UnexpectedInput as error:
        raise _syntax_error(text, error) from None
    for statement in tree.children:
        _read_statement(scope, statement)


def _prepared(text: str, scope: Scope) -> Iterator[str]:
    """``text`` without comments and with JSON values replaced by their number.

    Newlines are kept for the sake of line numbers: those that do not end a statement, because an
    alternative or nothing at all follows, are hidden behind backslashes.
    """
    place = 0
    while match := _PARTS.search(text, place):
        yield text[place : match.start()]
        place = match.end()
        if match["quoted"]:
            yield match[0]
        elif match["lines"]:
            newlines = "\\\n" * (match[0].count("\n") - 1)
            indent = match[0][match[0].rfind("\n") + 1 :]
            yield newlines + "\n" + ("" if text.startswith("|", place) else indent)
        elif match["embedded"]:
            start, place = place, _end_of_json(text, place)
            yield f"{match[0].strip()}:{len(scope.embedded)}"
            yield "\\\n" * text.count("\n", match.start(), place)
            scope.embedded.append(text[start:place])
        elif match["quote"]:
            kind = "string" if match[0] == '"' else "regular expression"
            raise InvalidGrammar(f"the {kind} does not end", _place(text, match.start()))
    yield text[place:]


def _end_of_json(text: str, place: int) -> int:
    try:
        return json.JSONDecoder().raw_decode(text, place)[1]
    except json.JSONDecodeError as error:
        raise InvalidGrammar(
            f"not JSON: {error.msg}", _place(text, min(error.pos, len(text.rstrip())))
        ) from None


def _place(text: str, position: int) -> Where:
    return text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)


def _syntax_error(text: str, error: UnexpectedInput) -> InvalidGrammar:
    lines = text.split("\n")
    if error.line < 1 or error.line > len(lines):
        return InvalidGrammar("the grammar ends too early", (len(lines), len(lines[-1]) + 1))
    rest = lines[error.line - 1][error.column - 1 :]
    for sign, reason in _FOREIGN.items():
        if rest.startswith(sign):
            return InvalidGrammar(reason, (error.line, error.column))
    shown = repr(rest[:20]) if rest.strip() else "end of the line"
    return InvalidGrammar(f"unexpected {shown}", (error.line, error.column))


def _read_statement(scope: Scope, statement: Branch) -> None:
    kind = statement.data
    if kind == "ignore":
        scope.ignored.append(statement.children[0])
    elif kind == "declare":
        for name in statement.children:
            _define(scope, Definition(str(name), [], where(name, scope)))
    elif kind == "import_":
        _import(scope, statement)
    elif kind in ("override", "extend"):
        definition = _definition(scope, statement.children[0])
        known = scope.definitions.get(definition.name)
        if known is None:
            reason = f"there is no '{definition.name}' to {kind}"
            raise InvalidGrammar(reason, definition.where)
        if kind == "override":
            scope.definitions[definition.name] = definition
        else:
            known.bodies = [*known.bodies, *definition.bodies]
    else:
        _define(scope, _definition(scope, statement))


def _define(scope: Scope, definition: Definition) -> None:
    if definition.name in scope.definitions:
        raise InvalidGrammar(f"'{definition.name}' is defined twice", definition.where)
    scope.definitions[definition.name] = definition


def _definition(scope: Scope, tree: Branch) -> Definition:
    *head, body = tree.children
    name = next(token for token in head if getattr(token, "type", "") in ("RULE", "TERMINAL"))
    definition = Definition(str(name), [(scope, body)], where(name, scope))
    for child in head:
        if isinstance(child, Tree) and child.data == "parameters":
            definition.parameters = tuple(map(str, child.children))
        elif isinstance(child, Tree):
            definition.priority = str(child.children[0])
    return definition


def _import(scope: Scope, statement: Branch) -> None:
    """``%import common.X``: the library's definition, which keeps its own scope."""
    first, *rest = statement.children
    if isinstance(first, Token):
        raise InvalidGrammar("grammars are not imported from files", where(first))
    path = first.children
    names = path[-1:]
    if rest and rest[0].data == "names":
        names, path = rest[0].children, [*path, path[-1]]
    library = ".".join(path[:-1])
    if library not in _LIBRARIES:
        reason = f"there is no library '{library}', only {', '.join(_LIBRARIES)}"
        raise InvalidGrammar(reason, where(path[0]))
    for name in names:
        found = _library(library).definitions.get(name)
        if found is None:
            raise InvalidGrammar(f"library '{library}' has no '{name}'", where(name))
        new = rest[0].children[0] if rest and rest[0].data == "alias" else name
        _define(scope, replace(found, name=str(new), where=where(new, scope)))


@functools.cache
def _library(name: str) -> Scope:
    data = pkgutil.get_data("lark", f"grammars/{name}.lark")
    if data is None:
        raise InvalidGrammar(f"lark comes without its library '{name}'")
    scope = Scope(library=name)
    _read(scope, data.decode())
    return scope
