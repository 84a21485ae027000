"""Token masks: one walk over grammar and trie together, assembled from shared rows.

The walk makes no automaton state: it follows cursors through places of the trie, and where a
cursor is done it goes on with the closure of the stack below.
"""

from __future__ import annotations

import numpy as np

from sglang_lite.constrained import budget
from sglang_lite.constrained.cursors import Cursor
from sglang_lite.constrained.frames import Stack
from sglang_lite.constrained.pushdown import Pushdown
from sglang_lite.constrained.states import Configuration, State
from sglang_lite.constrained.tables import Row
from sglang_lite.constrained.trie import Place, Trie

BITS = np.array([1 << bit for bit in range(8)], np.uint8)
"""The bits of a byte."""

MANY = 48
"""From so many ids on numpy sets the bits."""

DIRECT = 12
"""A walk with more exits than this goes on in waves."""

Recipe = tuple[tuple[Row, ...], tuple[int, ...]]
"""A set of tokens as a union of shared rows and single ids."""


def recipe(automaton: Pushdown, configuration: Configuration) -> Recipe:
    """The tokens that a configuration allows; memoised on it."""
    found = configuration.recipe
    if found is None:
        found = configuration.recipe = _walk(automaton, configuration)
    return found


Step = tuple[Place, Cursor, Stack]
"""A cursor at a place of the trie, and the stack below its leaf."""


def _walk(automaton: Pushdown, configuration: Configuration) -> Recipe:
    rows: dict[int, Row] = {}
    tokens: list[int] = []
    seen: set[tuple[Place, Stack]] = set()
    root = automaton.tables.trie.root
    work: list[Step] = [(root, configuration.cursor, configuration.below)]
    push, closure = automaton.push, automaton.closure
    while work:
        if len(seen) > DIRECT:
            _walk_in_waves(automaton, work, rows, tokens)
            break
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


def _walk_in_waves(
    automaton: Pushdown, wave: list[Step], rows: dict[int, Row], tokens: list[int]
) -> None:
    """The rest of an ambiguous walk: each wave is a leaf further.

    Places that come to one stack are united, as are stacks below one cursor at a place, so that
    what many ways lead to is read once.  A walk that grows all the same is given up, which leaves
    long tokens out: the first step of all had the single bytes.
    """
    seen: dict[Stack, Place] = {}
    trie, steps = automaton.tables.trie, 0
    while wave:
        ahead: dict[Stack, list[Place]] = {}
        for place, cursor, below in wave:
            scan = cursor.scan(place)
            rows.update([(id(row), row) for row in scan.rows])
            tokens += scan.tokens
            for frames, after in scan.exits:
                ahead.setdefault(automaton.push(frames, below), []).append(after)
        steps += len(wave)
        if steps > budget.WALK_WORK and automaton.meter.bounded:
            break
        belows: dict[tuple[Place, Cursor], list[Stack]] = {}
        for stack, places in ahead.items():
            fresh = _unite(trie, seen, stack, places)
            if fresh is not None:
                for inner, deeper in automaton.closure(stack).items:
                    belows.setdefault((fresh, inner), []).append(deeper)
        wave = [(*key, automaton.fork(stacks)) for key, stacks in belows.items()]


def _unite(trie: Trie, seen: dict[Stack, Place], stack: Stack, places: list[Place]) -> Place | None:
    """The nodes of ``places`` at which ``stack`` was not met before; they count as seen now."""
    fresh: Place | None = trie.union(places)
    before = seen.get(stack)
    if before is not None and fresh is not None:
        fresh = trie.beyond(fresh, before)
    if fresh is not None:
        seen[stack] = fresh if before is None else trie.union([before, fresh])
    return fresh


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
