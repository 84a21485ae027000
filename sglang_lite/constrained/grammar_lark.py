"""Lark grammars to the IR.

Rules become IR rules, terminals become byte DFAs, ``%ignore`` may stand before, between and after
terminals.  There is no lexer: ``"if" NAME`` accepts ``iffy``, because ``fy`` is a NAME.
"""

from __future__ import annotations

import re

from lark import Token

from sglang_lite.constrained import grammar_expression as expression
from sglang_lite.constrained import ir
from sglang_lite.constrained.grammar_expression import Expression
from sglang_lite.constrained.grammar_lark_text import Branch, Definition, Scope, read_lark, where
from sglang_lite.constrained.grammar_rules import Rules, Where
from sglang_lite.constrained.grammar_terminals import (
    character_range,
    regexp,
    string,
    substrings,
    terminal_node,
)
from sglang_lite.constraint import JsonSchema
from sglang_lite.errors import GrammarTooComplex, InvalidGrammar

MAX_INSTANCES = 5_000
"""Most template instances: ``a{x}: x a{b{x}}`` has no end of them."""

Arguments = dict[str, "ir.Node | Definition"]


def lower_lark(text: str, start: str = "start") -> ir.Language:
    """The language of rule ``start`` of the grammar ``text``.

    Raises InvalidGrammar with line and column, or GrammarTooComplex.
    """
    return _Lowering(read_lark(text)).language(start)


