from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest

from sglang_lite.constrained import (
    CompiledGrammar,
    GrammarCompiler,
    GrammarMatcher,
    Limits,
    Vocabulary,
    allocate_token_bitmask,
    batch_fill_next_token_bitmask,
    ir,
)
from sglang_lite.constraint import Choice, Regex
from sglang_lite.errors import (
    ConstraintError,
    GrammarTooComplex,
    InvalidGrammar,
    InvalidRequest,
    UnsatisfiableSchema,
)
from tests.constrained.core_reference import allowed_by_mask, assert_exact
from tests.constrained.core_vocabularies import byte_fallback, byte_level, without_some_bytes

VOCABULARY = byte_level()
COMPILER = GrammarCompiler(VOCABULARY)
EOS = VOCABULARY.eos_token_ids[0]


def token(text: str | bytes) -> int:
    return VOCABULARY.token_bytes.index(text.encode() if isinstance(text, str) else text)


def allowed(matcher: GrammarMatcher) -> set[bytes]:
    bitmask = allocate_token_bitmask(1, matcher.compiled.vocabulary.size)
    matcher.fill_next_token_bitmask(bitmask)
    bits = np.unpackbits(bitmask[0].view(np.uint8), bitorder="little")
    vocabulary = matcher.compiled.vocabulary
    return {
        b"<eos>" if i in vocabulary.eos_token_ids else vocabulary.token_bytes[i]
        for i in np.flatnonzero(bits).tolist()
    }


def test_a_choice_from_start_to_end() -> None:
    matcher = GrammarMatcher(COMPILER.compile_choice(["name", "age"]))
    assert allowed(matcher) == {b"n", b"na", b"name", b"a", b"age"}
    assert not matcher.is_completed()
    assert matcher.accept_token(token("na"))
    assert allowed(matcher) == {b"m", b"me"}
    assert not matcher.accept_token(token("age"))
    assert allowed(matcher) == {b"m", b"me"}, "a refused token changes nothing"
    assert matcher.accept_token(token("me"))
    assert matcher.is_completed()
    assert not matcher.is_terminated()
    assert allowed(matcher) == {b"<eos>"}
    assert matcher.accept_token(EOS)
    assert matcher.is_terminated()
    assert allowed(matcher) == {b"<eos>"}
    assert not matcher.accept_token(EOS)
    assert not matcher.accept_token(token("a"))
    assert not matcher.accept_string("a")


def test_eos_is_allowed_exactly_where_the_text_is_complete() -> None:
    matcher = GrammarMatcher(COMPILER.compile_regex("a{2,3}"))
    assert not matcher.accept_token(EOS)
    for count in range(1, 4):
        assert matcher.accept_token(token("a"))
        assert (b"<eos>" in allowed(matcher)) == matcher.is_completed() == (count >= 2)
    assert allowed(matcher) == {b"<eos>"}


def test_every_end_of_text_is_allowed_at_the_end() -> None:
    vocabulary = byte_fallback()
    matcher = GrammarMatcher(GrammarCompiler(vocabulary).compile_choice(["a"]))
    assert matcher.accept_string("a")
    assert allowed_by_mask(matcher.compiled, matcher._state) == {1, 2}
    assert matcher.accept_token(1)
    matcher.rollback(1)
    assert matcher.accept_token(2)


@pytest.mark.parametrize("bad", [-1, VOCABULARY.size, 10**9, VOCABULARY.size - 1])
def test_ids_that_are_no_tokens_are_refused(bad: int) -> None:
    matcher = GrammarMatcher(COMPILER.compile_regex(".*"))
    assert not matcher.accept_token(bad)


def test_special_empty_and_padding_ids_and_tail_bits_are_zero() -> None:
    matcher = GrammarMatcher(COMPILER.compile_regex("(?s).*"))
    bits = allowed_by_mask(matcher.compiled, matcher._state)
    texts = VOCABULARY.token_bytes
    assert all(token == EOS or texts[token] for token in bits)
    assert VOCABULARY.size % 32 != 0
    assert max(bits) < VOCABULARY.size - 45
    # A second id with the same bytes is as good as the first.
    quotes = {i for i, text in enumerate(texts) if text == b'"'}
    assert len(quotes) == 3
    assert quotes <= bits


