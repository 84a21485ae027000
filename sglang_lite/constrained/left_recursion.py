"""Left recursion, direct, indirect and hidden, rewritten into repetition or right recursion.

Exact for every grammar: the rewritten rules derive the same texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sglang_lite.constrained import budget, ir
from sglang_lite.constrained.empty_texts import EmptyTexts
from sglang_lite.errors import GrammarTooComplex

MAX_MUTUAL_LEFT_RECURSION = 48
"""Most rules that may be left-recursive through each other; the rewriting is quadratic in them."""


class LeftRecursion:
    """Rewrites the rules of ``texts`` in place."""

    def __init__(self, texts: EmptyTexts) -> None:
        self._texts = texts
        self._nodes = texts.nodes
        self._marks = 0

    def remove(self) -> None:
        """Rewrite until no rule can begin with itself.

        Raises GrammarTooComplex where too many rules begin with each other.
        """
        while groups := self._groups():
            written: set[str] = set()
            for group in groups:
                budget.check()
                members = dict.fromkeys(map(self._texts.nonempty_rule, group))
                self._texts.write_wanted()
                if written.isdisjoint(members):  # not the twin of a group that is done
                    self._break(group, list(members))
                    self._texts.write_wanted()
                    written.update(members)

    def _groups(self) -> list[list[str]]:
        """The groups of rules that can begin with each other."""
        edges = {
            name: list(dict.fromkeys(self._left_corners(node)))
            for name, node in self._nodes.items()
        }
        return [
            group
            for group in strongly_connected(edges)
            if len(group) > 1 or group[0] in edges[group[0]]
        ]

    def _left_corners(self, node: ir.Node) -> Iterator[str]:
        """The rules that ``node`` may enter before it has read a byte."""
        if isinstance(node, ir.Ref):
            yield node.name
        elif isinstance(node, ir.Sequence):
            for item in node.items:
                yield from self._left_corners(item)
                if not self._texts.may_be_empty(item):
                    return
        elif isinstance(node, ir.Union):
            for item in node.items:
                yield from self._left_corners(item)
        elif isinstance(node, ir.Repeat):
            for kind in node.kinds:
                yield from self._left_corners(kind.item)

    def _break(self, group: list[str], members: list[str]) -> None:
        """Rewrite the rules ``group``, each of which can begin with any other of them.

        Without their empty texts (as ``members``), they are a left-linear system
        A = B α | … | β, so their texts are the paths of a graph: begin with the β of some rule C,
        follow edges C → D labelled α (where D = C α) until A.  The rules ``A/C``, "what is missing
        to A when C has been read", write the paths as right recursion.  One rule alone is simply
        β α*.
        """
        if len(group) > MAX_MUTUAL_LEFT_RECURSION:
            raise GrammarTooComplex(
                f"rule '{group[0]}' is left-recursive through {len(group)} rules, at most "
                f"{MAX_MUTUAL_LEFT_RECURSION} are rewritten"
            )
        starts: dict[str, ir.Node] = {}
        edges: dict[str, dict[str, list[ir.Node]]] = {name: {} for name in members}
        for name in members:
            rest: list[ir.Node] = []
            for corner, tail in self._by_left_corner(self._nodes[name], set(members)):
                if corner is None:
                    rest.append(tail)
                else:
                    edges[corner].setdefault(name, []).append(tail)
            starts[name] = ir.union(*rest)
        if len(members) == 1:
            name = members[0]
            self._write_repetition(name, starts[name], ir.union(*edges[name].get(name, ())))
        else:
            for name in members:
                self._write_paths(name, members, starts, edges)
        for name in group:
            if name in self._texts.nullable:
                self._nodes[name] = ir.optional(ir.Ref(self._texts.nonempty_rule(name)))

    def _by_left_corner(
        self, node: ir.Node, members: set[str]
    ) -> Iterator[tuple[str | None, ir.Node]]:
        """Split nonempty(``node``) into (member, what follows it) and (None, all other texts)."""
        if isinstance(node, ir.Ref) and self._texts.nonempty_rule(node.name) in members:
            yield self._texts.nonempty_rule(node.name), ir.EMPTY
        elif isinstance(node, ir.Sequence):
            for i, item in enumerate(node.items):
                for corner, tail in self._by_left_corner(item, members):
                    yield corner, self._texts.before_rest(tail, node, i)
                if not self._texts.may_be_empty(item):
                    return
        elif isinstance(node, ir.Union):
            for item in node.items:
                yield from self._by_left_corner(item, members)
        elif isinstance(node, ir.Repeat) and not members.isdisjoint(self._left_corner_rules(node)):
            item = node.kinds[0].item  # not nullable: EmptyTexts.clean saw to it
            maximum = None if node.maximum is None else node.maximum - 1
            more = ir.repeat(item, max(node.minimum - 1, 0), maximum)
            for corner, tail in self._by_left_corner(item, members):
                yield corner, ir.sequence(tail, more)
        else:
            yield None, self._texts.nonempty(node)

    def _left_corner_rules(self, node: ir.Node) -> set[str]:
        return {self._texts.nonempty_rule(name) for name in self._left_corners(node)}

    def _mark(self) -> str:
        """What stands in the names of helper rules: a rule may be rewritten more than once."""
        self._marks += 1
        return f"/{self._marks}/"

    def _write_repetition(self, name: str, start: ir.Node, more: ir.Node) -> None:
        """Define ``name`` as ``start`` ``more``*, with less ambiguity where it is easy.

        ``e: e "+" e | "-" e | "1"`` says what ``e: p ("+" p)*``, ``p: "-" p | "1"`` says: an ``e``
        at the right end adds only what the repetition around it can add.
        """
        operand = ir.Ref(f"{name}{self._mark()}operand")
        self._nodes[operand.name] = self._at_right_end(start, name, operand)
        more = self._at_right_end(more, name, operand)
        self._nodes[name] = ir.sequence(operand, ir.repeat(self._texts.nonempty(more)))

    def _at_right_end(self, node: ir.Node, name: str, operand: ir.Ref) -> ir.Node:
        """``node`` with ``operand`` in place of ``name`` where nothing follows it."""
        if isinstance(node, ir.Ref) and self._texts.nonempty_rule(node.name) == name:
            return operand if node.name == name else ir.optional(operand)
        if isinstance(node, ir.Sequence):
            last = self._at_right_end(node.items[-1], name, operand)
            return ir.sequence(*node.items[:-1], last)
        if isinstance(node, ir.Union):
            return ir.union(*(self._at_right_end(item, name, operand) for item in node.items))
        return node

    def _write_paths(
        self,
        goal: str,
        members: list[str],
        starts: dict[str, ir.Node],
        edges: dict[str, dict[str, list[ir.Node]]],
    ) -> None:
        """Define ``goal`` and its helpers ``goal/C`` for every member C."""
        mark = self._mark()
        for at in members:
            reach, steps = [at], []
            for here in reach:  # grows: an α that may be empty is followed at once
                for then, tails in edges[here].items():
                    step = ir.union(*tails)
                    steps.append(
                        ir.sequence(self._texts.nonempty(step), ir.Ref(f"{goal}{mark}{then}"))
                    )
                    if self._texts.may_be_empty(step) and then not in reach:
                        reach.append(then)
            self._nodes[f"{goal}{mark}{at}"] = ir.union(
                *steps, ir.EMPTY if goal in reach else ir.NEVER
            )
            if goal in reach:
                self._texts.nullable.add(f"{goal}{mark}{at}")
        self._nodes[goal] = ir.union(
            *(ir.sequence(starts[at], ir.Ref(f"{goal}{mark}{at}")) for at in members)
        )


def strongly_connected(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The strongly connected components of ``graph``, by Tarjan's algorithm without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    open_names: list[str] = []
    is_open: set[str] = set()
    groups: list[list[str]] = []
    for first in graph:
        if first in index:
            continue
        stack = [(first, iter(graph[first]))]
        index[first] = low[first] = len(index)
        open_names.append(first)
        is_open.add(first)
        while stack:
            name, rest = stack[-1]
            other = next(rest, None)
            if other is None:
                stack.pop()
                if stack:
                    low[stack[-1][0]] = min(low[stack[-1][0]], low[name])
                if low[name] == index[name]:
                    group: list[str] = []
                    while not group or group[-1] != name:
                        group.append(open_names.pop())
                    is_open.difference_update(group)
                    groups.append(group)
            elif other not in index:
                index[other] = low[other] = len(index)
                open_names.append(other)
                is_open.add(other)
                stack.append((other, iter(graph[other])))
            elif other in is_open:
                low[name] = min(low[name], index[other])
    return groups
