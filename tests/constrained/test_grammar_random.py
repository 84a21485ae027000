"""Random grammars, recursive in every way, against the definition of a derivation.

The oracle knows nothing of automata: a rule's short texts are the least fixpoint of its body over
sets of texts, cut at a length.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sglang_lite.constrained import GrammarCompiler, GrammarMatcher
from sglang_lite.errors import InvalidGrammar
from tests.constrained.core_reference import assert_exact
from tests.constrained.core_vocabularies import byte_level

LONGEST = 5
LETTERS = "xy"
COMPILER = GrammarCompiler(byte_level())

Body = Any
"""("text", t) | ("rule", name) | ("seq" | "alt", bodies) | ("rep", body, minimum, maximum)"""

BODIES = st.recursive(
    st.one_of(
        st.sampled_from([("text", "x"), ("text", "y"), ("text", "xy"), ("seq", [])]),
        st.sampled_from([("rule", "a"), ("rule", "b"), ("rule", "c")]),
    ),
    lambda inner: st.one_of(
        st.tuples(st.just("seq"), st.lists(inner, min_size=2, max_size=3)),
        st.tuples(st.just("alt"), st.lists(inner, min_size=2, max_size=3)),
        st.tuples(st.just("rep"), inner, st.integers(0, 2), st.sampled_from([None, 0, 1, 2])).map(
            lambda r: (r[0], r[1], r[2], None if r[3] is None else r[2] + r[3])
        ),
    ),
    max_leaves=7,
)


def texts(body: Body, known: dict[str, frozenset[str]]) -> frozenset[str]:
    """The texts of ``body`` up to ``LONGEST``, if the rules have the texts ``known``."""
    kind = body[0]
    if kind == "text":
        return frozenset((body[1],))
    if kind == "rule":
        return known[body[1]]
    if kind == "alt":
        return frozenset().union(*(texts(part, known) for part in body[1]))
    if kind == "seq":
        found = frozenset(("",))
        for part in body[1]:
            found = joined(found, texts(part, known))
        return found
    _, part, minimum, maximum = body
    once = texts(part, known)
    power, found = frozenset(("",)), frozenset()
    for count in range(minimum + LONGEST + 1 if maximum is None else maximum + 1):
        if count >= minimum:
            found |= power
        power = joined(power, once)
    return found


def joined(left: frozenset[str], right: frozenset[str]) -> frozenset[str]:
    return frozenset(a + b for a in left for b in right if len(a) + len(b) <= LONGEST)


def oracle(rules: dict[str, Body]) -> frozenset[str]:
    known = dict.fromkeys(rules, frozenset())
    while True:
        new = {name: texts(body, known) for name, body in rules.items()}
        if new == known:
            return known["a"]
        known = new


def written(body: Body, syntax: str) -> str:
    kind = body[0]
    if kind == "text":
        return f'"{body[1]}"'
    if kind == "rule":
        return body[1]
    if kind == "seq":
        return f"({' '.join(written(part, syntax) for part in body[1])})"
    if kind == "alt":
        return f"({' | '.join(written(part, syntax) for part in body[1])})"
    _, part, minimum, maximum = body
    inner = f"({written(part, syntax)})"
    if maximum is None:
        return f"({inner}* {' '.join([inner] * minimum)})"
    return inner + (f"~{minimum}..{maximum}" if syntax == "lark" else f"{{{minimum},{maximum}}}")


def grammar(rules: dict[str, Body], syntax: str) -> str:
    arrow, start = (":", "start: a") if syntax == "lark" else (" ::=", "root ::= a")
    lines = [f"{name}{arrow} {written(body, syntax)}" for name, body in rules.items()]
    return "\n".join([start, *lines])


A, B, C = ("rule", "a"), ("rule", "b"), ("rule", "c")
X, Y = ("text", "x"), ("text", "y")


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(BODIES, BODIES, BODIES)
@example(("alt", [("seq", [A, A]), X]), X, X)
@example(("alt", [("seq", [B, A, Y]), X]), ("alt", [("seq", []), C]), ("alt", [("seq", [A]), Y]))
@example(("rep", ("rep", A, 0, 1), 2, 3), X, X)
@example(("alt", [("seq", [("rep", B, 0, 1), A, X]), Y]), ("seq", [C, C]), ("rep", A, 0, 1))
@example(("seq", [C, ("rep", A, 0, None)]), ("alt", [("seq", []), A]), ("alt", [X, B]))
@pytest.mark.parametrize("syntax", ["ebnf", "lark"])
def test_random_grammars(syntax: Any, a: Body, b: Body, c: Body) -> None:
    rules = {"a": a, "b": b, "c": c}
    text = grammar(rules, syntax)
    expected = oracle(rules)
    try:
        compiled = COMPILER.compile_grammar(text, syntax)
    except InvalidGrammar as error:
        if "can never end" not in error.reason:
            raise
        return
    for length in range(LONGEST + 1):
        for letters in itertools.product(LETTERS, repeat=length):
            word = "".join(letters)
            matcher = GrammarMatcher(compiled)
            accepted = matcher.accept_string(word) and matcher.is_completed()
            assert accepted == (word in expected), word
    assert_exact(compiled, texts=1, length=4)
