"""GBNF and EBNF text."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_lite.constrained import GrammarCompiler, GrammarMatcher, Vocabulary
from sglang_lite.constrained.grammar import lower_choice, lower_grammar
from sglang_lite.errors import ConstraintError, GrammarTooComplex, InvalidGrammar, InvalidRequest
from tests.constrained.acceptor import accepts
from tests.constrained.grammar_samples import Sampler, mutations

JSON = r"""
# any JSON value, one spelling of whitespace
root   ::= object | array
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
    string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt/] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""

CHESS = r"""
root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move ::= (pawn | nonpawn | castle) [+#]?
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBQR])?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
castle ::= "O-O" "-O"?
"""

LIST = r"""
root ::= item+
# a line is never empty
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n"
"""

ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""

LEFT_ARITHMETIC = r"""
root ::= expr
expr ::= expr [-+] term | term
term ::= term [*/] factor | factor
factor ::= [0-9]+ | "(" expr ")"
"""

JAPANESE = r"""
root ::= word ([ \t\n] word)*
word ::= hiragana+ | katakana+ | punctuation | kanji+
hiragana ::= [ぁ-ゟ]
katakana ::= [\u30A1-\u30FF]
punctuation ::= [、-〾]
kanji ::= [\U00004e00-\U00009fff]
"""

CASES = {
    "json": (
        JSON,
        ['{"a":[1,-2.5e+3,"\\u00e9é\\n",null]}', "[]", '{\n  "a":1}', "[true ,1]"],
        ["{a:1}", '["\t"]', "[01]", "true", "[1,]", '{"a":"\\x"}'],
    ),
    "chess": (
        CHESS,
        ["1. e4 e5\n2. Nf3 Nc6\n", "1. O-O O-O-O+\n99. exd8=Q# Kxh1\n"],
        ["1. e4 e5\n"],
    ),
    "list": (LIST, ["- a\n- é \u3042\n"], ["- \n", "- a", "- a\u2028b\n"]),
    "arithmetic": (ARITHMETIC, ["a+b*(2 -c_1 )=\n3\n"], ["a+=3\n", "A=1\n"]),
    "left recursion": (LEFT_ARITHMETIC, ["1+2*3-(4/5)", "7"], ["1+", "()", "+1"]),
    "japanese": (JAPANESE, ["ひらがな カタカナ\n漢字 、"], ["ひカ", "a", ""]),
}


@pytest.mark.parametrize("name", CASES)
def test_accepts_what_the_grammar_says(name: str) -> None:
    grammar, good, bad = CASES[name]
    language = lower_grammar(grammar)
    for text in good:
        assert accepts(language, text), text
        assert not accepts(language, text + "\x00")
    for text in bad:
        assert not accepts(language, text), text


def test_generated_json_parses() -> None:
    sampler = Sampler(lower_grammar(JSON), seed=3)
    rng = random.Random(5)
    language = lower_grammar(JSON)
    for _ in range(150):
        text = sampler.sample(depth=7).decode()
        json.loads(text)
        for mutated in mutations(text, '{}[],:"\\ 01-.eE', rng):
            if accepts(language, mutated):
                json.loads(mutated)


def test_left_recursion_equals_a_regex() -> None:
    """Every text over a small alphabet, against the regular part of the grammar."""
    language = lower_grammar('root ::= e\ne ::= e "+" t | t | e "-"\nt ::= t "*" | "1" | e "!"')
    # e and t derive from each other at the left, but what ends in "-" is no t
    pattern = re.compile(r"1(?:\*|!|-(?!\*)|\+1)*")
    for length in range(1, 7):
        for letters in itertools.product("1+-*!", repeat=length):
            text = "".join(letters)
            expected = pattern.fullmatch(text) is not None
            assert accepts(language, text) == expected, text


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (r'root ::= "\x41\u00e9\U0001F600\n\"\\"', ['Aé😀\n"\\'], ["A"]),
        (r"root ::= [a\-c] [\]^] [^\]]", ["-]x", "a^\n", "c]é"], ["b]x", "a]]"]),
        (r"root ::= [-a] [a-]", ["-a", "a-"], ["b-"]),
        (r"root ::= . [^] .", ["a\né"], ["ab", "a"]),
        (r'root ::= "a"{2} "b"{1,} "c"{,2} "d"{0,1}', ["aab", "aabbccd"], ["ab", "aabccc", "aaa"]),
        (r'root ::= ("a" | "b"?)* "c"', ["c", "abbac"], ["ab"]),
        (r'root ::= "a"** "b"?', ["", "aab"], ["ba"]),
        (r'root ::= "x" | | "y"', ["", "x", "y"], ["xy"]),
        ('root ::= a-b "."\r\na-b ::= # comment\r\n  "1" |\r\n  "2"', ["1.", "2."], ["1"]),
        ('root::="a"b\nb::=[0-9]', ["a1"], ["a"]),
        (r'root ::= "a" root "b" | ""', ["", "aabb"], ["aab", "ba"]),
    ],
)
def test_notation(grammar: str, good: list[str], bad: list[str]) -> None:
    language = lower_grammar(grammar)
    for text in good:
        assert accepts(language, text), text
    for text in bad:
        assert not accepts(language, text), text


def test_ambiguous_operators_equal_a_regex() -> None:
    language = lower_grammar('root ::= root [+*] root | "-" root | root "!" | "1" | "(" root ")"')
    pattern = re.compile(r"-*1!*(?:[+*]-*1!*)*")
    for length in range(1, 7):
        for letters in itertools.product("1+-!", repeat=length):
            text = "".join(letters)
            assert accepts(language, text) == (pattern.fullmatch(text) is not None), text
    assert accepts(language, "-(1+-(1*1)!)*1")
    assert not accepts(language, "-(1+)")