def test_rollback_fork_and_reset() -> None:
    matcher = GrammarMatcher(COMPILER.compile_regex("(na|me|x)*"))
    for text in ("na", "me", "x", "na"):
        assert matcher.accept_token(token(text))
    fork = matcher.fork()
    assert matcher.accept_token(EOS)
    matcher.rollback(2)
    assert not matcher.is_terminated()
    assert matcher.num_steps == 3
    assert matcher.accept_token(token("x"))
    assert fork.num_steps == 4
    fork.rollback(4)
    with pytest.raises(InvalidRequest, match="num_tokens=1 is not accepted"):
        fork.rollback(1)
    matcher.rollback(0)
    matcher.reset()
    assert matcher.num_steps == 0
    assert allowed(matcher) == allowed(fork)


def test_accept_string_is_all_or_nothing_and_one_step() -> None:
    matcher = GrammarMatcher(COMPILER.compile_regex("日本x"))
    assert not matcher.accept_string("日本本")
    assert matcher.accept_string("日".encode()[:2])
    assert matcher.accept_string("日".encode()[2:] + "本".encode())
    matcher.rollback(1)
    assert matcher.accept_string("日".encode()[2:])


def test_the_mask_of_a_wrong_array_is_refused() -> None:
    matcher = GrammarMatcher(COMPILER.compile_regex("a"))
    width = (VOCABULARY.size + 31) // 32
    for bad in (np.zeros((1, width), np.uint32), np.zeros((1, width + 1), np.int32)):
        with pytest.raises(InvalidRequest, match="bitmask"):
            matcher.fill_next_token_bitmask(bad)  # type: ignore[arg-type]


