"""Rules over the IR, and what must hold before the engine may walk them.

A front end collects its rules here.  :meth:`Rules.language` then

1. refuses a rule from which no text can be derived,
2. takes the empty text out of repeated items (``("a"*)*`` becomes ``"a"*``), so that no repetition
   turns without reading, and
3. rewrites left recursion, direct, indirect and hidden, into repetition or right recursion.

All three keep the language as it is.  The algebra behind 2 and 3 is *nonempty(e)*, the texts of
``e`` but the empty one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from sglang_lite.constrained import budget, ir
from sglang_lite.constrained.analysis import least, rule_names
from sglang_lite.errors import GrammarTooComplex, InvalidGrammar

MAX_RULES = 200_000
MAX_MUTUAL_LEFT_RECURSION = 48
"""Most rules that may be left-recursive through each other; the rewriting is quadratic in them."""

MAX_WRITTEN = 1_000_000
"""Most parts of sequences that are copied."""

Where = tuple[int, int]  # line, column


class Rules:
    """Named IR nodes under construction."""

    def __init__(self, where: Mapping[str, Where | None]) -> None:
        self.nodes: dict[str, ir.Node] = {}
        self.where = dict(where)
        self._nullable: set[str] = set()
        self._nonempty: dict[ir.Node, ir.Node] = {}
        self._written = 0
        self._marks = 0
        self._wanted: list[str] = []  # rules whose nonempty twin is named, but not yet written

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
        self._nullable = least(self.nodes, self._is_nullable)
        for name, node in self.nodes.items():
            self.nodes[name] = self._clean(node)
        root = self._clean(root)
        self._write_wanted()
        while groups := _left_recursive_groups(self.nodes, self._left_corners):
            written: set[str] = set()
            for group in groups:
                budget.check()
                members = dict.fromkeys(map(self._nonempty_rule, group))
                self._write_wanted()
                if written.isdisjoint(members):  # not the twin of a group that is done
                    self._break_left_recursion(group, list(members))
                    self._write_wanted()
                    written.update(members)
        return ir.Language(root, _reachable(self.nodes, root))

    def _refuse_unproductive(self) -> None:
        productive = least(self.nodes, _is_productive)
        for name in self.nodes:
            if name not in productive and name in self.where:
                raise InvalidGrammar(f"rule '{name}' can never end", self.where[name])

    # --- the empty text

    def _is_nullable(self, node: ir.Node, nullable: set[str]) -> bool:
        if isinstance(node, ir.Ref):
            return node.name in nullable
        if isinstance(node, ir.Terminal):
            return node.dfa.accepts(node.dfa.start)
        if isinstance(node, ir.Sequence):
            return all(self._is_nullable(item, nullable) for item in node.items)
        if isinstance(node, ir.Union):
            return any(self._is_nullable(item, nullable) for item in node.items)
        if isinstance(node, ir.Repeat):
            return node.minimum == 0 or self._is_nullable(node.kinds[0].item, nullable)
        if isinstance(node, ir.Counted):
            return not node.open and not node.close and node.minimum == 0
        return isinstance(node, ir.Empty)

    def nonempty(self, node: ir.Node) -> ir.Node:
        """The texts of ``node`` without the empty one."""
        if not self._is_nullable(node, self._nullable):
            return node
        found = self._nonempty.get(node)
        if found is None:
            found = self._nonempty[node] = self._make_nonempty(node)
        return found

    def _make_nonempty(self, node: ir.Node) -> ir.Node:
        if isinstance(node, ir.Ref):
            return ir.Ref(self._nonempty_rule(node.name))
        if isinstance(node, ir.Terminal):
            return ir.terminal(NonEmpty(node.dfa))
        if isinstance(node, ir.Sequence):
            # The first item that is not empty, then whatever follows it.
            firsts = map(self.nonempty, node.items)
            return ir.union(*(self._before_rest(first, node, i) for i, first in enumerate(firsts)))
        if isinstance(node, ir.Union):
            return ir.union(*(self.nonempty(item) for item in node.items))
        if isinstance(node, ir.Repeat):
            return ir.repeat_kinds(node.kinds, 1, node.maximum, node.separator, node.head)
        if isinstance(node, ir.Counted):
            return ir.counted(node.char, 1, node.maximum, open=b"", close=b"")
        return ir.NEVER

    def _before_rest(self, first: ir.Node, node: ir.Sequence, index: int) -> ir.Node:
        """``first``, then the items of ``node`` behind ``index``."""
        rest = node.items[index + 1 :]
        self._written += len(rest) + 1
        if self._written > MAX_WRITTEN:
            raise GrammarTooComplex(
                f"more than {MAX_WRITTEN} parts to write left recursion or empty texts out; "
                "there are long sequences of parts that may all be empty"
            )
        return ir.sequence(first, *rest)

    def _nonempty_rule(self, name: str) -> str:
        """The name of the rule "``name`` but not empty"."""
        if name not in self._nullable:
            return name
        if name + "⁺" not in self.nodes:
            self._wanted.append(name)
        return name + "⁺"

    def _write_wanted(self) -> None:
        while self._wanted:
            name = self._wanted.pop()
            if name + "⁺" not in self.nodes:
                self.nodes[name + "⁺"] = self.nonempty(self.nodes[name])

    def _clean(self, node: ir.Node) -> ir.Node:
        """``node`` with no repeated item that may be empty."""
        if isinstance(node, ir.Sequence):
            return ir.sequence(*map(self._clean, node.items))
        if isinstance(node, ir.Union):
            return ir.union(*map(self._clean, node.items))
        if isinstance(node, ir.Repeat) and len(node.kinds) == 1 and not node.head:
            item = self._clean(node.kinds[0].item)
            if not self._is_nullable(item, self._nullable):
                return ir.repeat(item, node.minimum, node.maximum, node.separator)
            if isinstance(node.separator, ir.Empty):
                return ir.repeat(self.nonempty(item), 0, node.maximum)
        return node

    # --- left recursion

    def _left_corners(self, node: ir.Node) -> Iterator[str]:
        """The rules that ``node`` may enter before it has read a byte."""
        if isinstance(node, ir.Ref):
            yield node.name
        elif isinstance(node, ir.Sequence):
            for item in node.items:
                yield from self._left_corners(item)
                if not self._is_nullable(item, self._nullable):
                    return
        elif isinstance(node, ir.Union):
            for item in node.items:
                yield from self._left_corners(item)
        elif isinstance(node, ir.Repeat):
            for kind in node.kinds:
                yield from self._left_corners(kind.item)

    def _break_left_recursion(self, group: list[str], members: list[str]) -> None:
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
            for corner, tail in self._by_left_corner(self.nodes[name], set(members)):
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
            if name in self._nullable:
                self.nodes[name] = ir.optional(ir.Ref(self._nonempty_rule(name)))

    def _by_left_corner(
        self, node: ir.Node, members: set[str]
    ) -> Iterator[tuple[str | None, ir.Node]]:
        """Split nonempty(``node``) into (member, what follows it) and (None, all other texts)."""
        if isinstance(node, ir.Ref) and self._nonempty_rule(node.name) in members:
            yield self._nonempty_rule(node.name), ir.EMPTY
        elif isinstance(node, ir.Sequence):
            for i, item in enumerate(node.items):
                for corner, tail in self._by_left_corner(item, members):
                    yield corner, self._before_rest(tail, node, i)
                if not self._is_nullable(item, self._nullable):
                    return
        elif isinstance(node, ir.Union):
            for item in node.items:
                yield from self._by_left_corner(item, members)
        elif isinstance(node, ir.Repeat) and not members.isdisjoint(self._left_corner_rules(node)):
            item = node.kinds[0].item  # not nullable: _clean saw to it
            maximum = None if node.maximum is None else node.maximum - 1
            more = ir.repeat(item, max(node.minimum - 1, 0), maximum)
            for corner, tail in self._by_left_corner(item, members):
                yield corner, ir.sequence(tail, more)
        else:
            yield None, self.nonempty(node)

    def _left_corner_rules(self, node: ir.Node) -> set[str]:
        return {self._nonempty_rule(name) for name in self._left_corners(node)}

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
        self.nodes[operand.name] = self._at_right_end(start, name, operand)
        more = self._at_right_end(more, name, operand)
        self.nodes[name] = ir.sequence(operand, ir.repeat(self.nonempty(more)))

    def _at_right_end(self, node: ir.Node, name: str, operand: ir.Ref) -> ir.Node:
        """``node`` with ``operand`` in place of ``name`` where nothing follows it."""
        if isinstance(node, ir.Ref) and self._nonempty_rule(node.name) == name:
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
                    steps.append(ir.sequence(self.nonempty(step), ir.Ref(f"{goal}{mark}{then}")))
                    if self._is_nullable(step, self._nullable) and then not in reach:
                        reach.append(then)
            self.nodes[f"{goal}{mark}{at}"] = ir.union(
                *steps, ir.EMPTY if goal in reach else ir.NEVER
            )
            if goal in reach:
                self._nullable.add(f"{goal}{mark}{at}")
        self.nodes[goal] = ir.union(
            *(ir.sequence(starts[at], ir.Ref(f"{goal}{mark}{at}")) for at in members)
        )


class NonEmpty(ir.ByteDFA):
    """What ``dfa`` accepts but the empty text: a second start state that does not accept."""

    def __init__(self, dfa: ir.ByteDFA) -> None:
        self.dfa = dfa
        self.start = 0 if any(target >= 0 for target in dfa.row(dfa.start)) else -1

    def step(self, state: int, byte: int) -> int:
        target = self.dfa.step(state - 1 if state else self.dfa.start, byte)
        return target + 1 if target >= 0 else -1

    def row(self, state: int) -> list[int]:
        row = self.dfa.row(state - 1 if state else self.dfa.start)
        return [target + 1 if target >= 0 else -1 for target in row]

    def accepts(self, state: int) -> bool:
        return state > 0 and self.dfa.accepts(state - 1)

    def alias(self, state: int) -> tuple[ir.ByteDFA, int] | None:
        return (self.dfa, state - 1) if state > 0 else None

    def like(self, state: int) -> tuple[ir.ByteDFA, int] | None:
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NonEmpty) and self.dfa == other.dfa

    def __hash__(self) -> int:
        return hash((NonEmpty, self.dfa))


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
            *map(new, (node.open, node.colon, node.comma, node.close)),
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


def _left_recursive_groups(
    nodes: dict[str, ir.Node], corners: Callable[[ir.Node], Iterable[str]]
) -> list[list[str]]:
    """Groups of rules that reach each other at the left edge (Tarjan's algorithm, no recursion)."""
    graph = {name: list(dict.fromkeys(corners(node))) for name, node in nodes.items()}
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
                    if len(group) > 1 or name in graph[name]:
                        groups.append(group)
            elif other not in index:
                index[other] = low[other] = len(index)
                open_names.append(other)
                is_open.add(other)
                stack.append((other, iter(graph[other])))
            elif other in is_open:
                low[name] = min(low[name], index[other])
    return groups