def test_start_rule_can_be_chosen() -> None:
    assert accepts(lower_grammar('root ::= "a"\nother ::= "b"', start="other"), "b")
    with pytest.raises(InvalidGrammar, match="no rule 'main'"):
        lower_grammar('root ::= "a"', start="main")


def test_the_compiler_takes_the_start_rule() -> None:
    tokens = [bytes((byte,)) for byte in range(256)]
    compiler = GrammarCompiler(Vocabulary([*tokens, b"<end>"], eos_token_ids=[256]))
    text = 'root ::= "a"\nother ::= "b"'
    first, other = compiler.compile_grammar(text), compiler.compile_grammar(text, start="other")
    assert not GrammarMatcher(first).accept_string("b")
    assert GrammarMatcher(other).accept_string("b")
    with pytest.raises(InvalidGrammar, match="no rule 'main'"):
        compiler.compile_grammar(text, start="main")


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("root ::= a", 1, 10, "'a' is not defined"),
        ('root ::= "a"\n  | b c', 2, 5, "'b' is not defined"),
        ('root ::= "a', 1, 10, "unexpected"),
        ('root ::= ("a"', 1, 14, "ends too early"),
        ('root ::= "a")', 1, 13, "unexpected ')'"),
        ("root ::= [b-a]", 1, 10, "reversed"),
        ("root ::= []", 1, 10, "without characters"),
        (r'root ::= "\q"', 1, 10, "unknown escape"),
        (r'root ::= "\uD800"', 1, 10, "surrogate"),
        ('root ::= "a"{3,2}', 1, 14, "impossible"),
        ('root ::= "a"\nroot ::= "b"', 2, 1, "defined twice"),
        ('root ::= "a" root', 1, 1, "'root' can never end"),
        ('root ::= a | "x"\na ::= a "y"', 2, 1, "'a' can never end"),
        ("root ::= <think>", 1, 10, "tokens"),
        ("root ::= (=  [a])", 1, 11, "look-ahead"),
        ('root ::= TagDispatch(("a", b))', 1, 26, "unexpected"),
        ("root ::= TagDispatch", 1, 10, "TagDispatch() is not supported"),
        ("start: a", 1, 1, "unexpected"),
    ],
)
def test_refusals_name_the_place(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        lower_grammar(text)
    assert message in str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column)


def test_empty_grammars_and_unknown_syntax_are_refused() -> None:
    for text in ("", " \n", "# nothing"):
        with pytest.raises(InvalidGrammar):
            lower_grammar(text)
    with pytest.raises(InvalidRequest, match="'ebnf' or 'lark'"):
        lower_grammar('root ::= "a"', syntax="peg")


BOMBS = {
    "nesting": "root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000,
    "stars": 'root ::= "a"' + "*" * 100_000,
    "repeat": 'root ::= ("a"{9999999}){9999999}',
    "long": 'root ::= "' + "a" * 3_000_000 + '"',
}


def test_unterminated_classes_and_literals_do_not_backtrack() -> None:
    for text in (
        "root ::= " + "[" * 1_000_000,
        'root ::= "' + "\\\\" * 400_000,
        "root ::= [^" + "\\]" * 9,
    ):
        with pytest.raises(InvalidGrammar):
            lower_grammar(text)


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused(name: str) -> None:
    with pytest.raises(GrammarTooComplex):
        lower_grammar(BOMBS[name])


def test_nested_repeats_are_counted_not_written_out() -> None:
    language = lower_grammar('root ::= (("a" [0-9]{1,1000}){1,1000} x){1,1000}\nx ::= "!"')
    assert accepts(language, "a1a23!a4!")
    assert not accepts(language, "a!")


def test_more_rules_than_an_int16_counts() -> None:
    count = 33_000
    rules = "".join(f'r{i} ::= "{i % 10}" r{i + 1}\n' for i in range(count))
    language = lower_grammar(f'root ::= "x" | r0\n{rules}r{count} ::= "end"')
    assert len(language.rules) == count + 2
    assert accepts(language, "x")
    assert not accepts(language, "0123456789end")


def test_deep_chains_of_empty_rules_do_not_recurse() -> None:
    count = 3_000
    rules = "".join(f'r{i} ::= r{i + 1}? "a"?\n' for i in range(count))
    language = lower_grammar(f'root ::= (r0)* "x"\n{rules}r{count} ::= "end"')
    assert len(language.rules) == count + 2
    assert "r0" not in language.rules  # only its texts but the empty one are repeated


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet='abr:=|()[]{}"*+?.\\ \n^-,0123#~', max_size=40))
def test_random_text_raises_nothing_else(text: str) -> None:
    for syntax in ("ebnf", "lark"):
        for prefix in ("", "root ::= ", "start: "):
            with contextlib.suppress(ConstraintError):
                lower_grammar(prefix + text, syntax)


def test_choices() -> None:
    language = lower_choice(["1", "10", "Zürich", "10", "2.5 €"])
    for text in ("1", "10", "Zürich", "2.5 €"):
        assert accepts(language, text)
    for text in ("", "100", "Z", "11"):
        assert not accepts(language, text)
    assert accepts(lower_choice(["", "a"]), "")
    many = [f"choice number {i}" for i in range(20_000)]
    assert accepts(lower_choice(many), many[777])
    for wrong in ([], ["a", 1], ["\ud800"]):
        with pytest.raises(InvalidRequest):
            lower_choice(wrong)  # type: ignore[arg-type]
