"""States of the pushdown automaton: sets of configurations, with what is remembered of them."""

from __future__ import annotations

from collections.abc import Iterable

from sglang_lite.constrained.cursors import Cursor
from sglang_lite.constrained.frames import Stack
from sglang_lite.constrained.tables import Row

CONFIGURATION_BYTES = 2500
"""Rough memory of a configuration with its share of stacks, cursors and states."""

MOVE_BYTES = 100
"""Rough memory of a remembered step of a state."""

Pairs = tuple[tuple[Cursor, Stack], ...]


class Configuration:
    """A cursor and the stack below its leaf; remembers its part of the mask."""

    __slots__ = ("alone", "below", "cursor", "recipe")

    def __init__(self, cursor: Cursor, below: Stack) -> None:
        self.cursor = cursor
        self.below = below
        self.alone: State | None = None  # the state of nothing else, as most states are
        self.recipe: tuple[tuple[Row, ...], tuple[int, ...]] | None = None


class State:
    """A set of configurations; ``accepting`` says that the text may end here."""

    __slots__ = ("accepting", "configurations", "mask", "moves", "passed", "tokens")

    def __init__(self, configurations: tuple[Configuration, ...], accepting: bool) -> None:
        self.configurations = configurations
        self.accepting = accepting
        self.moves: dict[int, State | None] = {}
        self.tokens: dict[int, State | None] = {}
        self.mask: Row | None = None
        self.passed = False  # its mask was written somewhere, but not kept

    def pairs(self) -> Pairs:
        """The (cursor, stack) pair of each configuration."""
        found = self.configurations
        if len(found) == 1:
            return ((found[0].cursor, found[0].below),)
        return tuple([(c.cursor, c.below) for c in found])


def size_bytes(configurations: Iterable[Configuration], states: Iterable[State]) -> int:
    """Approximate memory of these with their recipes, masks and moves; shared rows count once."""
    rows: dict[int, int] = {}
    size = 0
    for configuration in configurations:
        size += CONFIGURATION_BYTES
        if configuration.recipe is not None:
            more, tokens = configuration.recipe
            size += 8 * len(tokens)
            rows.update([(id(row), row.nbytes) for row in more])
    for state in states:
        size += MOVE_BYTES * (len(state.moves) + len(state.tokens))
        if state.mask is not None:
            rows[id(state.mask)] = state.mask.nbytes
    return size + sum(rows.values())
