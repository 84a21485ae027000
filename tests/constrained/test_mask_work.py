"""A mask that takes more work than its budget leaves long tokens out, but never a text."""

from __future__ import annotations

import json
import random
from itertools import product

import pytest

from sglang_lite.constrained import GrammarCompiler, GrammarMatcher, Vocabulary, budget
from sglang_lite.constrained.compiled import CompiledGrammar
from sglang_lite.constrained.pushdown import State
from sglang_lite.constrained.regex import full_match
from sglang_lite.errors import GrammarTooComplex
from tests.constrained.core_reference import allowed_by_mask, allowed_by_steps
from tests.constrained.core_vocabularies import byte_level, without_some_bytes

VOCABULARY = byte_level()
PATTERNS = {
    "letters apart": r'{"type": "string", "pattern": "^([ab]|c[dx]e|[f-z]{2}){1,9}$"}',
    "states that grow": r'{"type": "string", "pattern": "^[a-z ]*e[a-z ]{9}[e-z]$"}',
    "keys": json.dumps(
        {
            "type": "object",
            "patternProperties": {f"^.{{0,{9 * i}}}a.{{{i}}}b": {"minimum": i} for i in (1, 2, 3)},
        }
    ),
    "lengths": r'{"type": "string", "pattern": "^(\\p{L}{2,9}\\p{N}{1,4}){1,5}$", "maxLength": 30}',
}


@pytest.fixture
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASK_WORK", "LEAST_WORK"):
        monkeypatch.setattr(budget, name, 3)


AMBIGUOUS = {
    "classes": "root ::= (a|b|c)*\na ::= [a-m0-5]\nb ::= [f-z3-9]\nc ::= [a-d ]",
    "runs": "root ::= (a|b|c)*\na ::= [a-z]+\nb ::= [a-z ]+\nc ::= [a-m]+",
    "optional": "root ::= a? b? c? a? b? c? root?\na ::= [a-m]\nb ::= [f-z]\nc ::= [a-d ]",
}
GROWING = 'root ::= a root x | b root y | a root z | ""\na ::= [a-m]\nb ::= [f-z]\n' + "\n".join(
    f'{name} ::= "{name}"' for name in "xyz"
)


def of_letters() -> Vocabulary:
    """All texts of up to five of four letters, and longer ones of one."""
    texts = [bytes([byte]) for byte in range(256)]
    texts += ["".join(t).encode() for n in range(2, 6) for t in product("agm ", repeat=n)]
    texts += [b"g" * length for length in range(6, 16)]
    return Vocabulary([*texts, b""], eos_token_ids=[len(texts)])


def compiled(schema: str) -> CompiledGrammar:
    # A schema of its own has automata of its own, whose states nobody else has made.
    return GrammarCompiler(VOCABULARY).compile_json_schema(schema)


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize("schema", PATTERNS.values(), ids=PATTERNS)
def test_no_byte_is_lost(schema: str) -> None:
    grammar, draw, cut = compiled(schema), random.Random(5), 0
    for _ in range(6):
        state = grammar.automaton.start
        for _ in range(25):
            found = allowed_by_mask(grammar, state)
            exact = allowed_by_steps(grammar, state)
            assert found <= exact
            assert all(len(VOCABULARY.token_bytes[token]) > 1 for token in exact - found)
            cut += len(exact - found)
            ways = sorted(found - set(VOCABULARY.eos_token_ids))
            if not ways:
                break
            token = draw.choice(ways)
            following = grammar.advance(state, token)
            assert following is not None
            state = following
    assert cut > 0


@pytest.mark.usefixtures("little_work")
def test_small_terminals_that_all_share_are_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "LEAST_WORK", 200)
    small = '{"type": "object", "properties": {"when": {"format": "date"}, "n": {"minimum": 3}}}'
    grammar = compiled(small)
    matcher = GrammarMatcher(grammar)
    assert matcher.accept_string('{"when": "20')
    state = grammar.automaton.step(matcher._state, ord("2"))
    assert state is not None
    for token, text in enumerate(VOCABULARY.token_bytes):
        if text:
            allowed = grammar.automaton.token(state, token, text) is not None
            assert (token in allowed_by_mask(grammar, state)) == allowed


