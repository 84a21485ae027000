"""The constructors of the intermediate representation, and the arithmetic of presence."""

from __future__ import annotations

import itertools
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_lite.constrained import ir
from sglang_lite.constrained.fused import FusedDFA, fuse
from sglang_lite.constrained.json_string import json_key, json_string, whitespace
from sglang_lite.constrained.presence import Presence, capacity
from sglang_lite.errors import GrammarTooComplex

A, B = ir.literal("a"), ir.literal("b")


def test_constructors_simplify() -> None:
    assert ir.literal("") is ir.EMPTY
    assert ir.sequence() is ir.EMPTY
    assert ir.sequence(A, ir.EMPTY, B) == ir.literal("ab")
    assert ir.sequence(A, ir.NEVER) is ir.NEVER
    assert ir.union() is ir.NEVER
    assert ir.union(A, ir.NEVER) == A
    assert ir.union(A, B, A) == ir.literals(["b", "a"])
    assert ir.literals([]) is ir.NEVER
    assert ir.literals(["", "a"]) == ir.union(ir.EMPTY, A) == ir.optional(A)
    assert ir.repeat(A, 2, 1) is ir.NEVER
    assert ir.repeat(A, 0, 0) is ir.EMPTY
    assert ir.repeat(A, 1, 1) == A
    assert ir.repeat(ir.NEVER, 0, 5) is ir.EMPTY
    assert ir.repeat(ir.NEVER, 1, None, head=[A]) == A
    assert ir.counted(whitespace(1), 3, 2) is ir.NEVER
    assert ir.counted(whitespace(1), 0, 0) == ir.literal('""')


def test_nodes_are_values() -> None:
    node = ir.object_([ir.Member(b'"a"', ir.terminal(json_string()), True)], order="any")
    again = pickle.loads(pickle.dumps(node))
    assert again == node
    assert hash(again) == hash(node)
    assert node != ir.object_([ir.Member(b'"a"', ir.terminal(json_string()), False)], order="any")
    assert ir.Sequence((A, B)) != ir.Union((A, B))


def test_objects_that_cannot_be_are_never() -> None:
    one, two = ir.Member(b'"a"', A), ir.Member(b'"b"', B)
    assert ir.object_([one._replace(required=True, value=ir.NEVER)]) is ir.NEVER
    assert ir.object_([one], minimum=2) is ir.NEVER
    assert ir.object_([one, two], maximum=1, clauses=[ir.Clause((0,)), ir.Clause((1,))]) is ir.NEVER
    both = [ir.Clause((0,)), ir.Clause((1,), (0,)), ir.Clause((), (1,))]
    assert ir.object_([one, two], clauses=both) is ir.NEVER
    assert ir.object_([one, two], clauses=both[:2]) is not ir.NEVER


def test_distinct_other_keys_are_counted() -> None:
    keys = ir.terminal(json_key())
    assert isinstance(keys, ir.Terminal)
    extra = ir.Extra(keys.dfa, A)
    assert capacity([], [extra], 1000) is None
    gap = ir.Extra(whitespace(1), A)
    # "", and each of the four whitespace characters.
    assert capacity([], [gap], 5) is None
    assert capacity([], [gap], 6) == 5
    assert capacity([ir.Member(b" ", A)], [gap], 6) == 4
    assert ir.object_([], [gap], minimum=6) is ir.NEVER


clauses = st.lists(
    st.builds(
        ir.Clause,
        st.lists(st.integers(0, 4), max_size=2).map(tuple),
        st.lists(st.integers(0, 4), max_size=2).map(tuple),
    ),
    max_size=5,
)


@settings(max_examples=300, deadline=None)
@given(clauses, st.integers(0, 4), st.integers(0, 5), st.integers(0, 31), st.integers(0, 31))
def test_presence_agrees_with_all_subsets(
    rules: list[ir.Clause], minimum: int, maximum: int, seen: int, open_: int
) -> None:
    members = [ir.Member(f'"{i}"'.encode(), A if i != 3 else ir.NEVER, i == 2) for i in range(5)]
    presence = Presence(members, [], minimum, maximum, rules)
    seen &= ~(1 << 3)
    open_ &= ~seen

    def holds(present: int) -> bool:
        if present >> 3 & 1 or not present >> 2 & 1:
            return False
        if not minimum <= present.bit_count() <= maximum:
            return False
        return all(
            any(present >> i & 1 for i in rule.present)
            or any(not present >> i & 1 for i in rule.absent)
            for rule in rules
        )

    added = [i for i in range(5) if open_ >> i & 1]
    subsets = itertools.chain.from_iterable(
        itertools.combinations(added, size) for size in range(len(added) + 1)
    )
    expected = any(holds(seen | sum(1 << i for i in subset)) for subset in subsets)
    assert presence.completable(seen, open_, seen.bit_count()) == expected


def test_hard_presence_rules_are_refused_with_the_figure() -> None:
    members = [ir.Member(f'"{i}"'.encode(), A) for i in range(72)]
    # Nine pigeons without nine holes: one of each row, no two in a column.
    rules = [ir.Clause(tuple(range(8 * i, 8 * i + 8))) for i in range(9)]
    rules += [
        ir.Clause((), (8 * i + hole, 8 * j + hole))
        for hole in range(8)
        for i in range(9)
        for j in range(i)
    ]
    with pytest.raises(GrammarTooComplex, match="5000 cases"):
        ir.object_(members, clauses=rules)


def test_long_presence_rules_are_refused_with_the_figure() -> None:
    members = [ir.Member(f'"{i}"'.encode(), A) for i in range(601)]
    chain = [ir.Clause((i + 1,), (i,)) for i in range(600)]
    assert ir.object_(members, clauses=chain[:400]) is not ir.NEVER
    with pytest.raises(GrammarTooComplex, match="600 presence rules over 601 members"):
        ir.object_(members, clauses=chain)


def test_punctuation_is_fused_with_its_whitespace() -> None:
    gap = ir.terminal(whitespace(2))
    comma = fuse((gap, ir.literal(","), gap))
    assert len(comma) == 1
    assert isinstance(comma[0], ir.Terminal)
    dfa = comma[0].dfa
    assert isinstance(dfa, FusedDFA)

    def accepts(text: bytes) -> bool:
        state = dfa.start
        for byte in text:
            state = dfa.step(state, byte)
            if state < 0:
                return False
        return dfa.accepts(state)

    texts = (b" \n,", b",", b"  ,\t\t")
    assert [accepts(text) for text in texts] == [True, True, True]
    assert [accepts(text) for text in (b"", b" ", b"   ,", b",   ", b",,")] == [False] * 5
    kept = fuse((ir.literal("["), ir.terminal(json_string()), gap, ir.literal("]")))
    assert [type(node).__name__ for node in kept] == ["Literal", "Terminal", "Terminal"]
    assert pickle.loads(pickle.dumps(dfa)) is dfa