def test_a_batch_leaves_other_rows_and_allows_all_without_a_matcher() -> None:
    bitmask = np.full((4, (VOCABULARY.size + 31) // 32), 7, np.int32)
    matcher = GrammarMatcher(COMPILER.compile_choice(["a"]))
    batch_fill_next_token_bitmask([None, matcher], bitmask)
    assert (bitmask[0] == -1).all()
    assert bitmask[1].tolist() == matcher.compiled.mask(matcher._state).tolist()
    assert (bitmask[2:] == 7).all()
    with pytest.raises(InvalidRequest, match="bitmask"):
        batch_fill_next_token_bitmask([None] * 5, bitmask)


@pytest.mark.parametrize("pattern", ["ab", "[a-z]+"])
def test_the_same_mask_is_written_at_every_visit_and_to_any_row(pattern: str) -> None:
    compiled = COMPILER.compile_regex(f"x{pattern}")
    matcher = GrammarMatcher(compiled)
    assert matcher.accept_string("x")
    expected = compiled.mask(matcher.fork()._state)
    columns = np.full((len(expected), 1), 7, np.int32, order="C").T
    wide = np.full((2, 2 * len(expected)), 7, np.int32)[:, ::2]
    for bitmask, row in ((columns, 0), (wide, 1), (wide, -2)):
        for _ in range(3):
            matcher.compiled.automaton.clear()
            matcher.fill_next_token_bitmask(bitmask, row)
            assert (bitmask[row] == expected).all()


# -- forced text ---------------------------------------------------------------------------------


def test_jump_forward_stops_at_choices_and_at_possible_ends() -> None:
    matcher = GrammarMatcher(COMPILER.compile_regex("name(age)?: [ab]"))
    assert matcher.find_jump_forward_string() == "name"
    assert matcher.accept_string("name")
    assert matcher.find_jump_forward_string() == ""
    assert matcher.accept_string("a")
    assert matcher.find_jump_forward_string() == "ge: "
    assert matcher.num_steps == 2
    end = GrammarMatcher(COMPILER.compile_regex("ab?"))
    assert end.find_jump_forward_string() == "a"


def test_jump_forward_is_cut_at_characters() -> None:
    # Both begin with the bytes E6 97.
    matcher = GrammarMatcher(COMPILER.compile_choice(["x日", "x旦"]))
    assert matcher.find_jump_forward_string() == "x"


def test_forced_tokens_hold_back_what_a_longer_token_could_cross() -> None:
    grammar = COMPILER.compile_json_schema(
        {"type": "object", "properties": {"name": {"enum": ["abc", "x"]}}, "required": ["name"]},
        max_whitespace=0,
    )
    matcher = GrammarMatcher(grammar)
    assert matcher.find_jump_forward_string() == '{"name":"'
    # No longer token begins inside and goes on, so all of it is forced.
    assert [VOCABULARY.token_bytes[t] for t in matcher.find_forced_tokens()] == [
        b'{"',
        b'name":',
        b'"',
    ]
    assert matcher.find_forced_tokens(limit=1) == [token('{"')]
    either = GrammarMatcher(COMPILER.compile_choice(["fooba", "foobb"]))
    # "oba" begins inside "foo" and reaches beyond: the tokenizer may cut another way.
    assert either.find_forced_tokens() == []


def test_forced_tokens_use_the_tokenizers_own_segmentation() -> None:
    texts = [b"<e>", b"a", b"b", b"ab", b"ba"]
    vocabulary = Vocabulary(
        texts, eos_token_ids=[0], encode=lambda text: {"aba": [1, 4]}.get(text, [])
    )
    matcher = GrammarMatcher(GrammarCompiler(vocabulary).compile_choice(["aba"]))
    assert matcher.find_forced_tokens() == [1, 4]
    plain = Vocabulary(texts, eos_token_ids=[0])
    matcher = GrammarMatcher(GrammarCompiler(plain).compile_choice(["aba"]))
    assert matcher.find_forced_tokens() == [3, 1]


def test_description_for_people() -> None:
    matcher = GrammarMatcher(COMPILER.compile_choice(["abc", "abd"]))
    assert matcher.describe() == ["one of 'abc', 'abd'"]
    matcher.accept_string("abc")
    assert matcher.describe() == ["the end of the text"]
    matcher.accept_token(EOS)
    assert matcher.describe() == ["nothing: the text has ended"]
    digits = GrammarMatcher(COMPILER.compile_regex("[0-9a]é?"))
    assert digits.describe() == ["text that begins with '0' to '9', 'a'"]


# -- compiling -----------------------------------------------------------------------------------


def test_the_cache_shares_and_evicts() -> None:
    compiler = GrammarCompiler(VOCABULARY, Limits(cache_bytes=1))
    first = compiler.compile(Regex("a+"))
    assert compiler.compile_regex("a+") is first
    compiler.compile(Choice(("a",)))
    assert compiler.compile_regex("a+") is not first
    compiler.clear_cache()
    assert compiler.cache_size_bytes == 0


def test_preparing_makes_the_masks_of_a_sample_in_advance() -> None:
    compiler = GrammarCompiler(byte_level())
    compiler.prepare()
    grammar = compiler.compile_json_schema({"type": "object"})
    matcher = GrammarMatcher(grammar)
    assert matcher.accept_string(
        '{ "aé": [1, -2.5e+7, "x\\n", true, {"b": null}, [] ],\n  "c": 0 }'
    )
    assert matcher.is_completed()
    matcher.reset()
    for text in ('{ "a', "é", '": [1, -2.5e+7, "x'):
        assert matcher.accept_string(text)
        assert matcher._state.mask is not None


def test_states_are_dropped_when_they_take_too_much_memory() -> None:
    compiler = GrammarCompiler(VOCABULARY, Limits(grammar_bytes=1))
    grammar = compiler.compile_regex("(ab?c){500}")
    matcher = GrammarMatcher(grammar)
    bitmask = allocate_token_bitmask(1, VOCABULARY.size)
    for _ in range(500):
        for text in "abc":
            matcher.fill_next_token_bitmask(bitmask)
            assert matcher.accept_token(token(text))
    assert matcher.is_completed()
    assert grammar.automaton.state_count <= grammar.max_states + 3
    matcher.rollback(1500)
    assert matcher.find_jump_forward_string() == "a"


def test_compiled_grammars_pickle() -> None:
    grammar = COMPILER.compile_json_schema(
        {"type": "object", "properties": {"a": {"type": "null"}}}
    )
    copy = pickle.loads(pickle.dumps(grammar))
    for text in ("{", '"a', '":', "null", "}"):
        one, two = GrammarMatcher(grammar), GrammarMatcher(copy)
        assert one.accept_string(text) == two.accept_string(text)
        assert allowed(one) == allowed(two)


def test_threads_share_a_grammar() -> None:
    compiler = GrammarCompiler(byte_level())
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            grammar = compiler.compile_json_schema(
                {"properties": {"name": {"type": "string", "pattern": "^[a-c]+\\d"}}}
            )
            assert_exact(grammar, seed=seed, texts=4)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_budgets_name_the_figure() -> None:
    compiler = GrammarCompiler(VOCABULARY, Limits(source_bytes=100))
    with pytest.raises(GrammarTooComplex, match="101 bytes, the budget is 100"):
        compiler.compile_regex("a" * 101)
    with pytest.raises(InvalidRequest, match="seconds"):
        Limits(seconds=0)


def test_rules_left_recursion_and_rules_without_text() -> None:
    x = ir.literal("x")
    left = ir.Language(ir.Ref("r"), {"r": ir.union(x, ir.sequence(ir.Ref("r"), x))})
    with pytest.raises(InvalidGrammar, match="'r' is left-recursive"):
        CompiledGrammar(VOCABULARY, left)
    hidden = ir.Language(
        ir.Ref("r"),
        {"r": ir.sequence(ir.optional(x), ir.optional(ir.Ref("s")), x), "s": ir.Ref("r")},
    )
    with pytest.raises(InvalidGrammar, match="left-recursive"):
        CompiledGrammar(VOCABULARY, hidden)
    with pytest.raises(InvalidGrammar, match="'gone'"):
        CompiledGrammar(VOCABULARY, ir.Language(ir.Ref("r"), {"r": ir.Ref("gone")}))
    endless = ir.Language(ir.Ref("r"), {"r": ir.sequence(x, ir.Ref("r"))})
    with pytest.raises(ConstraintError, match="no text"):
        CompiledGrammar(VOCABULARY, endless)
    half = ir.Language(
        ir.union(ir.literal("ab"), ir.sequence(ir.literal("ac"), ir.Ref("r"))), endless.rules
    )
    assert GrammarMatcher(CompiledGrammar(VOCABULARY, half)).find_jump_forward_string() == "ab"


def test_deep_recursion_needs_no_stack() -> None:
    grammar = COMPILER.compile_json_schema(
        {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"},
        max_whitespace=0,
    )
    matcher = GrammarMatcher(grammar)
    assert matcher.accept_string("[" * 4_000)
    assert matcher.accept_string("]" * 3_999)
    assert not matcher.is_completed()
    assert matcher.accept_string("]")
    assert matcher.is_completed()
    assert not matcher.accept_string("]")


def test_a_schema_that_nothing_satisfies_is_refused() -> None:
    with pytest.raises(UnsatisfiableSchema):
        COMPILER.compile_json_schema(
            {
                "$defs": {
                    "a": {
                        "required": ["a"],
                        "properties": {"a": {"$ref": "#/$defs/a"}},
                        "type": "object",
                    }
                },
                "$ref": "#/$defs/a",
            }
        )


# -- vocabularies with holes ---------------------------------------------------------------------


def test_no_dead_end_where_a_byte_has_no_token() -> None:
    vocabulary = without_some_bytes()
    assert ord("o") in vocabulary.trapped_bytes
    # "fo" can be written, but only "foo" goes on: there is no "o".
    matcher = GrammarMatcher(GrammarCompiler(vocabulary).compile_choice(["fo", "foo", "x"]))
    assert allowed(matcher) == {b"foo", b"x"}
    matcher = GrammarMatcher(GrammarCompiler(vocabulary).compile_regex("(f|fo)*x"))
    assert allowed(matcher) == {b"f", b"x"}
    for _ in range(2):
        assert not matcher.accept_token(vocabulary.token_bytes.index(b"foo"))
    with pytest.raises(ConstraintError, match="no sequence of tokens"):
        GrammarCompiler(vocabulary).compile_choice(["go"])


def test_texts_with_bytes_that_no_token_has_are_not_begun() -> None:
    vocabulary = Vocabulary([b"<e>", *[bytes([b]) for b in b'abc"u0123{}:']], eos_token_ids=[0])
    assert ord("x") in vocabulary.absent_bytes
    assert not vocabulary.trapped_bytes
    compiler = GrammarCompiler(vocabulary)
    assert allowed(GrammarMatcher(compiler.compile_choice(["ax", "b", "c"]))) == {b"b", b"c"}
    assert allowed(GrammarMatcher(compiler.compile_regex("a+x|(b|cx)[xyc]"))) == {b"b"}
    with pytest.raises(ConstraintError, match="no text"):
        compiler.compile_regex("ax+")
    grammar = compiler.compile_json_schema(
        {"properties": {"a": {"const": 1}, "x": {}}, "required": ["a"]}, max_whitespace=0
    )
    assert assert_exact(grammar) > 5
