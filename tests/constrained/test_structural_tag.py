"""Structural tags: free text, triggers and tags, in both JSON forms."""

from __future__ import annotations

import itertools
import json
import pickle
import re
from typing import Any

import pytest

from sglang_lite.constrained import GrammarCompiler, GrammarMatcher
from sglang_lite.constrained.free_text import free_text
from sglang_lite.constrained.structural_tag import lower_structural_tag
from sglang_lite.errors import ConstraintError, GrammarTooComplex, InvalidGrammar
from tests.constrained import core_vocabularies
from tests.constrained.acceptor import accepts
from tests.constrained.core_reference import assert_exact

COMPILERS = {name: GrammarCompiler(make()) for name, make in core_vocabularies.ALL.items()}


def text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def tag(begin: str, content: dict[str, Any], end: str | list[str]) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def triggered(**options: Any) -> dict[str, Any]:
    tags = [tag("<fa>", text("1"), "</f>"), tag("<fb>", text("2"), "</f>")]
    return {"type": "triggered_tags", "triggers": ["<f"], "tags": tags, **options}


ANY = {"type": "any_text"}
INTEGER = {"type": "json_schema", "json_schema": {"type": "integer", "minimum": 0, "maximum": 9}}

CASES: list[tuple[str, dict[str, Any], str, str]] = [
    # name, format, accepted texts, refused texts, both separated by "|"
    (
        "triggered",
        triggered(),
        "|x|<fa>1</f>|é<fa>1</f>y<fb>2</f>z|<fa>1</f><fb>2</f>|x<|<|1</f>|<<fa>1</f>",
        "x<f|<fc|<fa>2</f>|<fa>1</f|x<fa>1<fa>1</f></f>",
    ),
    (
        "at_least_one",
        triggered(at_least_one=True),
        "<fa>1</f>|<fa>1</f>y|<fa>1</f>y<fb>2</f>",
        "|x|x<fa>1</f>",
    ),
    (
        "stop_after_first",
        triggered(stop_after_first=True),
        "|x|<fa>1</f>|x<fa>1</f>",
        "<fa>1</f>y|<fa>1</f><fb>2</f>",
    ),
    (
        "both",
        triggered(at_least_one=True, stop_after_first=True),
        "<fa>1</f>|<fb>2</f>",
        "|x|<fa>1</f>y|x<fa>1</f>",
    ),
    ("excludes", triggered(excludes=["yz", "<g"]), "y|z|y<fa>1</f>z|zy", "yz|ayzb|<fa>1</f>yz|<g"),
    ("exclude at a trigger", triggered(excludes=["x<f"]), "x|y<fa>1</f>", "x<fa>1</f>"),
    (
        "one layout of JSON",
        {"type": "json_schema", "json_schema": {}, "separators": [", ", ":"]},
        '{"a":[1, 2], "b":{}}|[]|7',
        '{"a": 1}|[1,2]|[1,  2]|[ ]|[1 ]',
    ),
    (
        "text in a tag ends at its first end",
        tag("<t>", ANY, "</t>"),
        "<t></t>|<t>a</</t>|<t>é</t>|<t><</t>",
        "<t>|<t>a</t>b</t>|<t></t></t>|<t></t>x",
    ),
    (
        "tags in a tag",
        tag("<t>", triggered(), ["</t>", "</u>"]),
        "<t>ab</u>|<t>a<fa>1</f>b</t>|<t><fa>1</f></t>",
        "<t></t></t>|<t><fa>1</t>|<t></t></u>|<t>x",
    ),
    (
        "once in a tag",
        tag("<t>", triggered(stop_after_first=True), "</t>"),
        "<t>ab</t>|<t>a<fa>1</f></t>",
        "<t>a<fa>1</f>b</t>",
    ),
    (
        "reasoning first",
        {"type": "sequence", "elements": [tag("", ANY, "</think>"), triggered()]},
        "</think>|hm <fx</think>ok<fa>1</f>|hm</think>x</think>",
        "hm|</think><f|",
    ),
    (
        "text before a constant",
        {"type": "sequence", "elements": [ANY, text("END")]},
        "END|xEND|ENDEND",
        "|xENDy|EN",
    ),
    (
        "last element of a tag",
        tag("[", {"type": "sequence", "elements": [text("a"), ANY]}, "]"),
        "[a]|[ab]",
        "[]|[a]]|[b]",
    ),
    (
        "optional text in a tag",
        tag("[", {"type": "optional", "content": ANY}, "]"),
        "[]|[ab]",
        "[]]|[",
    ),
    (
        "or",
        {"type": "or", "elements": [text("a"), INTEGER, {"type": "regex", "pattern": "[xy]{2}"}]},
        "a|7|xy",
        "|aa|x|10",
    ),
    ("star", {"type": "star", "content": text("ab")}, "|ab|abab", "a|aba"),
    ("plus", {"type": "plus", "content": text("ab")}, "ab|abab", "|a"),
    ("star of nothing", {"type": "star", "content": {"type": "star", "content": ANY}}, "|a|ab", ""),
    ("repeat", {"type": "repeat", "min": 2, "max": 3, "content": INTEGER}, "12|123", "1|1234"),
    (
        "repeat without end",
        {"type": "repeat", "min": 1, "max": -1, "content": text("a")},
        "a|aa",
        "|b",
    ),
    (
        "separated",
        {
            "type": "tags_with_separator",
            "tags": [tag("<a>", text("1"), "</a>"), tag("<b>", ANY, "</b>")],
            "separator": ",",
        },
        "|<a>1</a>|<a>1</a>,<b>x,</b>,<a>1</a>",
        "<a>1</a>,|,|<a>1</a><a>1</a>|x",
    ),
    (
        "separated once",
        {
            "type": "tags_with_separator",
            "tags": [{"begin": "<a>", "content": text("1"), "end": ""}],
            "separator": ",",
            "at_least_one": True,
            "stop_after_first": True,
        },
        "<a>1",
        "|<a>1,<a>1",
    ),
    (
        "dispatch",
        {"type": "dispatch", "rules": [["@", INTEGER], ["#", text("x")]]},
        "|a@1b#x|@1@2",
        "@|@x|#1",
    ),
    (
        "dispatch once",
        {"type": "dispatch", "rules": [["@", INTEGER]], "loop": False, "excludes": ["!"]},
        "a|a@1",
        "a@1b|!",
    ),
    ("bounded text", {"type": "any_text", "max_chars": 2}, "|é|éé", "ééé"),
    (
        "bounded text in a tag",
        tag("<", {"type": "any_text", "max_chars": 2, "excludes": ["q"]}, [">", "/>"]),
        "<>|<éé>|<a/>|<éé/>",
        "<ééé>|<q>|<ééé/>",
    ),
    (
        "grammars",
        {
            "type": "sequence",
            "elements": [
                {"type": "grammar", "grammar": 'root ::= "a" root | "b"'},
                {"type": "grammar", "grammar": 'start: start "c" | "d"', "syntax": "lark"},
            ],
        },
        "abd|aabdcc",
        "ab|bc",
    ),
    (
        "triggers that end alike",
        {
            "type": "dispatch",
            "rules": [["ab", text("1")], ["b", text("2")]],
        },
        "ab1|ab2|b2|xb2ab1",
        "b1|ab|b",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_formats(case: tuple[str, dict[str, Any], str, str]) -> None:
    _, spec, good, bad = case
    wrapped = json.dumps({"type": "structural_tag", "format": spec})
    language = lower_structural_tag(wrapped)
    grammars = [compiler.compile_structural_tag(wrapped) for compiler in COMPILERS.values()]
    for accepted in good.split("|"):
        assert accepts(language, accepted), accepted
        for grammar in grammars:
            matcher = GrammarMatcher(grammar)
            assert matcher.accept_string(accepted), accepted
            assert matcher.is_completed(), accepted
    for refused in bad.split("|") if bad else ():
        assert not accepts(language, refused), refused
        for grammar in grammars:
            matcher = GrammarMatcher(grammar)
            assert not (matcher.accept_string(refused) and matcher.is_completed()), refused


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_masks_equal_byte_steps(case: tuple[str, dict[str, Any], str, str]) -> None:
    for compiler in COMPILERS.values():
        assert_exact(
            compiler.compile_structural_tag({"format": case[1], "type": "structural_tag"}), texts=4
        )


def test_the_older_form() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    spec = {
        "structures": [
            {"begin": "<function=f>", "schema": schema, "end": "</function>"},
            {"begin": "<function=g>", "schema": json.dumps(schema), "end": "</function>"},
        ],
        "triggers": ["<function="],
    }
    for value in (spec, {"type": "structural_tag", **spec}):
        language = lower_structural_tag(json.dumps(value))
        assert accepts(
            language, 'Sure. <function=f>{"a": 1}</function> and <function=g>{"a":2}</function>.'
        )
        assert accepts(language, "I will not call <function")
        assert not accepts(language, '<function=h>{"a": 1}</function>')
        assert not accepts(language, "<function=f>{}</function>")


def test_a_trigger_may_be_split_over_tokens_in_every_way() -> None:
    grammar = COMPILERS["byte_level"].compile_structural_tag(
        {
            "type": "triggered_tags",
            "triggers": ['"name":'],
            "tags": [tag('"name":"abc', {"type": "regex", "pattern": "é+"}, '"}')],
        }
    )
    whole = 'aé日"name":"abcéé"}é'
    vocabulary = grammar.vocabulary
    by_text: dict[bytes, int] = {}
    for token, data in enumerate(vocabulary.token_bytes):
        if data:
            by_text.setdefault(data, token)
    data = whole.encode()
    ways = {0: [()]}
    for start in range(len(data)):
        for end in range(start + 1, len(data) + 1):
            token = by_text.get(data[start:end])
            if token is not None:
                kept = [(*way, token) for way in ways.get(start, [])]
                ways.setdefault(end, []).extend(kept[:6])
    splits = ways[len(data)]
    assert len(splits) > 5
    for split in splits:
        matcher = GrammarMatcher(grammar)
        assert all(matcher.accept_token(token) for token in split)
        assert matcher.is_completed()


def test_free_text_equals_a_regex() -> None:
    for keywords, excludes in [
        (("ab", "ba"), ()),
        (("aab", "bb"), ("aaa",)),
        (("abab",), ("bab b",)),
    ]:
        for last in (None, *keywords):
            automaton = free_text(keywords, last, excludes)
            for length in range(7):
                for letters in itertools.product("abc", repeat=length):
                    word = "".join(letters)
                    first = re.search("|".join(keywords), word)
                    expected = not any(exclude in word for exclude in excludes)
                    if last is None:
                        expected &= first is None
                    else:
                        ends = [
                            m.start() + len(k)
                            for k in keywords
                            for m in re.finditer(f"(?={k})", word)
                        ]
                        expected &= word.endswith(last) and min(ends) == len(word)
                    assert automaton.matches(word) == expected, (keywords, last, word)


REFUSED: list[tuple[Any, str]] = [
    ([], "expected an object"),
    ({"type": "structural_tag"}, "'format' is missing"),
    ({"type": "nothing"}, "unknown type 'nothing'"),
    ({"type": "token", "token": 5}, "token ids"),
    ({"type": "any_tokens"}, "token ids"),
    (tag("<a>", {"type": "token_triggered_tags"}, "b"), "at 'content'"),
    ({"type": "tag", "begin": {"type": "token", "token": 5}, "content": ANY, "end": ""}, "'begin'"),
    ({"type": "any_text", "max_tokens": 5}, "'max_tokens' is not supported"),
    ({"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}, "style 'qwen_xml'"),
    ({"type": "json_schema", "json_schema": {}, "excludes": ["a"]}, "'excludes' is not supported"),
    ({"type": "json_schema", "json_schema": {}, "separators": [","]}, "at '.': separators="),
    ({"type": "json_schema", "json_schema": {}, "separators": [",", ":x"]}, "a comma and a colon"),
    ({"type": "sequence", "elements": []}, "at least one item"),
    ({"type": "repeat", "min": 3, "max": 2, "content": ANY}, "impossible"),
    ({"type": "repeat", "min": True, "max": 2, "content": ANY}, "not an integer"),
    (triggered(triggers=["<f", "<fa"]), "several triggers"),
    (triggered(triggers=["<fa"]), "none of the triggers"),
    (triggered(triggers=["<f", "x"]), "no tag begins with the trigger 'x'"),
    (triggered(excludes=["f"]), "'<f' contains 'f'"),
    (triggered(at_least_one="yes"), "not true or false"),
    (tag("<t>", triggered(), "<fz>"), "contains '<f'"),
    (triggered(tags=[text("a")]), "expected a tag"),
    ({"type": "const_string", "value": "\ud800"}, "not a text"),
    ({"structures": [{"begin": "<a>", "end": ""}], "triggers": ["<"]}, "structures[0]"),
    ({"structures": [], "triggers": ["<"]}, "at least one item"),
    ({"type": "grammar", "grammar": "root ::= a"}, "'a' is not defined"),
    ({"type": "regex", "pattern": "a("}, "a("),
]


@pytest.mark.parametrize(("spec", "message"), REFUSED)
def test_refusals_say_where(spec: Any, message: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        lower_structural_tag(json.dumps(spec))
    assert message in str(caught.value)


def test_malformed_and_deep_json_is_refused() -> None:
    for spec in ("", "{", "1", "null", '{"type": 1}'):
        with pytest.raises(InvalidGrammar):
            lower_structural_tag(spec)
    deep: dict[str, Any] = ANY
    for _ in range(200):
        deep = {"type": "star", "content": deep}
    with pytest.raises(GrammarTooComplex):
        lower_structural_tag(json.dumps(deep))
    with pytest.raises(GrammarTooComplex):
        lower_structural_tag("[" * 100_000)


def test_many_tools_in_one_tag() -> None:
    """xgrammar#680: 128 schemas in one structural tag."""
    tags = []
    for number in range(128):
        properties = {f"p{i}_{number}": {"type": ["string", "integer"][i % 2]} for i in range(8)}
        schema = {"type": "object", "properties": properties, "required": [f"p0_{number}"]}
        content = {"type": "json_schema", "json_schema": schema}
        tags.append(tag(f"<function=tool_{number}>", content, "</function>"))
    spec = {"type": "triggered_tags", "triggers": ["<function="], "tags": tags}
    grammar = COMPILERS["byte_level"].compile_structural_tag(spec)
    matcher = GrammarMatcher(grammar)
    assert matcher.accept_string(
        'ok <function=tool_127>{"p0_127": "x", "p1_127": 5}</function> done'
    )
    assert matcher.is_completed()
    matcher.reset()
    assert not matcher.accept_string('<function=tool_127>{"p0_126": "x"')


def test_structural_tags_pickle() -> None:
    spec = {"type": "structural_tag", "format": tag("<t>", triggered(excludes=["!"]), "</t>")}
    grammar = pickle.loads(pickle.dumps(COMPILERS["byte_level"].compile_structural_tag(spec)))
    matcher = GrammarMatcher(grammar)
    assert matcher.accept_string("<t>a<fa>1</f>b</t>")
    assert matcher.is_completed()
