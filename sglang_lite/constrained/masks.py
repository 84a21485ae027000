"""Token masks: one walk over grammar and trie together, assembled from shared rows.

The walk makes no automaton state: it follows cursors through places of the trie, and where a
cursor is done it goes on with the closure of the stack below.
"""

from __future__ import annotations

import numpy as np

from sglang_lite.constrained.cursors import Cursor
from sglang_lite.constrained.frames import Stack
from sglang_lite.constrained.pushdown import Pushdown
from sglang_lite.constrained.states import Configuration, State
from sglang_lite.constrained.tables import Row
from sglang_lite.constrained.trie import Place

BITS = np.array([1 << bit for bit in range(8)], np.uint8)
"""The bits of a byte."""

MANY = 48
"""From so many ids on numpy sets the bits."""

Recipe = tuple[tuple[Row, ...], tuple[int, ...]]
"""A set of tokens as a union of shared rows and single ids."""


def recipe(automaton: Pushdown, configuration: Configuration) -> Recipe:
    """The tokens that a configuration allows; memoised on it."""
    found = configuration.recipe
    if found is None:
        found = configuration.recipe = _walk(automaton, configuration)
    return found


def _walk(automaton: Pushdown, configuration: Configuration) -> Recipe:
    rows: dict[int, Row] = {}
    tokens: list[int] = []
    seen: set[tuple[Place, Stack]] = set()
    root = automaton.tables.trie.root
    work: list[tuple[Place, Cursor, Stack]] = [(root, configuration.cursor, configuration.below)]
    push, closure = automaton.push, automaton.closure
    while work:
        place, cursor, below = work.pop()
        more_rows, more_tokens, exits = cursor.scans.get(place) or cursor.scan(place)
        for row in more_rows:
            rows[id(row)] = row
        tokens += more_tokens
        for frames, after in exits:
            stack = push(frames, below) if frames else below
            key = (after, stack)
            if key not in seen:
                seen.add(key)
                for inner, deeper in (stack.closure or closure(stack)).items:
                    work.append((after, inner, deeper))
    return tuple(rows.values()), tuple(tokens)


def state_mask(automaton: Pushdown, state: State, eos: tuple[int, ...]) -> Row:
    """The packed mask of a state, EOS where the text may end; may be a shared row."""
    return _packed(automaton, *_gathered(automaton, state, eos))


def write_mask(automaton: Pushdown, state: State, eos: tuple[int, ...], row: Row) -> None:
    """Write the mask of a state to a contiguous ``row``; keep it where texts tend to stay."""
    rows, tokens = _gathered(automaton, state, eos)
    if rows and any(c.cursor.stays for c in state.configurations):
        state.mask = row[:] = _packed(automaton, rows, tokens)
    else:
        _assemble(rows, tokens, row)


def _packed(automaton: Pushdown, rows: list[Row], tokens: list[int]) -> Row:
    if len(rows) == 1 and not tokens:
        return rows[0]
    mask = np.empty(automaton.tables.words, np.int32)
    _assemble(rows, tokens, mask)
    return mask


def _gathered(
    automaton: Pushdown, state: State, eos: tuple[int, ...]
) -> tuple[list[Row], list[int]]:
    rows: list[Row] = []
    tokens: list[int] = list(eos) if state.accepting else []
    for configuration in state.configurations:
        more_rows, more_tokens = recipe(automaton, configuration)
        rows += more_rows
        tokens += more_tokens
    return rows, tokens


def _assemble(rows: list[Row], tokens: list[int], mask: Row) -> None:
    """Write the union of ``rows`` and ``tokens`` to ``mask``."""
    if not rows:
        mask.fill(0)
    elif len(rows) == 1:
        mask[:] = rows[0]
    else:
        np.bitwise_or(rows[0], rows[1], out=mask)
        for row in rows[2:]:
            np.bitwise_or(mask, row, out=mask)
    if len(tokens) <= MANY:
        # Several times faster than indexing numpy scalars.
        view = memoryview(mask).cast("B")  # type: ignore[arg-type]
        for token in tokens:
            view[token >> 3] |= 1 << (token & 7)
    else:
        ids = np.array(tokens, np.intp)
        np.bitwise_or.at(mask.view(np.uint8), ids >> 3, BITS[ids & 7])
