"""Rules over the IR, and what must hold before the engine may walk them.

A front end collects its rules here.  :meth:`Rules.language` then

1. refuses a rule from which no text can be derived,
2. takes the empty text out of repeated items (``("a"*)*`` becomes ``"a"*``), so that no repetition
   turns without reading, and
3. rewrites left recursion, direct, indirect and hidden, into repetition or right recursion.

All three keep the language as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from sglang_lite.constrained import ir
from sglang_lite.constrained.analysis import least, rule_names
from sglang_lite.constrained.empty_texts import EmptyTexts
from sglang_lite.constrained.left_recursion import LeftRecursion
from sglang_lite.errors import GrammarTooComplex, InvalidGrammar

MAX_RULES = 200_000

Where = tuple[int, int]  # line, column


class Rules:
    """Named IR nodes under construction."""

    def __init__(self, where: Mapping[str, Where | None]) -> None:
        self.nodes: dict[str, ir.Node] = {}
        self.where = dict(where)

    def add(self, name: str, node: ir.Node) -> None:
        """Define rule ``name``; raises GrammarTooComplex beyond ``MAX_RULES`` rules."""
        if len(self.nodes) >= MAX_RULES:
            raise GrammarTooComplex(f"more than {MAX_RULES} grammar rules")
        self.nodes[name] = node

    def embed(self, language: ir.Language, prefix: str) -> ir.Node:
        """Take over the rules of ``language``, with ``prefix`` before their names; its root."""
        if not language.rules:
            return language.root
        renamed: dict[ir.Node, ir.Node] = {}
        for name, node in language.rules.items():
            self.add(prefix + name, _renamed(node, prefix, renamed))
        return _renamed(language.root, prefix, renamed)

    def language(self, root: ir.Node) -> ir.Language:
        """``root`` with all rules that it reaches, ready for the engine.

        Raises InvalidGrammar where a reachable rule derives no text at all.
        """
        self.nodes = _reachable(self.nodes, root)
        self._refuse_unproductive()
        texts = EmptyTexts(self.nodes)
        for name, node in self.nodes.items():
            self.nodes[name] = texts.clean(node)
        root = texts.clean(root)
        texts.write_wanted()
        LeftRecursion(texts).remove()
        return ir.Language(root, _reachable(self.nodes, root))

    def _refuse_unproductive(self) -> None:
        productive = least(self.nodes, _is_productive)
        for name in self.nodes:
            if name not in productive and name in self.where:
                raise InvalidGrammar(f"rule '{name}' can never end", self.where[name])


def _is_productive(node: ir.Node, productive: set[str]) -> bool:
    if isinstance(node, ir.Ref):
        return node.name in productive
    if isinstance(node, ir.Sequence):
        return all(_is_productive(item, productive) for item in node.items)
    if isinstance(node, ir.Union):
        return any(_is_productive(item, productive) for item in node.items)
    if isinstance(node, ir.Repeat):
        return node.minimum == 0 or any(
            _is_productive(kind.item, productive) for kind in node.kinds
        )
    return not isinstance(node, ir.Never)


def _renamed(node: ir.Node, prefix: str, known: dict[ir.Node, ir.Node]) -> ir.Node:
    """``node`` with ``prefix`` before the names of all rules."""
    found = known.get(node)
    if found is not None:
        return found

    def new(part: ir.Node) -> ir.Node:
        return _renamed(part, prefix, known)

    if isinstance(node, ir.Ref):
        made: ir.Node = ir.Ref(prefix + node.name)
    elif isinstance(node, (ir.Sequence, ir.Union)):
        made = type(node)(tuple(map(new, node.items)))
    elif isinstance(node, ir.Repeat):
        kinds = tuple(kind._replace(item=new(kind.item)) for kind in node.kinds)
        head = tuple(tuple(map(new, row)) for row in node.head)
        made = ir.Repeat(kinds, node.minimum, node.maximum, new(node.separator), head)
    elif isinstance(node, ir.Object):
        made = ir.Object(
            tuple(member._replace(value=new(member.value)) for member in node.members),
            tuple(extra._replace(value=new(extra.value)) for extra in node.extras),
            node.order,
            node.minimum,
            node.maximum,
            node.clauses,
            new(node.open),
            new(node.colon),
            new(node.comma),
            new(node.close),
            node.distinct,
        )
    else:
        made = node
    known[node] = made
    return made


def _reachable(nodes: dict[str, ir.Node], root: ir.Node) -> dict[str, ir.Node]:
    names = dict.fromkeys(sorted(rule_names(root)))
    queue = list(names)
    for name in queue:
        for other in sorted(rule_names(nodes[name])):
            if other not in names:
                names[other] = None
                queue.append(other)
    return {name: nodes[name] for name in queue}
