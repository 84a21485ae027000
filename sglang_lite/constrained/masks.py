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
from sglang_lite.constrained.tables import SHORT, Row
from sglang_lite.constrained.trie import Place

BITS = np.array([1 << bit for bit in range(8)], np.uint8)
"""The bits of a byte."""

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
    return _assemble(*_gathered(automaton, state, eos), automaton.tables.words)


def write_few(automaton: Pushdown, state: State, eos: tuple[int, ...], row: Row) -> bool:
    """Write the mask of a state to a contiguous ``row`` if it is a few ids; False if it is not."""
    rows, tokens = _gathered(automaton, state, eos)
    if rows or len(tokens) > SHORT:
        return False
    row.fill(0)
    _set_few(row, tokens)
    return True


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


def _assemble(rows: list[Row], tokens: list[int], words: int) -> Row:
    if not rows:
        mask = np.zeros(words, np.int32)
    elif len(rows) == 1 and not tokens:
        return rows[0]
    else:
        mask = rows[0].copy() if len(rows) == 1 else rows[0] | rows[1]
        for row in rows[2:]:
            np.bitwise_or(mask, row, out=mask)
    if len(tokens) <= SHORT:
        _set_few(mask, tokens)
    else:
        ids = np.array(tokens, np.intp)
        np.bitwise_or.at(mask.view(np.uint8), ids >> 3, BITS[ids & 7])
    return mask


def _set_few(mask: Row, tokens: list[int]) -> None:
    """Set the bits of ``tokens``; several times faster than indexing numpy scalars."""
    view = memoryview(mask).cast("B")  # type: ignore[arg-type]
    for token in tokens:
        view[token >> 3] |= 1 << (token & 7)
