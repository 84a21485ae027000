"""Whatever is thrown at the front ends: a grammar or a ConstraintError, nothing else, and soon.

Each compiled grammar is walked a little, so that what is made lazily is made, too.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sglang_lite.constrained import CompiledGrammar, GrammarCompiler, GrammarMatcher
from sglang_lite.constrained.compiled import Limits
from sglang_lite.errors import ConstraintError, InvalidRequest
from tests.constrained.core_reference import allowed_by_mask
from tests.constrained.core_vocabularies import byte_level
from tests.constrained.test_grammar_ebnf import CASES as EBNF
from tests.constrained.test_grammar_lark import TEXTS as LARK
from tests.constrained.test_structural_tag import CASES as TAGS

COMPILER = GrammarCompiler(byte_level(), Limits(seconds=5, cache_bytes=1 << 20))
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def compile_and_walk(compile: Callable[[], CompiledGrammar]) -> None:
    """Compile, and draw a few tokens from the masks; only the errors we promise may come out."""
    with contextlib.suppress(ConstraintError, InvalidRequest):
        grammar = compile()
        draw = random.Random(0)
        matcher = GrammarMatcher(grammar)
        for _ in range(6):
            allowed = sorted(allowed_by_mask(grammar, matcher._state))
            assert allowed, "an empty mask"
            assert matcher.accept_token(draw.choice(allowed))
            if matcher.is_terminated():
                return


def damage(value: Any, draw: random.Random) -> Any:
    """``value`` with some part of it replaced, dropped or doubled."""
    if draw.random() < 0.15:
        return draw.choice([None, True, -1, 2**70, "", "<", "\ud800", [], {}, [value, value]])
    if isinstance(value, dict):
        items = [(key, damage(inner, draw)) for key, inner in value.items()]
        return dict(draw.sample(items, len(items) - (bool(items) and draw.random() < 0.1)))
    if isinstance(value, list):
        return [damage(inner, draw) for inner in value]
    return value


REGEX_PARTS = [
    *"ab01éß日 .^$|()[]{}*+?\\-,",
    *(
        "\\d",
        "\\w",
        "\\S",
        "\\b",
        "\\B",
        "\\1",
        "\\p{L}",
        "\\x41",
        "\\u00e9",
        "\\N",
        "\\Z",
        "\\k<a>",
    ),
    *("[a-z]", "[^a]", "[^", "[]", "[\\d-x]", "[[:alpha:]]", "(?:", "(?=", "(?!", "(?<=", "(?<!"),
    *("(?i)", "(?x: #", "(?P<n>", "(?P=n)", "(?>", "(?(1)", "*?", "++", "{2}", "{3,}", "{,4}"),
    *("{9999999999}", "{2,1}", "a{1000}", "(a|b)*", "\n", "\x00", "\ud800", "\U0001f600"),
]


REGEX_ATOMS = [part for part in REGEX_PARTS if len(part) > 1 and part[0] in "\\[a" and part != "[^"]
REGEXES = st.recursive(
    st.sampled_from([*"abc1é.^$", *REGEX_ATOMS]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(st.sampled_from(["(", "(?=", "(?!", "(?<=", "(?<!", "(?i:", "(?>"]), inner).map(
            lambda pair: f"{pair[0]}{pair[1]})"
        ),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "{2,3}", "{0}", "++"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=8,
)


@FUZZ
@given(REGEXES | st.lists(st.sampled_from(REGEX_PARTS), max_size=14).map("".join))
@example("(a|b)*a(a|b){60}c")
@example("((a{1,100}){1,100}){1,100}")
@example("(?=a*b)(?=.*c)(?!.*d)[a-d]{3,400}")
def test_regexes(pattern: str) -> None:
    compile_and_walk(lambda: COMPILER.compile_regex(pattern))


ANY_VALUE = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([1e308, 0.1, -0.0, 2.0, 2, -1, 10**30, 10**400]),
    st.sampled_from(["", "a", "é", "\ud800", "\x00", "("]),
    st.just([]),
    st.just({"a": [1]}),
)
COUNT = st.integers(0, 3) | st.sampled_from([2.0, 10**6, 10**40])
NUMBER = st.integers(-5, 5) | st.sampled_from([0.5, -0.1, 1e300, 10**25, 2.5])
TYPE = st.sampled_from(["string", "integer", "number", "object", "array", "null", "boolean"])
NAME = st.sampled_from(["a", "b", "é", "$ref", ""])
PATTERN = st.sampled_from(["^a", "b$", "[a-z]{2,5}", "^(?!a)", "a|^b", "\\d", "(", "^\\S*$"])
FORMAT = st.sampled_from(["date", "uuid", "email", "ipv6", "uri", "time", "duration", "regex", "x"])
REF = st.sampled_from(["#", "#/$defs/a", "#/properties/a", "#a", "http://x/y", "#/nowhere", "a"])
DRAFT = st.sampled_from(
    ["http://json-schema.org/draft-04/schema#", "https://json-schema.org/draft/2019-09/schema", "x"]
)


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas with ``inner`` ones below them; every value fits its keyword."""
    some = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(NAME, inner, max_size=3)
    names = st.lists(NAME, max_size=2, unique=True)
    values: dict[str, st.SearchStrategy[Any]] = {
        "type": TYPE | st.lists(TYPE, min_size=1, max_size=3, unique=True),
        "enum": st.lists(ANY_VALUE, min_size=1, max_size=4),
        "const": ANY_VALUE,
        "required": names,
        "pattern": PATTERN,
        "format": FORMAT,
        "patternProperties": st.dictionaries(PATTERN, inner, max_size=2),
        "dependentRequired": st.dictionaries(NAME, names, max_size=2),
        "dependencies": st.dictionaries(NAME, inner | names, max_size=2),
        "uniqueItems": st.booleans(),
        "multipleOf": st.sampled_from([1, 2, 3, 0.5, 0.01, 7.5, 10**20]),
        "$ref": REF,
        "$schema": DRAFT,
        "$anchor": st.just("a"),
    }
    for keyword in ("properties", "dependentSchemas", "$defs"):
        values[keyword] = named
    for keyword in ("prefixItems", "anyOf", "oneOf", "allOf"):
        values[keyword] = some
    for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        values[keyword] = NUMBER
    for end in ("Properties", "Items", "Length", "Contains"):
        values[f"min{end}"] = values[f"max{end}"] = COUNT
    for keyword in ("items", "additionalProperties", "propertyNames", "contains", "not"):
        values[keyword] = inner
    for keyword in ("if", "then", "else", "unevaluatedProperties", "unevaluatedItems"):
        values[keyword] = inner
    keywords = st.lists(st.sampled_from(sorted(values)), max_size=5, unique=True)
    return keywords.flatmap(lambda names: st.fixed_dictionaries({n: values[n] for n in names}))


