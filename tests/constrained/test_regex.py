"""Regular expressions in Python's syntax, against ``re.fullmatch``."""

from __future__ import annotations

import re

import interegular
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sglang_lite.constrained.byte_dfa import text_dfa
from sglang_lite.constrained.charset import char_set
from sglang_lite.constrained.regex import full_match, lower_regex
from sglang_lite.constrained.regex_sets import ignore_case, python_class
from sglang_lite.errors import GrammarTooComplex, InvalidRegex
from tests.constrained.regex_samples import patterns, texts

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
NO_TEXT = "it matches no text at all"
TEXTS = [*texts("ab\n", 6)]
SOME_TEXTS = [
    "",
    "a",
    "b",
    "ab",
    "ba",
    "aa",
    "1",
    "A",
    "-",
    "a b",
    "\n",
    "a\n",
    "]",
    "^",
    "{",
    "a{",
]
LOOK_TEXTS = [*texts("ab\n", 5), *texts("a -\n", 3)]


def assert_like_re(pattern: str, candidates: list[str]) -> None:
    compiled = re.compile(pattern)
    expected = [text for text in candidates if compiled.fullmatch(text)]
    try:
        automaton = full_match(pattern)
    except InvalidRegex as error:
        if error.reason != NO_TEXT:
            raise
        assert not expected
        return
    assert [text for text in candidates if automaton.matches(text)] == expected


@settings(max_examples=300, deadline=None)
@given(patterns(look=False))
def test_plain_patterns_match_what_re_matches(pattern: str) -> None:
    assert_like_re(pattern, TEXTS)


@settings(max_examples=300, deadline=None)
@given(patterns(look=True))
def test_anchors_and_look_around_match_what_re_matches(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error:  # "^*" has nothing to repeat
        with pytest.raises(InvalidRegex, match="nothing to repeat"):
            full_match(pattern)
        return
    assert_like_re(pattern, LOOK_TEXTS)


@settings(max_examples=100, deadline=None)
@given(patterns(look=False).filter(lambda p: not re.search(r"\\|\?i|\?s|\{,|\{1,2\}\?", p)))
def test_plain_patterns_match_what_interegular_matches(pattern: str) -> None:
    automaton = full_match(pattern)
    machine = interegular.parse_pattern(pattern).to_fsm()
    for text in texts("ab\n", 4):
        assert automaton.matches(text) == machine.accepts(text)


@pytest.mark.parametrize(
    ("pattern", "accepted", "refused"),
    [
        (r"a(?!b)a*", ["a", "aa"], ["aab", "ab", ""]),
        (r"a(?!b)", ["a"], ["aa", "ab"]),
        (r"(?!x).*", ["", "ax"], ["x", "xa"]),
        (r"foo(?!bar).*", ["foo", "fooba"], ["foobar", "foobarx"]),
        (r"(?!ab)[a-c]*", ["", "a", "ac"], ["ab", "abc"]),
        (r"(?:a(?=b)|b)*", ["", "ab", "bab", "bb"], ["a", "aab"]),
        (r"[]a]", ["]", "a"], ["", "]a"]),
        (r"[^]a]", ["b"], ["]", "a"]),
        (r"(?#c)a", ["a"], [""]),
        (r"a(?#c\)d)+b", ["ab", "aab"], ["b"]),
        (r"(?#c)(?i)a", ["A"], ["b"]),
        (r"a{", ["a{"], ["a"]),
        (r"a{x}", ["a{x}"], ["a"]),
        (r"a{,2}b", ["b", "ab", "aab"], ["aaab"]),
        (r"\é", ["é"], []),
        (r"\0", ["\0"], ["0"]),
        (r"\x41\u0042\U00000043\N{LATIN SMALL LETTER D}\104", ["ABCdD"], []),
        (r"[\b]", ["\b"], ["b"]),
        (r"(?i)k", ["k", "K", "\u212a"], ["j"]),
        (r"(?i)ß", ["ß", "ẞ"], ["ss"]),
        (r"(?i)i", ["i", "I", "İ", "ı"], []),
        (r"(?i)[^k]", ["j"], ["k", "K", "\u212a"]),
        (r"(?ia)k", ["k", "K"], ["\u212a"]),
        (r"(?-i:a)b", ["ab"], ["Ab", "aB"]),
        (r"(?i:a(?-i:b))c", ["abc", "Abc"], ["aBc", "abC"]),
        (r"\d\w\s", ["٣é\u00a0"], ["aé\u00a0"]),
        (r"(?a)\d\w\s", ["3e "], ["٣e ", "3é ", "3e\u00a0"]),
        (r"\p{Lu}\P{Lu}", ["Éé", "Ab"], ["éÉ"]),
        (r"\p{Script=Greek}+", ["αβγ"], ["abc"]),
        (r"(?P<x>a)(?:b)", ["ab"], []),
        (r"(?x) a  b # comment", ["ab"], ["a b"]),
        (r"(?x)[ ]\ a{2}", ["  aa"], []),
        (r"(?s).", ["\n", "😀"], ["", "ab"]),
        (r".", ["😀", "\r"], ["\n"]),
        (r"(?m)a$\n^b", ["a\nb"], ["ab"]),
        (r"a$\n?", ["a", "a\n"], ["a\n\n"]),
        (r"a\Z\n?", ["a"], ["a\n"]),
        (r"^^a$$", ["a"], []),
        (r"(^a|b)c", ["ac", "bc"], []),
        (r"\bfoo\b.*\bbar\b", ["foo bar", "foo-x-bar"], ["foobar", "foo xbar"]),
        (r"(?=.*\d)(?=.*[a-z])[a-z0-9]{3,}", ["a1b", "12c"], ["abc", "123", "a1"]),
        (r"(?<=a)b|a(?<=a)b", ["ab"], ["b"]),
        (r".*(?<!a)b", ["b", "bb", "cb"], ["ab"]),
        (r"(?!(?!a).).*", ["", "ab"], ["b"]),
        (r"a++b", ["ab", "aab"], ["a"]),
        (r"a{1,2}+b", ["ab", "aab"], ["aaab"]),
        (r"(?>ab)c", ["abc"], []),
        ("[\U0001f600-\U0001f64f]", ["😀"], ["a"]),
    ],
)
def test_construct(pattern: str, accepted: list[str], refused: list[str]) -> None:
    automaton = full_match(pattern)
    assert [text for text in accepted if not automaton.matches(text)] == []
    assert [text for text in refused if automaton.matches(text)] == []


@pytest.mark.parametrize("pattern", ["a(?=b)", "(?=ab)a", "a*+a", r"[^\s\S]", "a^b", r"\ud800"])
def test_a_pattern_that_matches_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegex, match="no text"):
        full_match(pattern)


