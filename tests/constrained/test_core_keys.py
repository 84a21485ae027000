"""Several bytes of a key in one leap lead where they lead one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_lite.constrained import CompiledGrammar, ir
from sglang_lite.constrained.json_string import json_key
from sglang_lite.constrained.keys import KeyCursor
from tests.constrained.core_vocabularies import byte_level

NAMES = st.lists(st.text("ab\u00e9", min_size=0, max_size=6), min_size=1, max_size=6, unique=True)


def grammar_of(names: list[str], *, others: bool, minimum: int = 0) -> CompiledGrammar:
    members = [ir.Member(f'"{name}"'.encode(), ir.literal("1")) for name in names]
    extras = [ir.Extra(json_key(), ir.literal("2"))] if others else []
    node = ir.object_(members, extras, order="any", minimum=minimum)
    return CompiledGrammar(byte_level(), ir.Language(node))


@settings(max_examples=150, deadline=None)
@given(NAMES, st.text("ab\u00e9", max_size=8), st.booleans(), st.integers(0, 3), st.data())
def test_leaps_are_steps(
    names: list[str], other: str, others: bool, minimum: int, data: st.DataObject
) -> None:
    if not others:
        minimum = min(minimum, len(names))
    grammar = grammar_of(names, others=others, minimum=minimum)
    automaton = grammar.automaton
    name = data.draw(st.sampled_from([*names, other]))
    text = f'{{"{name}":1,"{other}":2'.encode()
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    state = automaton.start
    for byte in text[:start]:
        following = automaton.step(state, byte)
        if following is None:
            return
        state = following
    leapt = automaton.token(state, -1, text[start:end])
    stepped = state
    for byte in text[start:end]:
        following = automaton.step(stepped, byte)
        if following is None:
            assert leapt is None
            return
        stepped = following
    assert leapt is stepped


@pytest.mark.parametrize("others", [False, True])
def test_a_leap_stops_before_the_end_of_a_name(others: bool) -> None:
    automaton = grammar_of(["abab", "abb"], others=others).automaton
    state = automaton.step(automaton.start, ord("{"))
    assert state is not None
    [configuration] = [c for c in state.configurations if isinstance(c.cursor, KeyCursor)]
    for text, read in ((b'"abab":', 5), (b'"abb"', 4), (b'"abx', 3), (b'"x', 0), (b'"', 0)):
        cursor, after = configuration.cursor.leap(text, 0)  # type: ignore[attr-defined]
        assert after == read, text
        assert isinstance(cursor, KeyCursor)
        assert cursor.names.depth == read