SCHEMAS = st.recursive(st.booleans() | st.just({}), schemas, max_leaves=6)


@FUZZ
@given(SCHEMAS, st.sampled_from(["schema", "any"]), st.sampled_from(["error", "warn"]))
def test_schemas(schema: Any, order: Any, on_unsupported: Any) -> None:
    compile_and_walk(
        lambda: COMPILER.compile_json_schema(
            schema, property_order=order, on_unsupported=on_unsupported
        )
    )


@FUZZ
@given(SCHEMAS, st.integers(0))
def test_damaged_schemas(schema: Any, seed: int) -> None:
    damaged = damage(schema, random.Random(seed))
    compile_and_walk(lambda: COMPILER.compile_json_schema(damaged))


@FUZZ
@given(st.text(alphabet='{}[]":,\\ue0trfn1-.', max_size=30))
def test_schema_texts(text: str) -> None:
    compile_and_walk(lambda: COMPILER.compile_json_schema(text))


GRAMMAR_PARTS = {
    "ebnf": [
        *("root", "a", "b-1", " ::= ", "\n", " | ", "(", ")", "[a-z]", "[^\\n]", "[", "]", '"x"'),
        *(
            '"\\u00e9"',
            '"',
            "*",
            "+",
            "?",
            "{2}",
            "{1,}",
            "{,3}",
            "{3,1}",
            ".",
            "# c\n",
            "\\",
            "<t>",
        ),
        *("root ::= a b-1\n", 'a ::= a "x" | b-1\n', "b-1 ::= root?\n", "[\\x00-\\U0010ffff]", "é"),
    ],
    "lark": [
        *(
            "start",
            "a",
            "b",
            "A",
            "B",
            ": ",
            "\n",
            " | ",
            "(",
            ")",
            "[",
            "]",
            '"x"',
            '"y"i',
            "/z+/",
        ),
        *("/a*?b/", "/(/", "/", '"', "*", "+", "?", "~2", "~1..3", "~3..1", "->", "a{b}", "{", "}"),
        *(
            "%ignore A\n",
            "%import common.WS\n",
            "%import .x\n",
            "%declare A\n",
            "%json {}",
            "%json",
        ),
        *(
            '%regex {"substring_chars": "abc"}',
            "%override a: b\n",
            ".2",
            '"a".."c"',
            "..",
            "// c\n",
        ),
        *("start: a B\n", 'a: a "x" | b?\n', "b: start a?\n", "A: B+\n", "B: /[b-d]/ A?\n", "é"),
    ],
}


