"""JSON strings: the byte image of a language of decoded texts."""

from __future__ import annotations

import json
import pickle
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_lite.constrained import ir
from sglang_lite.constrained.automaton import EmptyLanguage, any_text
from sglang_lite.constrained.byte_dfa import TextDFA, text_dfa
from sglang_lite.constrained.json_string import (
    encode_key,
    json_char,
    json_key,
    json_string,
    key_dfa,
    string_automaton,
    string_node,
    whitespace,
)
from sglang_lite.constrained.regex import search
from sglang_lite.errors import InvalidRegex
from tests.constrained.regex_samples import patterns, texts

SHORT = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r"}
CHARACTERS = 'ab"\\/\x00\x08\x1f\x7f\x80éßÿ߿ࠀ€퟿﷐\uffff😀\U0010ffff'


def spellings(character: str) -> list[str]:
    """Some JSON spellings of a character."""
    units = character.encode("utf-16-be")
    escape = "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
    found = [escape, escape[:2] + escape[2:].upper().replace("\\U", "\\u")]
    if character >= " " and character not in '"\\':
        found.append(character)
    return found + ([SHORT[character]] if character in SHORT else [])


@pytest.mark.parametrize(
    "pattern",
    ["", "^a", "b$", "^[^a]*$", "^a|b$", "é", "[\\x00-\\x1f]", "^.{2}$", "\\W", "[^\\u00e9]$",
     "^[\\ud83d\\ude00-\\u{10ffff}]+$", "^(?!a).*$", "\\bb", "(?i)É"],
)  # fmt: skip
def test_every_spelling_of_a_text_is_judged_by_the_text(pattern: str) -> None:
    draw = random.Random(pattern)
    automaton, dfa = search(pattern), text_dfa(search(pattern), "json", True)
    python = re.compile(re.sub(r"\\ud83d\\ude00|\\u\{10ffff\}", "😀", pattern), re.ASCII)
    for _ in range(400):
        text = "".join(draw.choices(CHARACTERS, k=draw.randint(0, 4)))
        spelled = '"' + "".join(draw.choice(spellings(c)) for c in text) + '"'
        assert json.loads(spelled) == text
        expected = automaton.matches(text)
        if "[\\ud83d" not in pattern and "(?i)" not in pattern and "." not in pattern:
            assert expected == bool(python.search(text)) or text.endswith("\n")
        assert dfa.matches(spelled.encode()) == expected


def is_json_string(data: bytes) -> bool:
    try:
        value = json.loads(data.decode("utf-8"))
    except ValueError:
        return False
    return isinstance(value, str) and not any(0xD800 <= ord(c) < 0xE000 for c in value)


PIECES = [
    b"a", b'"', b"\\", b"\\n", b"\\u", b"\\ud83d", b"\\ude00", b"\\uD83D\\uDE00", b"\\u00E9", b"d8",
    b"\\/", b"\x01", b"\t", b"\x7f", b"\xc3", b"\xa9", b"\xc0\x80", b"\xed\xa0\x80", b"\xe2\x82",
    b"\xf0\x9f\x98\x80", b"\xf4\x90\x80\x80", b"\xf0\x80\x80\x80", b"\xff", b"\\q", b"\\'", b"0000",
]  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=6).map(b"".join))
def test_the_standard_string_is_what_json_reads(body: bytes) -> None:
    data = b'"' + body + b'"'
    assert json_string().matches(data) == is_json_string(data)


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=6))
def test_a_key_has_one_spelling(name: str) -> None:
    assert encode_key(name) == json.dumps(name, ensure_ascii=False).encode()
    assert json_key().matches(encode_key(name))
    other = json.dumps(name).encode()
    assert json_key().matches(other) == (other == encode_key(name))
    for character in set(name):
        variants = {f'"{s}"'.encode() for s in spellings(character)} | {encode_key(character)}
        assert [v for v in variants if json_key().matches(v)] == [encode_key(character)]


def test_lengths_are_counted_in_code_points() -> None:
    node = string_node(string_automaton(maximum=5))
    assert isinstance(node, ir.Counted)
    assert (node.minimum, node.maximum) == (0, 5)
    for one in (b"a", b"\\n", b"\\u00e9", "é".encode(), b"\\ud83d\\ude00", "😀".encode()):
        assert node.char.matches(one)
        assert not node.char.matches(one + one)
    assert node.char is json_char()
    bounded = text_dfa(string_automaton(patterns=("^a+b?$",), minimum=2, maximum=3), "json", True)
    candidates = ("a", "ab", "aab", "aaa", "aaab", "aaaa")
    found = [text for text in candidates if bounded.matches(f'"{text}"'.encode())]
    assert found == ["ab", "aab", "aaa"]


def test_one_class_repeated_becomes_a_counter() -> None:
    node = string_node(string_automaton(patterns=("^[a-z]{3,500}$",), maximum=40))
    assert isinstance(node, ir.Counted)
    assert (node.minimum, node.maximum) == (3, 40)
    for pattern in ("^[a-z]+x$", "^[0-9]{4}$", "^[a-z]*$"):
        assert isinstance(string_node(string_automaton(patterns=(pattern,))), ir.Terminal)
    assert string_node(any_text()) == ir.terminal(json_string())


