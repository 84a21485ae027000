"""Token masks: one walk over grammar and trie together, assembled from shared rows.

The walk makes no automaton state: it follows cursors through places of the trie, and where a
cursor is done it goes on with the closure of the stack below.
"""

from __future__ import annotations

import numpy as np

from sglang_lite.constrained.cursors import Cursor
from sglang_lite.constrained.frames import Stack
from sglang_lite.constrained.pushdown import Configuration, Pushdown, State
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
    while work:
        place, cursor, below = work.pop()
        scan = cursor.scan(place)
        for row in scan.rows:
            rows[id(row)] = row
        tokens += scan.tokens
        for frames, after in scan.exits:
            stack = automaton.push(frames, below) if frames else below
            key = (after, stack)
            if key not in seen:
                seen.add(key)
                for inner, deeper in automaton.closure(stack).items:
                    work.append((after, inner, deeper))
    return tuple(rows.values()), tuple(tokens)


def state_mask(automaton: Pushdown, state: State, eos: tuple[int, ...]) -> Row:
    """The packed mask of a state, EOS where the text may end; may be a shared row."""
    rows: list[Row] = []
    tokens: list[int] = list(eos) if state.accepting else []
    for configuration in state.configurations:
        more_rows, more_tokens = recipe(automaton, configuration)
        rows += more_rows
        tokens += more_tokens
    return _assemble(rows, tokens, automaton.tables.words)


def _assemble(rows: list[Row], tokens: list[int], words: int) -> Row:
    if not rows:
        mask = np.zeros(words, np.int32)
    elif len(rows) == 1 and not tokens:
        return rows[0]
    else:
        mask = rows[0].copy() if len(rows) == 1 else rows[0] | rows[1]
        for row in rows[2:]:
            np.bitwise_or(mask, row, out=mask)
    view = memoryview(mask).cast("B")  # type: ignore[arg-type]
    if len(tokens) <= SHORT:
        # Several times faster than indexing numpy scalars.
        for token in tokens:
            view[token >> 3] |= 1 << (token & 7)
    else:
        ids = np.array(tokens, np.intp)
        np.bitwise_or.at(mask.view(np.uint8), ids >> 3, BITS[ids & 7])
    return mask