@FUZZ
@given(st.data(), st.sampled_from(["ebnf", "lark"]))
def test_grammar_soup(data: st.DataObject, syntax: Any) -> None:
    parts = data.draw(st.lists(st.sampled_from(GRAMMAR_PARTS[syntax]), max_size=16))
    compile_and_walk(lambda: COMPILER.compile_grammar("".join(parts), syntax))


def bodies(atoms: list[str]) -> st.SearchStrategy[str]:
    """Right-hand sides over ``atoms``."""
    return st.recursive(
        st.sampled_from(atoms),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(" ".join),
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({' | '.join(parts)})"),
            st.tuples(inner, st.sampled_from("*+?")).map(lambda pair: f"({pair[0]}){pair[1]}"),
        ),
        max_leaves=6,
    )


EBNF_BODY = bodies(["root", "a", "b", '"x"', '"y"', "[a-c]", '"é"{2,3}', '""', "."])
LARK_BODY = bodies(["start", "a", "b", '"x"', "A", "B", "/[a-c]+?d/", "t{a}", "t{A}", '["y"]'])
LARK_TERMINAL = bodies(['"x"', "/[a-c]/", "B", "/é*/", '"q"i'])
LARK_END = 't{x}: x | "(" t{x} ")"\nB: "b" | /c+/\n'


@FUZZ
@given(EBNF_BODY, EBNF_BODY, EBNF_BODY)
def test_ebnf_grammars(root: str, a: str, b: str) -> None:
    text = f"root ::= {root}\na ::= {a}\nb ::= {b}"
    compile_and_walk(lambda: COMPILER.compile_grammar(text))


@FUZZ
@given(LARK_BODY, LARK_BODY, LARK_BODY, LARK_TERMINAL, st.sampled_from(["", "%ignore A\n"]))
def test_lark_grammars(start: str, a: str, b: str, terminal: str, ignore: str) -> None:
    text = f"start: {start}\na: {a}\nb: {b}\nA: {terminal}\n{ignore}{LARK_END}"
    compile_and_walk(lambda: COMPILER.compile_grammar(text, "lark"))


GOOD_GRAMMARS = [("ebnf", case[0]) for case in EBNF.values()]
GOOD_GRAMMARS += [("lark", case[0]) for case in LARK.values()]


@pytest.mark.parametrize("which", range(len(GOOD_GRAMMARS)))
def test_damaged_grammars(which: int) -> None:
    syntax, text = GOOD_GRAMMARS[which]
    draw = random.Random(which)
    for _ in range(15):
        start = draw.randrange(len(text))
        end = start + draw.randrange(12)
        middle = draw.choice(["", "é", '"', "(", "|", "::=", "/", text[end : end + 9]])
        damaged = text[:start] + middle + text[end:]
        compile_and_walk(lambda: COMPILER.compile_grammar(damaged, syntax))  # type: ignore[arg-type]  # noqa: B023


@pytest.mark.parametrize("which", range(len(TAGS)))
def test_damaged_structural_tags(which: int) -> None:
    draw = random.Random(which)
    for _ in range(15):
        spec = json.dumps(damage({"type": "structural_tag", "format": TAGS[which][1]}, draw))
        compile_and_walk(lambda: COMPILER.compile_structural_tag(spec))  # noqa: B023


@FUZZ
@given(st.lists(st.text(max_size=5), max_size=6))
def test_choices(choices: list[str]) -> None:
    compile_and_walk(lambda: COMPILER.compile_choice(choices))
