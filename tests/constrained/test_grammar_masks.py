"""Grammars and choices through the whole compiler: masks, ends of texts, depth, random texts."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

import numpy as np
import pytest

from sglang_lite.constrained import GrammarCompiler, GrammarMatcher, allocate_token_bitmask
from sglang_lite.errors import ConstraintError
from tests.constrained import core_vocabularies
from tests.constrained.core_reference import allowed_by_mask, assert_exact
from tests.constrained.test_grammar_ebnf import CASES as EBNF
from tests.constrained.test_grammar_lark import SMALL, TEXTS, lark_accepts, lark_parser

COMPILERS = {name: GrammarCompiler(make()) for name, make in core_vocabularies.ALL.items()}
GRAMMARS = {
    **{f"lark {name}": ("lark", case[0]) for name, case in {**TEXTS, **SMALL}.items()},
    **{f"ebnf {name}": ("ebnf", case[0]) for name, case in EBNF.items()},
}


@pytest.mark.parametrize("vocabulary", COMPILERS)
@pytest.mark.parametrize("name", GRAMMARS)
def test_masks_equal_byte_steps(name: str, vocabulary: str) -> None:
    syntax, text = GRAMMARS[name]
    grammar = COMPILERS[vocabulary].compile_grammar(text, syntax)  # type: ignore[arg-type]
    assert assert_exact(grammar, texts=6, length=10) > 1


@pytest.mark.parametrize("name", [*TEXTS, *EBNF])
def test_matcher_accepts_what_the_grammar_says(name: str) -> None:
    for syntax, cases in (("lark", TEXTS), ("ebnf", EBNF)):
        if name not in cases:
            continue
        text, good, bad = cases[name]
        grammar = COMPILERS["byte_level"].compile_grammar(text, syntax)  # type: ignore[arg-type]
        for accepted in good:
            matcher = GrammarMatcher(grammar)
            assert matcher.accept_string(accepted), accepted
            assert matcher.is_completed()
        for refused in bad:
            matcher = GrammarMatcher(grammar)
            assert not (matcher.accept_string(refused) and matcher.is_completed()), refused


@pytest.mark.parametrize("name", ["arithmetic", "json", "sql"])
def test_texts_drawn_from_masks_are_in_lark_s_language(name: str) -> None:
    text = TEXTS[name][0]
    grammar = COMPILERS["byte_fallback"].compile_grammar(text, "lark")
    parser = lark_parser(text)
    rng = random.Random(name)
    finished = 0
    for _ in range(60):
        matcher = GrammarMatcher(grammar)
        data = b""
        while len(data) < 40:
            allowed = sorted(allowed_by_mask(grammar, matcher._state))
            ends = [token for token in allowed if token in grammar.vocabulary.eos_token_ids]
            token = ends[0] if ends and rng.random() < 0.5 else rng.choice(allowed)
            assert matcher.accept_token(token)
            if token in ends:
                break
            data += grammar.vocabulary.token_bytes[token]
        if matcher.is_terminated() and data:
            finished += 1
            assert lark_accepts(parser, data.decode()), data
    assert finished >= 3


def test_choices_end_exactly_where_one_is_complete() -> None:
    grammar = COMPILERS["byte_level"].compile_choice(["1", "10", "日本", "日"])
    vocabulary = grammar.vocabulary
    end = vocabulary.eos_token_ids[0]
    for text, may_end in [("", False), ("1", True), ("10", True), ("日", True), ("日本", True)]:
        matcher = GrammarMatcher(grammar)
        assert matcher.accept_string(text)
        bitmask = allocate_token_bitmask(1, vocabulary.size)
        matcher.fill_next_token_bitmask(bitmask)
        allowed = set(np.flatnonzero(np.unpackbits(bitmask.view(np.uint8), bitorder="little")))
        assert (end in allowed) == may_end
        assert (allowed == {end}) == (text in ("10", "日本"))
    assert assert_exact(grammar) > 3
    assert not GrammarMatcher(grammar).accept_string("100")


def test_thousands_of_choices() -> None:
    choices = [f"item number {i * i}" for i in range(5_000)]
    grammar = COMPILERS["byte_level"].compile_choice(choices)
    matcher = GrammarMatcher(grammar)
    assert matcher.find_jump_forward_string() == "item number "
    assert matcher.accept_string(choices[4_321])
    assert matcher.is_completed()
    assert not matcher.accept_string("0123")


def test_deep_recursion() -> None:
    grammar = COMPILERS["byte_level"].compile_grammar('root ::= "[" root? "]" | "(" root ")" "!"')
    matcher = GrammarMatcher(grammar)
    depth = 3_000
    assert matcher.accept_string("[(" * depth)
    assert matcher.accept_string("[]" + ")!]" * depth)
    assert matcher.is_completed()
    assert not matcher.accept_string("]")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('root ::= "i" root | "i" root "e" root | "x"', "i" * 200 + "x" + "ex" * 100),
        (
            'root ::= "(" root ")" | "(" root "]" | "(" root root ")" | "x"',
            "(" * 99 + "x" + ")" * 99,
        ),
        (
            'root ::= root root root | root root | "a" root "b" | ""',
            "ab" * 99 + "a" * 50 + "b" * 50,
        ),
        ('root ::= a\na ::= a b a | b\nb ::= "a" | c?\nc ::= "b" root', "ab" * 60),
    ],
)
def test_ambiguity_does_not_double_the_stacks(text: str, word: str) -> None:
    grammar = COMPILERS["byte_level"].compile_grammar(text)
    matcher = GrammarMatcher(grammar)
    assert matcher.accept_string(word)
    assert matcher.is_completed()
    assert grammar.automaton.state_count < 3 * len(word)


def test_right_recursion_keeps_the_stack_flat() -> None:
    """One state suffices after any number of items."""
    for text in ('root ::= "a" root | "a"', 'root ::= root "a" | "a"', 'root ::= "a"+'):
        grammar = COMPILERS["byte_level"].compile_grammar(text)
        matcher = GrammarMatcher(grammar)
        assert matcher.accept_string("a" * 5_000)
        assert grammar.automaton.state_count < 12


def test_forced_text_is_found() -> None:
    grammar = COMPILERS["byte_level"].compile_grammar('root ::= "answer: " ("yes" | "no") "."')
    matcher = GrammarMatcher(grammar)
    assert matcher.find_jump_forward_string() == "answer: "
    assert matcher.accept_string("answer: y")
    assert matcher.find_jump_forward_string() == "es."


def test_errors_reach_the_caller_and_nothing_is_cached() -> None:
    compiler = COMPILERS["byte_level"]
    for text, syntax in [("root ::= a", "ebnf"), ("start: a", "lark"), ("root ::= root", "ebnf")]:
        for _ in range(2):
            with pytest.raises(ConstraintError):
                compiler.compile_grammar(text, syntax)  # type: ignore[arg-type]


def test_embedded_json_keeps_its_property_order() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}, "required": ["b", "a"]}
    grammar = COMPILERS["byte_level"].compile_grammar(
        f'start: "x" %json {json.dumps(schema)} "y"', "lark"
    )
    matcher = GrammarMatcher(grammar)
    assert matcher.accept_string('x{"b": 1, "a": [2]}y')
    assert matcher.is_completed()
    assert not GrammarMatcher(grammar).accept_string('x{"a"')


@pytest.mark.parametrize(
    ("syntax", "text", "word"),
    [
        ("ebnf", 'root ::= ([a-c]* "x"?)+ "."', "abxc."),
        ("lark", "start: /'.*?'/ start | \"x\"", "'a'x"),
        ("lark", 'start: %regex {"substring_words": "a b c"} "!"', "b c!"),
    ],
)
def test_compiled_grammars_pickle(syntax: Any, text: str, word: str) -> None:
    grammar = pickle.loads(pickle.dumps(COMPILERS["byte_level"].compile_grammar(text, syntax)))
    matcher = GrammarMatcher(grammar)
    assert matcher.accept_string(word)
    assert matcher.is_completed()
