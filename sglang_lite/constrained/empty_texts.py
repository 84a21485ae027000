"""The empty text: which rules derive it, and their languages without it.

The engine wants repeated items that read at least a byte, and left recursion is only rewritten
exactly where nothing can be skipped.  So this is the algebra of *nonempty(e)*, the texts of ``e``
but the empty one: for a rule ``r`` that is a new rule ``r⁺``.
"""

from __future__ import annotations

from sglang_lite.constrained import ir
from sglang_lite.constrained.analysis import least
from sglang_lite.errors import GrammarTooComplex

MAX_COPIED = 1_000_000
"""Most parts of sequences that are copied."""


class EmptyTexts:
    """The rules ``nodes`` (which it extends and rewrites) and what of them may be empty."""

    def __init__(self, nodes: dict[str, ir.Node]) -> None:
        self.nodes = nodes
        self.nullable = least(nodes, _is_nullable)
        self._nonempty: dict[ir.Node, ir.Node] = {}
        self._copied = 0
        self._wanted: list[str] = []  # rules whose nonempty twin is named, but not yet written

    def may_be_empty(self, node: ir.Node) -> bool:
        """True where the empty text is in the language of ``node``."""
        return _is_nullable(node, self.nullable)

    def nonempty(self, node: ir.Node) -> ir.Node:
        """The texts of ``node`` without the empty one."""
        if not self.may_be_empty(node):
            return node
        found = self._nonempty.get(node)
        if found is None:
            found = self._nonempty[node] = self._make_nonempty(node)
        return found

    def _make_nonempty(self, node: ir.Node) -> ir.Node:
        if isinstance(node, ir.Ref):
            return ir.Ref(self.nonempty_rule(node.name))
        if isinstance(node, ir.Terminal):
            return ir.terminal(NonEmpty(node.dfa))
        if isinstance(node, ir.Sequence):
            # The first item that is not empty, then whatever follows it.
            firsts = map(self.nonempty, node.items)
            return ir.union(*(self.before_rest(first, node, i) for i, first in enumerate(firsts)))
        if isinstance(node, ir.Union):
            return ir.union(*(self.nonempty(item) for item in node.items))
        if isinstance(node, ir.Repeat):
            return ir.repeat_kinds(node.kinds, 1, node.maximum, node.separator, node.head)
        if isinstance(node, ir.Counted):
            return ir.counted(node.char, 1, node.maximum, open=b"", close=b"")
        return ir.NEVER

    def before_rest(self, first: ir.Node, node: ir.Sequence, index: int) -> ir.Node:
        """``first``, then the items of ``node`` behind ``index``."""
        rest = node.items[index + 1 :]
        self._copied += len(rest) + 1
        if self._copied > MAX_COPIED:
            raise GrammarTooComplex(
                f"more than {MAX_COPIED} parts to write left recursion or empty texts out; "
                "there are long sequences of parts that may all be empty"
            )
        return ir.sequence(first, *rest)

    def nonempty_rule(self, name: str) -> str:
        """The name of the rule "``name`` but not empty"."""
        if name not in self.nullable:
            return name
        if name + "⁺" not in self.nodes:
            self._wanted.append(name)
        return name + "⁺"

    def write_wanted(self) -> None:
        """Write the rules that :meth:`nonempty_rule` has named since the last time."""
        while self._wanted:
            name = self._wanted.pop()
            if name + "⁺" not in self.nodes:
                self.nodes[name + "⁺"] = self.nonempty(self.nodes[name])

    def clean(self, node: ir.Node) -> ir.Node:
        """``node`` with no repeated item that may be empty."""
        if isinstance(node, ir.Sequence):
            return ir.sequence(*map(self.clean, node.items))
        if isinstance(node, ir.Union):
            return ir.union(*map(self.clean, node.items))
        if isinstance(node, ir.Repeat) and _is_plain(node):
            item = self.clean(node.kinds[0].item)
            if not self.may_be_empty(item):
                return ir.repeat(item, node.minimum, node.maximum, node.separator)
            if isinstance(node.separator, ir.Empty):
                return ir.repeat(self.nonempty(item), 0, node.maximum)
        return node


def _is_plain(node: ir.Repeat) -> bool:
    """True for what grammars write: items of one kind.  Those of JSON arrays are never empty."""
    return not node.head and node.kinds == (ir.Kind(node.kinds[0].item),)


def _is_nullable(node: ir.Node, nullable: set[str]) -> bool:
    if isinstance(node, ir.Ref):
        return node.name in nullable
    if isinstance(node, ir.Terminal):
        return node.dfa.accepts(node.dfa.start)
    if isinstance(node, ir.Sequence):
        return all(_is_nullable(item, nullable) for item in node.items)
    if isinstance(node, ir.Union):
        return any(_is_nullable(item, nullable) for item in node.items)
    if isinstance(node, ir.Repeat):
        return node.minimum == 0 or _is_nullable(node.kinds[0].item, nullable)
    if isinstance(node, ir.Counted):
        return not node.open and not node.close and node.minimum == 0
    return isinstance(node, ir.Empty)


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
