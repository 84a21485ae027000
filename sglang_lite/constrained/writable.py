"""A language less the texts that a vocabulary has no bytes for.

Some vocabularies lack a few bytes (rare control characters, the leads of unused planes).  Texts
with them cannot be written, and what only leads to such texts would be a dead end.
"""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter

from sglang_lite.constrained import ir
from sglang_lite.constrained.analysis import children, rebuild
from sglang_lite.constrained.ir import ByteDFA
from sglang_lite.errors import GrammarTooComplex

MAX_SEARCH = 20_000
FEW_STATES = 100
"""Automata of so many states are searched for bytes that a vocabulary lacks."""


def writable(language: ir.Language, absent: frozenset[int]) -> ir.Language:
    """The texts of ``language`` without bytes in ``absent``; the same object if it has none."""
    if not absent or not _has_some(language, absent):
        return language

    def leaf(node: ir.Node) -> ir.Node:
        return _leaf(node, absent)

    nodes = {name: rebuild(node, leaf) for name, node in language.rules.items()}
    return ir.Language(rebuild(language.root, leaf), nodes, language.warnings)


def _has_some(language: ir.Language, absent: frozenset[int]) -> bool:
    """True where some leaf of ``language`` may hold bytes in ``absent``."""
    seen: set[int] = set()
    work = [language.root, *language.rules.values()]
    while work:
        node = work.pop()
        if id(node) not in seen:
            seen.add(id(node))
            below = children(node)
            if not below and _leaf(node, absent) is not node:
                return True
            work += below
    return False


def _leaf(node: ir.Node, absent: frozenset[int]) -> ir.Node:
    if isinstance(node, ir.Literal):
        return ir.NEVER if absent.intersection(node.text) else node
    if isinstance(node, ir.LiteralSet):
        if not any(absent.intersection(text) for text in node.texts):
            return node
        return ir.literals(text for text in node.texts if not absent.intersection(text))
    if isinstance(node, ir.Terminal) and _needs(node.dfa, absent):
        return ir.terminal(trimmed(node.dfa, absent))
    if isinstance(node, ir.Counted) and _needs(node.char, absent):
        char = trimmed(node.char, absent)
        if char.start < 0:
            return ir.NEVER if node.minimum else ir.literal(node.open + node.close)
        return ir.Counted(char, node.minimum, node.maximum, node.open, node.close)
    return node


@lru_cache(maxsize=1024)
def _needs(dfa: ByteDFA, absent: frozenset[int]) -> bool:
    """False where the automaton knows, or a short search tells, that it does without ``absent``."""
    if not dfa.needs(absent):
        return False
    seen, work = {dfa.start}, [dfa.start]
    while work and len(seen) <= FEW_STATES:
        row = dfa.row(work.pop())
        if any(row[byte] >= 0 for byte in absent):
            return True
        fresh = {target for target in row if target >= 0} - seen
        seen |= fresh
        work += fresh
    return bool(work)


class TrimmedDFA(ByteDFA):
    """The texts of another DFA without some bytes; states are the other's."""

    def __init__(self, dfa: ByteDFA, absent: frozenset[int]) -> None:
        self.dfa, self.absent = dfa, absent
        self._present = itemgetter(*(byte for byte in range(256) if byte not in absent))
        self._live: dict[int, bool] = {}
        self._rows: dict[int, tuple[int, ...]] = {}
        self.start = dfa.start if self._alive(dfa.start) else -1

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return trimmed, (self.dfa, self.absent)

    def step(self, state: int, byte: int) -> int:
        """The state after ``byte``, or -1."""
        return self.row(state)[byte]

    def row(self, state: int) -> tuple[int, ...]:
        """The 256 targets of ``state``; -1 is a refusal."""
        row = self._rows.get(state)
        if row is None:
            row = self._rows[state] = tuple(
                target if target >= 0 and byte not in self.absent and self._alive(target) else -1
                for byte, target in enumerate(self.dfa.row(state))
            )
        return row

    def accepts(self, state: int) -> bool:
        """True where the text so far is in the language."""
        return self.dfa.accepts(state)

    def needs(self, absent: frozenset[int]) -> bool:
        """False for the bytes that were removed."""
        return not absent <= self.absent

    def _alive(self, state: int) -> bool:
        """True where bytes that are not absent lead from ``state`` to acceptance."""
        live = self._live
        if state in live:
            return live[state]
        came_from = {state: -1}
        work = [state]
        while work:
            here = work.pop()
            if live.get(here) or self.dfa.accepts(here):
                while here >= 0:
                    live[here] = True
                    here = came_from[here]
                return True
            if len(came_from) > MAX_SEARCH:
                raise GrammarTooComplex(f"a terminal has more than {MAX_SEARCH} states to check")
            for target in set(self._present(self.dfa.row(here))):
                if target >= 0 and target not in came_from and live.get(target) is not False:
                    came_from[target] = here
                    work.append(target)
        live.update(dict.fromkeys(came_from, False))
        return False


@lru_cache(maxsize=4096)
def trimmed(dfa: ByteDFA, absent: frozenset[int]) -> TrimmedDFA:
    """The one :class:`TrimmedDFA` of these arguments."""
    return TrimmedDFA(dfa, absent)