@pytest.mark.parametrize(
    ("pattern", "position", "reason"),
    [
        (r"(a)\1", 3, "back-reference"),
        (r"(?P<x>a)(?P=x)", 8, "back-reference"),
        (r"(a)?(?(1)b|c)", 4, "conditional"),
        (r"ab(?>a|ab)c", 2, "atomic"),
        (r"(?:ab)*+c", 0, "possessive"),
        (r"a**", 2, "multiple repeat"),
        (r"*a", 0, "nothing to repeat"),
        (r"a|^*", 3, "nothing to repeat"),
        (r"a{3,2}", 1, "min repeat greater"),
        (r"(a", 0, "unterminated"),
        (r"a)", 1, "unbalanced"),
        (r"x[a", 1, "unterminated character set"),
        (r"[b-a]", 1, "bad character range"),
        (r"[\d-x]", 1, "bad character range"),
        (r"a\q", 1, r"bad escape \\q"),
        (r"\x4", 0, "incomplete escape"),
        (r"\N{NO SUCH}", 0, "undefined character name"),
        (r"\p{Nonsense}", 0, "unknown property"),
        (r"a(?i)b", 1, "global flags"),
        (r"(?L)a", 0, "flag L"),
        (r"(?P<1>a)", 0, "bad group name"),
        (r"(?P<a>b)(?P<a>c)", 8, "redefinition"),
        ("a\\", 2, "escape"),
        (r"\777", 0, "octal"),
    ],
)
def test_what_is_refused_is_refused_with_its_position(
    pattern: str, position: int, reason: str
) -> None:
    with pytest.raises(InvalidRegex, match=reason) as caught:
        full_match(pattern)
    assert caught.value.position == position


@pytest.mark.parametrize(
    ("pattern", "accepted"),
    [
        ("(a{1000}){1000}", None),
        ("a{100000}", None),
        ("(a|a)*", "aaa"),
        ("((a*)*)*", "aaa"),
        ("(a?){1000}", "a" * 1000),
        ("((a{0,100}){0,100}){0,100}", "a" * 50),
        ("(.*a){50}", "ba" * 50),
        ("(a|aa)+", "a" * 30),
        ("(x+x+)+y", "x" * 30 + "y"),
        ("[a-z]{0,500}[a-z0-9]{0,500}", "a" * 700),
    ],
)
def test_bombs_are_compiled_lazily(pattern: str, accepted: str | None) -> None:
    automaton = full_match(pattern)
    state = automaton.after("aaaa" if accepted is None else accepted)
    assert state >= 0
    assert automaton.accepts(state) == (accepted is not None)
    assert len(automaton._keys) < 3_000


