"""The mask of a state equals trying every token byte by byte, EOS included: no difference."""

from __future__ import annotations

import pytest

from sglang_lite.constrained import CompiledGrammar, GrammarCompiler, ir
from sglang_lite.constrained.automaton import words
from sglang_lite.constrained.byte_dfa import text_dfa
from sglang_lite.constrained.json_string import (
    json_char,
    json_key,
    json_string,
    key_dfa,
    whitespace,
)
from sglang_lite.constrained.regex import search
from tests.constrained.core_reference import assert_exact
from tests.constrained.core_vocabularies import ALL

GAP = ir.terminal(whitespace(3))
TEXT = ir.terminal(json_string())
FEW = key_dfa(words(("p", "pq")))
COMMA = ir.sequence(GAP, ir.literal(","), GAP)


def obj(*args: object, **options: object) -> ir.Node:
    return ir.object_(
        *args,  # type: ignore[arg-type]
        open=ir.sequence(ir.literal("{"), GAP),
        colon=ir.sequence(GAP, ir.literal(":"), GAP),
        comma=COMMA,
        close=ir.sequence(GAP, ir.literal("}")),
        **options,  # type: ignore[arg-type]
    )


MEMBERS = [
    ir.Member(b'"name"', TEXT, True),
    ir.Member(b'"age"', ir.literals(["1", "12", "true"])),
    ir.Member(b'"ab"', ir.counted(json_char(), 1, 3)),
    ir.Member(b'"na"', ir.NEVER),
]
ABC = [ir.Member(f'"{name}"'.encode(), ir.literal("1")) for name in "abc"]
CHAIN = [ir.Clause((1,), (0,)), ir.Clause((), (1, 2))]
CLASSES = [ir.Kind(ir.literal("true"), 1, 2), ir.Kind(TEXT)]


def objects(order: str) -> dict[str, ir.Node]:
    return {
        "open": obj(MEMBERS, [ir.Extra(json_key(), TEXT)], order=order),
        "closed": obj(MEMBERS, order=order),
        "bounded": obj(
            MEMBERS[1:3],
            [ir.Extra(json_key(), ir.literals(["1", "null"]))],
            order=order,
            minimum=3,
            maximum=4,
        ),
        "clauses": obj(ABC, order=order, clauses=CHAIN, minimum=1),
        "needed": obj(
            ABC[:1],
            [ir.Extra(json_key(), TEXT), ir.Extra(json_key(), ir.literal("2"), needed=True)],
            order=order,
            maximum=3,
        ),
        "needed, two": obj(
            [],
            [
                ir.Extra(json_key(), TEXT),
                ir.Extra(json_key(), ir.literal("2"), needed=True),
                ir.Extra(key_dfa(search("^a")), ir.literal("3"), needed=True),
            ],
            order=order,
            maximum=3,
        ),
        "needed, of few": obj(
            [],
            [ir.Extra(FEW, TEXT), ir.Extra(FEW, ir.literal("2"), needed=True)],
            order=order,
        ),
    }


LANGUAGES: dict[str, ir.Node] = {
    **{f"{name}, {o} order": node for o in ("schema", "any") for name, node in objects(o).items()},
    "array": ir.sequence(
        ir.literal("["),
        ir.repeat(ir.counted(json_char(), 2), 2, 4, COMMA, head=[ir.literals(["1", "12"])]),
        ir.literal("]"),
    ),
    "kinds": ir.sequence(
        ir.literal("["), ir.repeat_kinds(CLASSES, 1, 5, ir.literal(",")), ir.literal("]")
    ),
    "counted, bare": ir.counted(json_char(), 2, 5, open=b"", close=b""),
    "counted, from places below places": ir.sequence(
        ir.terminal(text_dfa(words(("a", "aa")))),
        ir.counted(json_char(), 1, 2, open=b"", close=b'"'),
    ),
    "counted, long close": ir.counted(json_char(), 0, 2, open=b"<<", close=b'":"'),
    "union": ir.union(
        ir.sequence(ir.literal("{a"), TEXT),
        ir.sequence(ir.literal("{a"), TEXT, ir.literal("x")),
        obj(MEMBERS[:1]),
        obj(MEMBERS[1:2]),
    ),
    "optional": ir.sequence(ir.optional(TEXT), ir.literal("x"), ir.optional(ir.literal("aa"))),
}


@pytest.mark.parametrize("vocabulary", ALL)
@pytest.mark.parametrize("name", LANGUAGES)
def test_ir(name: str, vocabulary: str) -> None:
    grammar = CompiledGrammar(ALL[vocabulary](), ir.Language(LANGUAGES[name]))
    assert assert_exact(grammar, texts=8) >= 4


NESTED = {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}
SCHEMAS = [
    True,
    {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}},
    {"properties": {"a": {"type": "integer"}}, "required": ["a", "zz"]},
    {
        "type": "object",
        "patternProperties": {"^a": {"type": "null"}},
        "additionalProperties": {"type": "boolean"},
    },
    {
        "type": "object",
        "minProperties": 2,
        "maxProperties": 3,
        "additionalProperties": {"const": 1},
    },
    {"type": "object", "not": {"patternProperties": {"a$": {"type": "string"}}}},
    {"type": "string", "pattern": "^[a-c]+(me|\\d{2})$"},
    {"type": "string", "pattern": "ba[rz]"},
    {"type": "string", "maxLength": 4},
    {"enum": ["foo", "foobar", 12, 1, None, ["a", 1], {"a": "b"}]},
    {"type": "array", "contains": {"const": 1}, "minContains": 2, "maxItems": 4},
    {"type": "number", "minimum": -3, "maximum": 20.5},
    NESTED,
    {"anyOf": [{"type": "object", "required": ["a"]}, {"type": "array", "maxItems": 2}]},
]


@pytest.mark.parametrize("order", ["schema", "any"])
@pytest.mark.parametrize("vocabulary", ALL)
@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_json_schema(schema: dict[str, object] | bool, vocabulary: str, order: str) -> None:
    compiler = GrammarCompiler(ALL[vocabulary]())
    grammar = compiler.compile_json_schema(schema, property_order=order, max_whitespace=2)
    assert assert_exact(grammar, texts=8) >= 2


PATTERNS = [
    "[a-z]+",
    "(foo|bar)*x?",
    ".*",
    "a{2,7}b",
    "[^a]{3}",
    "\u00e9+|日本?",
    "(\\d+,)*\\d+",
    "(?i)name: [a-c ]{1,20}",
]


@pytest.mark.parametrize("vocabulary", ALL)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_regex(pattern: str, vocabulary: str) -> None:
    grammar = GrammarCompiler(ALL[vocabulary]()).compile_regex(pattern)
    assert assert_exact(grammar, texts=8) >= 2