@pytest.mark.parametrize("text", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_what_many_ways_lead_to_is_read_once(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two or three ways for each letter there are thousands for the longest token."""
    monkeypatch.setattr(budget, "WALK_WORK", 100)
    grammar = GrammarCompiler(of_letters()).compile_grammar(text)
    state: State | None = grammar.automaton.start
    for byte in b"gag":
        assert state is not None
        assert allowed_by_mask(grammar, state) == allowed_by_steps(grammar, state)
        state = grammar.automaton.step(state, byte)


def test_a_walk_that_grows_is_given_up_and_loses_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "WALK_WORK", 20)
    grammar = GrammarCompiler(of_letters()).compile_grammar(GROWING)
    state = grammar.automaton.start
    found, exact = allowed_by_mask(grammar, state), allowed_by_steps(grammar, state)
    assert found <= exact
    lengths = {len(grammar.vocabulary.token_bytes[token]) for token in exact - found}
    assert lengths
    assert min(lengths) > 1


def test_the_masks_of_a_grammar_share_a_purse() -> None:
    def spend(states: int) -> None:
        for _ in range(states):
            budget.spend()

    meter = budget.Meter()
    for _ in range(budget.GRAMMAR_WORK // budget.MASK_WORK):
        with meter:
            spend(budget.MASK_WORK)
    assert meter.purse == 0
    with meter:
        assert budget.work_left() == 0
        with budget.cut_short():
            spend(budget.LEAST_WORK)
            with pytest.raises(budget.OutOfWork):
                budget.spend()
    assert budget.work_left() is None
    assert meter.purse == -budget.LEAST_WORK - 1


@pytest.mark.parametrize("schema", PATTERNS.values(), ids=PATTERNS)
def test_a_full_automaton_goes_on_with_the_text(
    schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar, draw, cut = compiled(schema), random.Random(7), 0
    monkeypatch.setattr(budget, "AUTOMATON_STATES", 30)
    vocabulary = grammar.vocabulary
    for _ in range(6):
        matcher = GrammarMatcher(grammar)
        for _ in range(25):
            state = matcher._state
            found, exact = allowed_by_mask(grammar, state), allowed_by_steps(grammar, state)
            assert found <= exact
            assert all(len(vocabulary.token_bytes[token]) > 1 for token in exact - found)
            cut += len(exact - found)
            assert matcher.describe()
            matcher.find_jump_forward_string()
            ways = sorted(found - set(vocabulary.eos_token_ids))
            if not ways:
                break
            assert matcher.accept_token(draw.choice(ways))
    assert cut > 0
    assert grammar.used_up


def test_without_single_bytes_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    def masks() -> list[bytes]:
        # A vocabulary of its own has tables of its own.
        grammar = GrammarCompiler(without_some_bytes()).compile_regex("(abc|xy?z){20}")
        matcher, found = GrammarMatcher(grammar), []
        for character in "abcxyz" * 6:
            found.append(matcher.next_token_mask.tobytes())
            assert matcher.accept_string(character)
        return found

    expected = masks()
    for name in ("AUTOMATON_STATES", "MASK_WORK", "LEAST_WORK", "WALK_WORK"):
        monkeypatch.setattr(budget, name, 3)
    assert masks() == expected


def test_a_full_automaton_is_an_error_while_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "AUTOMATON_STATES", 30)
    with pytest.raises(GrammarTooComplex, match="an automaton has more than 30 states"):
        full_match("a{1,40}b").matches("a" * 40)


@pytest.mark.parametrize("schema", PATTERNS.values(), ids=PATTERNS)
def test_a_grammar_that_is_used_up_is_compiled_anew(schema: str) -> None:
    compiler = GrammarCompiler(VOCABULARY)
    old = compiler.compile_json_schema(schema)
    assert compiler.compile_json_schema(schema) is old
    old.automaton.meter.purse = -1
    new = compiler.compile_json_schema(schema)
    assert new is not old
    assert not new.used_up
    assert compiler.compile_json_schema(schema) is new
    # Nothing of what the old one made its states in.
    assert new.language.root != old.language.root or new.language.rules != old.language.rules
    matcher = GrammarMatcher(old)
    assert matcher.next_token_mask.any()