def test_conditions_combine() -> None:
    automaton = string_automaton(
        patterns=("^a", "z$"), not_patterns=("q",), formats=(), excluded=("az",), maximum=4
    )
    for text, expected in [
        ("abz", True),
        ("az", False),
        ("aqz", False),
        ("abcdz", False),
        ("zb", False),
    ]:
        assert automaton.matches(text) == expected
    assert string_automaton(enum=("ab", "b", "c"), patterns=("b",)).enumerate(9) == ["ab", "b"]
    with pytest.raises(EmptyLanguage):
        string_automaton(patterns=("^a$",), not_patterns=("a",))
    with pytest.raises(EmptyLanguage):
        string_automaton(patterns=("^(ab)*$",), minimum=3, maximum=3)


def walk(dfa: TextDFA, data: bytes) -> int:
    state = dfa.start
    for byte in data:
        state = dfa.step(state, byte)
    return state


def test_a_pattern_that_has_matched_is_the_standard_string() -> None:
    dfa, plain = text_dfa(search("foo"), "json", True), json_string()
    for text in (b'"a foo', b'"a foo b', b'"foo\xc3', b'"foo\\', b'"foo\\u00', b'"foo\\ud83d\\u'):
        alias = dfa.alias(walk(dfa, text))
        assert alias is not None
        assert alias == (plain, walk(plain, text))
    assert dfa.alias(walk(dfa, b'"a fo')) is None
    assert plain.alias(plain.body) is None


def test_while_anything_may_follow_the_inside_is_that_of_the_standard_string() -> None:
    dfa = text_dfa(search("foo$"), "json", True)
    for text in (b'"', b'"a fo', b'"\\', b'"\\u0', b'"\\ud83d', b'"\xc3', b'"fo\xf0\x9f'):
        assert dfa.like(walk(dfa, text)) == (json_string(), walk(json_string(), text))
    anchored = text_dfa(search("^foo"), "json", True)
    assert anchored.like(walk(anchored, b'"f')) is None


def test_the_same_holds_for_keys() -> None:
    dfa = key_dfa(search("g$"))
    for text in (b'"', b'"a', b'"\\', b'"\\u', b'"\\u00', b'"\\u001', b'"\xe2\x82'):
        plain, state = dfa.like(walk(dfa, text))
        assert (plain, state) == (json_key(), walk(json_key(), text))
        refused = [byte for byte in range(256) if plain.row(state)[byte] < 0]
        assert [byte for byte in range(256) if dfa.row(walk(dfa, text))[byte] < 0] in (
            refused,
            sorted({*refused, 0x22}),
        )


def test_terminals_are_singletons_and_pickle() -> None:
    assert json_string() is json_string()
    assert whitespace(3) is whitespace(3)
    assert key_dfa(search("^a")) is key_dfa(search("^a"))
    automaton = string_automaton(patterns=("^(?!b)[ab]+$",), not_patterns=("aa",), maximum=3)
    for dfa in (json_string(), whitespace(2), text_dfa(automaton, "json", True)):
        assert pickle.loads(pickle.dumps(dfa)).matches(b'"ab"') == dfa.matches(b'"ab"')
    assert [whitespace(2).matches(t) for t in (b"", b" \n", b"   ", "\u00a0".encode())] == [
        True, True, False, False
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "accepted", "refused"),
    [
        ("^a|b$", ["axx", "xb"], ["xa", "bx"]),
        (r"^\d\w\s$", ["3_\ufeff", "3a\u00a0"], ["٣a ", "3é "]),
        (r"^\cJ\u{1f600}$", ["\n😀"], []),
        (r"^[\w-.]+$", ["a-.b"], ["a b"]),
        (r"^\/\-$", ["/-"], []),
        ("^a$", ["a"], ["a\n"]),
        ("^.$", ["a", "😀"], ["\n", "\u2028", "\r"]),
        ("[^]", ["\n"], [""]),
        (r"^(?<year>\d{4})$", ["2024"], ["202"]),
        (r"^\p{Letter}+$", ["éa"], ["1"]),
        (r"^(?!x).*$", ["ax", ""], ["xyz"]),
        (r"^(?i:ab)$", ["aB"], ["b"]),
        ("x{", ["ax{"], ["x"]),
        (r"^\S(|(.|\n)*\S)\Z", ["ab", "a b"], ["ab ", ""]),
    ],
)
def test_the_dialect_of_json_schema(pattern: str, accepted: list[str], refused: list[str]) -> None:
    automaton = search(pattern)
    assert [text for text in accepted if not automaton.matches(text)] == []
    assert [text for text in refused if automaton.matches(text)] == []


@pytest.mark.parametrize(
    ("pattern", "position"),
    [(r"(a)\1", 3), (r"(?<n>a)\k<n>", 7), (r"a\a", 1), ("a{,3}", 1), ("(?x)a", 0), (r"\c1", 0)],
)
def test_what_is_not_in_the_dialect_is_refused(pattern: str, position: int) -> None:
    with pytest.raises(InvalidRegex) as caught:
        search(pattern)
    assert caught.value.position == position


@settings(max_examples=200, deadline=None)
@given(patterns(look=True).filter(lambda p: "(?m" not in p and "{,2}" not in p))
def test_searching_finds_what_re_finds(pattern: str) -> None:
    try:
        compiled = re.compile(pattern, re.ASCII)
    except re.error:
        return
    candidates = [*texts("ab-", 4)]
    expected = [text for text in candidates if compiled.search(text)]
    try:
        automaton = search(pattern)
    except EmptyLanguage:
        assert expected == []
        return
    assert [text for text in candidates if automaton.matches(text)] == expected


def test_a_search_that_finds_nothing_is_empty() -> None:
    for pattern in ("/^a$/", "a^b", "[]"):
        with pytest.raises(EmptyLanguage):
            search(pattern)
