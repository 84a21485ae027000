"""The slow, obvious mask: every token, byte by byte, with the byte automaton."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from sglang_lite.constrained import CompiledGrammar
from sglang_lite.constrained.states import State


def allowed_by_steps(grammar: CompiledGrammar, state: State) -> set[int]:
    """The ids that the byte automaton lets through, one token after the other."""
    allowed = set(grammar.vocabulary.eos_token_ids) if state.accepting else set()
    for token, text in enumerate(grammar.vocabulary.token_bytes):
        if not text:
            continue
        here: State | None = state
        for byte in text:
            here = grammar.automaton.step(here, byte)
            if here is None:
                break
        assert here is grammar.automaton.token(state, token, text), "steps and token disagree"
        if here is not None:
            allowed.add(token)
    return allowed


def allowed_by_mask(grammar: CompiledGrammar, state: State) -> set[int]:
    """The ids whose bits are set, tail bits included, however the mask is asked for."""
    filled = np.full(grammar.vocabulary.tables.words, -1, np.int32)
    grammar.fill(state, filled)
    mask = grammar.mask(state)
    assert (filled == mask).all(), "a mask is another one when it is written"
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def walk(grammar: CompiledGrammar, seed: int, texts: int, length: int) -> Iterator[State]:
    """Different states along random texts, tokens drawn from the masks, shorter ones rarer."""
    draw = random.Random(seed)
    seen: set[State] = set()
    vocabulary = grammar.vocabulary
    for _ in range(texts):
        state: State | None = grammar.automaton.start
        for _ in range(length):
            assert state is not None
            if state not in seen:
                seen.add(state)
                yield state
            tokens = sorted(allowed_by_mask(grammar, state) - set(vocabulary.eos_token_ids))
            if not tokens:
                break
            kinds: dict[int, list[int]] = {}
            for token in tokens:
                kinds.setdefault(vocabulary.token_bytes[token][0], []).append(token)
            # Draw the first byte first: structure is rare among tokens, but not here.
            first = draw.choice(sorted(kinds))
            state = grammar.advance(state, draw.choice(kinds[first]))


def assert_exact(grammar: CompiledGrammar, seed: int = 0, texts: int = 12, length: int = 14) -> int:
    """Compare both on all states of some random texts; the number of states."""
    count = 0
    for state in walk(grammar, seed, texts, length):
        count += 1
        _compare(grammar, state)
    return count


def assert_exact_along(grammar: CompiledGrammar, text: str) -> int:
    """Compare both after each token of a valid text; the number of its tokens."""
    assert grammar.vocabulary.encode is not None
    state: State | None = grammar.automaton.start
    tokens = grammar.vocabulary.encode(text)
    for token in tokens:
        assert state is not None
        _compare(grammar, state)
        state = grammar.advance(state, token)
    assert state is not None
    _compare(grammar, state)
    assert state.accepting
    return len(tokens)


def _compare(grammar: CompiledGrammar, state: State) -> None:
    mask, steps = allowed_by_mask(grammar, state), allowed_by_steps(grammar, state)
    assert mask, "an empty mask"
    if mask != steps:
        text = grammar.vocabulary.token_bytes
        over = sorted(text[t] for t in mask - steps if t < len(text))[:10]
        under = sorted(text[t] for t in steps - mask)[:10]
        shown = [c.cursor.describe() for c in state.configurations]
        raise AssertionError(f"mask only: {over}; steps only: {under}; state: {shown}")
