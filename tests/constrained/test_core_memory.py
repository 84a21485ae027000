"""What a server keeps of constraints that nobody uses any more."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sglang_lite.constrained import GrammarCompiler, GrammarMatcher, allocate_token_bitmask, ir
from sglang_lite.constrained.byte_dfa import text_dfa
from sglang_lite.constrained.compiled import CompiledGrammar, Limits
from sglang_lite.constrained.json_schema import lower_json_schema
from sglang_lite.constrained.regex import full_match, lower_regex
from sglang_lite.constrained.writable import TrimmedDFA, writable
from sglang_lite.constraint import JsonSchema
from sglang_lite.errors import GrammarTooComplex, InvalidRegex
from tests.constrained.core_vocabularies import byte_level

BUDGET = 1 << 20


def masks(grammar: CompiledGrammar, text: str) -> list[np.ndarray]:
    """The masks before each byte of ``text``."""
    bitmask = allocate_token_bitmask(1, grammar.vocabulary.size)
    matcher, found = GrammarMatcher(grammar), []
    for char in text:
        matcher.fill_next_token_bitmask(bitmask)
        found.append(bitmask[0].copy())
        assert matcher.accept_string(char)
    return found


def test_tables_of_dropped_patterns_are_given_back() -> None:
    vocabulary = byte_level()
    tables = vocabulary.tables
    tables.budget_bytes = BUDGET
    compiler = GrammarCompiler(vocabulary, Limits(cache_bytes=1))
    first = weakref.ref(tables.terminal(text_dfa(full_match("[a-z]+x0"), "utf8", False)))
    assert first() is not None
    for number in range(300):
        masks(compiler.compile_regex(f"[a-z]+x{number}"), f"abcx{number}")
        assert 0 < tables.size_bytes <= BUDGET
    gc.collect()
    assert first() is None


def test_a_grammar_whose_tables_were_emptied_still_has_its_masks() -> None:
    vocabulary = byte_level()
    compiler = GrammarCompiler(vocabulary, Limits(grammar_bytes=1))
    kept = compiler.compile_regex(r'"(?:[a-c]{2,9}|\d+)"')
    expected = masks(kept, '"abc"')
    vocabulary.tables.budget_bytes = BUDGET
    for number in range(100):
        masks(compiler.compile_regex(f"[a-z]+y{number}"), "abcy")
    kept.automaton.clear()
    np.testing.assert_array_equal(masks(kept, '"abc"'), expected)


def test_threads_share_tables_that_are_emptied_all_the_time() -> None:
    patterns = [rf"[a-z]{{1,{n}}}\d+" for n in range(1, 9)]
    plain = GrammarCompiler(byte_level())
    expected = [masks(plain.compile_regex(pattern), "a12") for pattern in patterns]
    vocabulary = byte_level()
    vocabulary.tables.budget_bytes = 1
    compiler = GrammarCompiler(vocabulary, Limits(cache_bytes=1))

    def work(number: int) -> None:
        for at in range(40):
            index = (number + at) % len(patterns)
            found = masks(compiler.compile_regex(patterns[index]), "a12")
            np.testing.assert_array_equal(found, expected[index])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert vocabulary.tables.size_bytes <= 1


def test_a_search_for_writable_texts_stops_early() -> None:
    dfa = text_dfa(full_match("(a{1000}){1000}b"), "utf8", False)
    with pytest.raises(GrammarTooComplex, match="more than 20000 states"):
        TrimmedDFA(dfa, frozenset({4}))
    small = TrimmedDFA(text_dfa(full_match("a+b|\x04|c\x04"), "utf8", False), frozenset({4}))
    assert [byte for byte in range(256) if small.step(small.start, byte) >= 0] == [ord("a")]


def test_a_language_without_the_bytes_that_are_lacking_stays_as_it_is() -> None:
    absent = frozenset({0x04, 0xF3})
    spec = JsonSchema('{"properties": {"a": {"type": "integer"}, "b": {"maxLength": 9}}}')
    language = lower_json_schema(spec)
    assert writable(language, absent) is language
    controls = lower_regex("[a-z]+\\x04?")
    trimmed = writable(controls, absent)
    assert trimmed is not controls
    assert isinstance(trimmed.root, ir.Terminal)
    assert trimmed.root.dfa.row(trimmed.root.dfa.step(trimmed.root.dfa.start, ord("a")))[4] < 0


def test_a_refused_constraint_leaves_nothing_behind():
    compiler = GrammarCompiler(byte_level())
    for pattern in ("(a)\\1", "[", "(?<name"):
        with pytest.raises(InvalidRegex):
            compiler.compile_regex(pattern)
    assert not compiler._busy
    assert not compiler._cache


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": r"^(?:\S+\s+){0,31}\S+$", "maxLength": 710},
        {"type": "string", "pattern": "[0-9a-f]{23}"},
        {
            "type": "object",
            "properties": {f"name{n}": {"type": "integer"} for n in range(40)},
            "patternProperties": {"^[a-c]+-[0-9a-f]+$": {"type": "null"}},
        },
    ],
)
def test_the_memory_of_a_grammar_is_what_it_says(schema: dict[str, object]) -> None:
    vocabulary = byte_level()
    # The tables have a budget of their own: what they hold must not be weighed here.
    vocabulary.tables.budget_bytes = 1
    compiler = GrammarCompiler(vocabulary)
    masks(compiler.compile_regex('"[a-z ]*"'), '"warm up"')
    text = '"' + "what 0123456789abcdef is " * 4
    if schema["type"] == "object":
        text = "{" + ",".join(f'"name{n}": {n}' for n in range(40)) + ', "cab-0f": null}'
    gc.collect()
    tracemalloc.start()
    grammar = compiler.compile_json_schema(schema)
    masks(grammar, text)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    ratio = grammar.memory_size_bytes / held
    assert 0.6 < ratio < 2, ratio  # what other tests left in caches is not held by this one


def test_masks_made_in_advance_are_the_same_and_are_found() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "null"}}}
    text = '{"a": "yy", "b": null}'
    plain = masks(GrammarCompiler(byte_level()).compile_json_schema(schema), text)
    grammar = GrammarCompiler(byte_level()).compile_json_schema(schema)
    matcher, found = GrammarMatcher(grammar), []
    ready = 0
    for char in text:
        matcher.prefetch(10.0)
        found.append(matcher.next_token_mask.copy())
        assert matcher.accept_string(char)
        ready += matcher._state.mask is not None
    np.testing.assert_array_equal(found, plain)
    assert ready > len(text) // 2
    assert matcher.accept_token(grammar.vocabulary.eos_token_ids[0])
    assert matcher.prefetch(1.0) == 0


def test_the_punctuation_that_grammars_share_counts_as_used_by_each() -> None:
    vocabulary = byte_level()
    tables, compiler = vocabulary.tables, GrammarCompiler(vocabulary)
    schema = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}
    masks(compiler.compile_json_schema(schema), '{"a": 1}')
    (layout,) = tables.layouts.values()
    shared = {frame.cursor.table for frames in layout for frame in frames}  # type: ignore[attr-defined]
    masks(compiler.compile_regex("[a-c]+|x{3,9}"), "abc")
    newest = list(tables._weights)[-1]
    assert newest not in shared
    compiler.compile_json_schema({**schema, "minProperties": 1})
    assert shared <= set(list(tables._weights)[list(tables._weights).index(newest) + 1 :])