class _Lowering:
    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._rules = Rules({})
        self._queue: list[tuple[str, Definition, Arguments]] = []
        self._names: dict[tuple[ir.Node | int, ...], str] = {}
        self._expressions: dict[tuple[str, str], Expression] = {}
        self._open: set[tuple[str, str]] = set()
        self._nodes: dict[str | tuple[str, str], ir.Node] = {}
        self._gap: ir.Node = ir.EMPTY

    def language(self, start: str) -> ir.Language:
        self._gap = self._ignored()
        if start not in self._scope.definitions or start.isupper():
            raise InvalidGrammar(f"there is no rule '{start}' to start with")
        definition = self._find(self._scope, Token("RULE", start))
        root = self._rule(definition, (), definition.where)
        for name, other in self._scope.definitions.items():
            if not other.parameters and not name.isupper() and other.bodies:
                self._rule(other, (), other.where)
        for rule, definition, arguments in self._queue:  # grows while it is worked through
            nodes = [
                self._alternatives(scope, body, arguments) for scope, body in definition.bodies
            ]
            self._rules.add(rule, ir.union(*nodes))
        return self._rules.language(ir.sequence(self._gap, root))

    def _find(self, scope: Scope, name: Token) -> Definition:
        definition = scope.definitions.get(name)
        kind = "terminal" if name.type == "TERMINAL" else "rule"
        if definition is None:
            raise InvalidGrammar(f"{kind} '{name}' is not defined", where(name, scope))
        if not definition.bodies:
            reason = f"{kind} '{name}' is declared but not defined"
            raise InvalidGrammar(reason, where(name, scope))
        if definition.priority is not None:
            raise InvalidGrammar(
                f"{kind} '{name}' has a priority; priorities cannot be enforced", definition.where
            )
        return definition

    # --- rules

    def _rule(
        self,
        definition: Definition,
        arguments: tuple[ir.Node | Definition, ...],
        place: Where | None,
    ) -> ir.Node:
        """A reference to a rule, or to a template's instance with these arguments."""
        if len(arguments) != len(definition.parameters):
            raise InvalidGrammar(
                f"'{definition.name}' takes {len(definition.parameters)} arguments, "
                f"not {len(arguments)}",
                place,
            )
        key = (id(definition), *(a if isinstance(a, ir.Node) else id(a) for a in arguments))
        name = self._names.get(key)
        if name is None:
            if len(self._names) - len(self._scope.definitions) > MAX_INSTANCES:
                raise GrammarTooComplex(f"more than {MAX_INSTANCES} instances of templates")
            name = definition.name
            if arguments or name in self._rules.where:  # an instance, or a library's namesake
                name += f"{{{len(self._names)}}}"
            self._names[key] = name
            self._rules.where[name] = definition.where
            bound = dict(zip(definition.parameters, arguments, strict=True))
            self._queue.append((name, definition, bound))
        return ir.Ref(name)

    def _alternatives(self, scope: Scope, tree: Branch, arguments: Arguments) -> ir.Node:
        nodes: list[ir.Node] = []
        words: list[ir.Node] = []
        for row in tree.children:
            items = [item for item in row.children if not isinstance(item, Token)]  # no alias
            node = ir.sequence(*(self._item(scope, item, arguments) for item in items))
            word = _word_before(node, self._gap)
            if word is None:
                nodes.append(node)
            else:
                words.append(word)
        if words:
            nodes.append(ir.sequence(ir.union(*words), self._gap))
        return ir.union(*nodes)

    def _item(self, scope: Scope, item: Branch, arguments: Arguments) -> ir.Node:
        atom, *suffix = item.children
        node = self._atom(scope, atom, arguments)
        if not suffix:
            return node
        return expression.repeat_node(node, *_bounds(suffix[0], scope))

    def _atom(self, scope: Scope, atom: Branch, arguments: Arguments) -> ir.Node:
        kind = _kind(atom)
        if kind in ("group", "maybe"):
            node = self._alternatives(scope, atom.children[0], arguments)
            return ir.optional(node) if kind == "maybe" else node
        if kind == "EMBEDDED" and atom.startswith("%json"):
            return self._json(scope, atom)
        if kind in ("symbol", "usage"):
            name = atom.children[0]
            if name.type == "TERMINAL":
                return ir.sequence(self._terminal(scope, name), self._gap)
            found = arguments.get(name) or self._find(scope, name)
            if isinstance(found, ir.Node):
                return found
            values = tuple(self._argument(scope, a, arguments) for a in atom.children[1:])
            return self._rule(found, values, where(name, scope))
        token = str(atom) if isinstance(atom, Token) else "..".join(atom.children)
        if token not in self._nodes:
            first = atom if isinstance(atom, Token) else atom.children[0]
            part = self._simple(scope, atom)
            self._nodes[token] = terminal_node(part, token, where(first, scope))
        return ir.sequence(self._nodes[token], self._gap)

    def _argument(
        self, scope: Scope, argument: Branch, arguments: Arguments
    ) -> ir.Node | Definition:
        """A template's argument; a template may be passed on by its name."""
        value = argument.children[0]
        name = value.children[0] if _kind(value) == "symbol" else None
        if name is not None and name.type == "RULE":
            found = arguments.get(name) or self._find(scope, name)
            if isinstance(found, ir.Node) or found.parameters:
                return found
        return self._atom(scope, value, arguments)

    def _json(self, scope: Scope, token: Token) -> ir.Node:
        from sglang_lite.constrained.json_schema import lower_json_schema

        text = scope.embedded[int(token[6:])]
        language = lower_json_schema(JsonSchema.of(text))
        return ir.sequence(self._rules.embed(language, f"{token}/"), self._gap)

    # --- terminals

    def _ignored(self) -> ir.Node:
        """Any number of ignored terminals.

        Those that are regular become one terminal ``R*``.  With others, L, it is ``R* (L R*)*``,
        which reads each text in one way only: masks are walked along every way.
        """
        parts = [self._terminal_alternatives(self._scope, tree) for tree in self._scope.ignored]
        regular = [part for part in parts if part.regex is not None and not part.whole]
        others = [part for part in parts if part.regex is None or part.whole]
        gap: ir.Node = ir.EMPTY
        if regular:
            several = expression.repeat(expression.union(regular), 0, None)
            gap = terminal_node(several, "%ignore", None)
        if not others:
            return gap
        other = ir.union(*(terminal_node(part, "%ignore", None) for part in others))
        self._rules.add("%ignore", ir.sequence(gap, ir.repeat(ir.sequence(other, gap))))
        return ir.Ref("%ignore")

    def _terminal(self, scope: Scope, name: Token) -> ir.Node:
        key = (scope.library, str(name))
        if key not in self._nodes:
            part = self._expression(scope, name)
            self._nodes[key] = terminal_node(part, f"'{name}'", where(name, scope))
        return self._nodes[key]

    def _expression(self, scope: Scope, name: Token) -> Expression:
        key = (scope.library, str(name))
        if key in self._open:
            raise InvalidGrammar(f"terminal '{name}' refers to itself", where(name, scope))
        found = self._expressions.get(key)
        if found is None:
            self._open.add(key)
            definition = self._find(scope, name)
            part = expression.union(
                [self._terminal_alternatives(inner, body) for inner, body in definition.bodies]
            )
            self._open.remove(key)
            if part.regex is None and not part.whole:  # large: written once, as a rule
                rule = ".".join(filter(None, key))
                self._rules.where[rule] = definition.where
                self._rules.add(rule, part.node())
                part = expression.call(rule)
            found = self._expressions[key] = part
        return found

    def _terminal_alternatives(self, scope: Scope, tree: Branch) -> Expression:
        rows = []
        for row in tree.children:
            items = [item for item in row.children if not isinstance(item, Token)]
            rows.append(expression.sequence([self._part(scope, item) for item in items]))
        return expression.union(rows)

    def _part(self, scope: Scope, item: Branch) -> Expression:
        atom, *suffix = item.children
        if _kind(atom) in ("group", "maybe"):
            part = self._terminal_alternatives(scope, atom.children[0])
            part = expression.repeat(part, 0, 1) if atom.data == "maybe" else part
        else:
            part = self._simple(scope, atom)
        return expression.repeat(part, *_bounds(suffix[0], scope)) if suffix else part

    def _simple(self, scope: Scope, atom: Branch) -> Expression:
        """What may stand in a terminal: literals, regexes, ranges, other terminals."""
        if not isinstance(atom, Token):
            first = atom.children[0]
            if atom.data == "range":
                return character_range(first, atom.children[1], where(first, scope))
            if first.type == "TERMINAL":
                return self._expression(scope, first)
            raise InvalidGrammar(f"rule '{first}' is used in a terminal", where(first, scope))
        if atom.startswith("%regex"):
            return substrings(scope.embedded[int(atom[7:])], where(atom, scope))
        if atom.startswith("%json"):
            raise InvalidGrammar("%json is used in a terminal", where(atom, scope))
        read = string if atom.type == "STRING" else regexp
        return read(str(atom), where(atom, scope))


def _kind(atom: Branch) -> str:
    return atom.type if isinstance(atom, Token) else atom.data


def _word_before(node: ir.Node, gap: ir.Node) -> ir.Node | None:
    """The literal in "literal, gap": alternatives like that become one set of words, then a gap."""
    if isinstance(node, ir.Sequence) and len(node.items) == 2 and node.items[1] == gap:
        word = node.items[0]
        return word if isinstance(word, (ir.Literal, ir.LiteralSet)) else None
    return None


def _bounds(suffix: Branch, scope: Scope) -> tuple[int, int | None]:
    sign = suffix.children[0]
    if sign.type == "OPERATOR":
        bounds: tuple[int, int | None] = {"?": (0, 1), "*": (0, None), "+": (1, None)}[sign]
    elif sign.type == "NUMBER":
        bounds = int(sign[:9]), int(suffix.children[-1][:9])
    else:
        low, comma, high = re.sub(r"[{}\s]", "", sign).partition(",")
        minimum = int(low[:9] or 0)
        bounds = minimum, int(high[:9]) if high else None if comma else minimum
    expression.check_bounds(*bounds, where(sign, scope))
    return bounds