@pytest.mark.parametrize(
    "pattern",
    [
        "(" * 500 + "a" + ")" * 500,
        "a{100000000}",
        "a" * 300_000,
        "(a|b)*a(a|b){20000}",
        "(?:[a-z]|[a-z0-9])*x.{5000}",
    ],
)
def test_bombs_are_refused_with_the_figure(pattern: str) -> None:
    with pytest.raises(GrammarTooComplex, match=r"\d"):
        full_match(pattern)


def test_bytes_of_a_character_may_come_one_by_one() -> None:
    dfa = text_dfa(full_match("[é-😀]+"))
    assert dfa.matches("é€😀".encode())
    for invalid in (b"\xc0\x80", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xed\xa0\x80", b"\xc3"):
        assert not dfa.matches(invalid)
    assert not text_dfa(full_match("(?s).*")).matches(b"\xf4\x90\x80\x80")


def test_a_sequence_of_one_class_is_counted() -> None:
    root = lower_regex("[a-z]{3,500}").root
    assert (root.minimum, root.maximum, root.open, root.close) == (3, 500, b"", b"")
    assert root.char.matches(b"q")
    assert not root.char.matches(b"qq")


def test_classes_are_those_of_this_python() -> None:
    for letter in "dws":
        members = python_class(letter, False)
        for code in (*range(0x3000), 0xFF10, 0x1D7D8, 0x10FFFF, 0x323AF):
            assert (code in members) == bool(re.match(rf"\{letter}", chr(code)))


def test_ignoring_case_is_that_of_re() -> None:
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x1F000)]))
    for low, high in [
        (0x61, 0x7A),
        (0x130, 0x131),
        (0x1C4, 0x1CC),
        (0x370, 0x3FF),
        (0x1E00, 0x1FFF),
    ]:
        found = re.findall(rf"(?i)[\U{low:08x}-\U{high:08x}]", every)
        members = ignore_case(char_set([(low, high)]), False)
        assert members == char_set((ord(c), ord(c)) for c in found)


PIECES = [
    *"ab(|)*+?{}[]^-.,:=!<>$#0 1\n", "(?:", "(?=", "(?!", "(?<=a)", "(?<!b)", "(?i:", "(?P<x>",
    r"\d", r"\w", r"\b", r"\A", r"\Z", "{2}", "{1,2}", "{,2}", "{2,}", "[^", r"\x41", "(?#",
    "(?-i:", r"\N{DIGIT ONE}", r"\0", r"\08", r"\141", "[a-", "-z]", r"\-", r"\]", "\\",
]  # fmt: skip


@settings(max_examples=1_500, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=7).map("".join))
def test_malformed_patterns_are_refused_as_re_refuses_them(pattern: str) -> None:
    assume(not re.search(r"[*+?}]\+|\\1(?!41)", pattern))  # possessive, or a back-reference
    try:
        re.compile(pattern)
    except re.error:
        with pytest.raises(InvalidRegex):
            full_match(pattern)
        return
    assert_like_re(pattern, SOME_TEXTS)


def test_the_regex_tests_of_python_itself() -> None:
    """The patterns of CPython's own suite, where this Python comes with it."""
    suite = pytest.importorskip("test.re_tests")
    compared, refused = 0, []
    for pattern, text, *_ in suite.tests:
        try:
            compiled = re.compile(pattern)
        except (re.error, OverflowError):
            with pytest.raises((InvalidRegex, GrammarTooComplex)):
                full_match(pattern)
            continue
        try:
            automaton = full_match(pattern)
        except InvalidRegex as error:
            if error.reason == NO_TEXT:
                assert not compiled.fullmatch(text)
            else:
                refused.append((pattern, error.reason))
            continue
        for candidate in {text, text[1:], text[:-1], text * 2}:
            if r"\B" in pattern and not candidate:
                continue  # Python 3.14 changed what \B says of an empty text
            assert automaton.matches(candidate) == bool(compiled.fullmatch(candidate)), pattern
        compared += 1
    assert compared > 300
    reasons = ("back-references", "conditional groups", "a possessive", "global flags")
    assert [p for p, reason in refused if not reason.startswith(reasons)] == []
