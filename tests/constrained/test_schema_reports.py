"""Mistakes that other engines made or make on JSON Schemas, with the right answers.

Each case is (where it was reported, schema, texts to accept, texts to refuse).
"""

from __future__ import annotations

import pytest

from tests.constrained.schemas import holds

ANCHORS = {"pattern": "^a|b$"}
LIST_OF_LISTS = {
    "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
    "$ref": "#/$defs/n",
}

CASES = [
    (
        "xgrammar#858",
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "additionalProperties": False,
            "anyOf": [{"required": ["a"]}],
        },
        ['{"a": 1}'],
        ['{"zz": 1}', "{}", '{"a": "x"}'],
    ),
    ("xgrammar#800", {"type": "string", "maxLength": 3}, [r'"a\nb"', r'"\u0041bc"'], [r'"a\nbc"']),
    ("xgrammar#800, raw tab", {"type": "string", "maxLength": 3}, ['"a b"'], ['"a\tb"', '"\t"']),
    (
        "xgrammar#208",
        {"properties": {"a": {"type": "integer"}}, "additionalProperties": True},
        ['{"a": 1}', '{"b": "x"}'],
        ['{"a": "wrong"}', r'{"\u0061": "x"}'],
    ),
    (
        "xgrammar#487",
        {
            "properties": {"x": {"type": "integer"}},
            "patternProperties": {"^p_": {"type": "string"}},
        },
        ['{"x": 1, "p_a": "s"}', '{"p_a": "s"}', '{"other": null}'],
        ['{"p_a": 1}', '{"x": "s"}'],
    ),
    (
        "xgrammar#826",
        {"propertyNames": {"pattern": "^(a|b)$"}, "additionalProperties": {"type": "integer"}},
        ['{"b": 1}', "{}"],
        ['{"a": "s"}', '{"c": 1}'],
    ),
    ("xgrammar#104", {"type": "object", "required": ["a"]}, ['{"a": 1}'], ["{}", '{"b": 1}']),
    (
        "vllm#12201",
        {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
        ["[1, 2]", "[1, 2, 3]"],
        ["[1]", "[1, 2, 3, 4]", "[]", '[1, "2"]'],
    ),
    ("outlines-core#147", {"type": "integer", "minimum": 10}, ["10", "123"], ["5", "9", "-10"]),
    ("imp#1567", {"type": "integer", "minimum": 100}, ["100"], ["50", "99"]),
    ("imp#1729", {"type": "object"}, ['{"a": {"b": [1, null]}}'], ["[]"]),
    ("llama.cpp#25923", {"type": "object", "properties": {}}, ["{}"], []),
    (
        "lattice#310",
        {"properties": {"a": {}, "b": {}}, "required": ["a"]},
        ['{"a": 1}', '{"a": 1, "b": 2}'],
        ['{"a": 1,}', '{, "a": 1}', '{"b": 1}'],
    ),
    (
        "allOf is an intersection",
        {"allOf": [{"type": "integer"}, {"minimum": 5}]},
        ["7"],
        ['"x"', "3"],
    ),
    (
        "llama.cpp#7789",
        {"properties": {"a": {}}, "additionalProperties": {"type": "integer"}},
        ['{"a": "x", "b": 1}'],
        ['{"b": "x"}'],
    ),
    ("xgrammar#662", {"type": "number", "minimum": -4, "maximum": 4}, ["-0.5", "4", "-4"], ["4.1"]),
    ("xgrammar#662, digits", {"type": "number", "minimum": 0}, ["0.12345678"], ["-1"]),
    ("xgrammar#661", {"type": "number", "exclusiveMinimum": 0}, ["0.5"], ["0", "0.0", "-1"]),
    ("xgrammar#661", {"type": "number", "minimum": 2}, ["2", "2.5"], ["1", "1.9"]),
    ("xgrammar#661", {"type": "number", "minimum": 1, "maximum": 5}, ["5", "1.5"], ["5.7", "0.9"]),
    ("xgrammar#661", {"type": "number", "minimum": -5}, ["-3", "-5"], ["-5.5", "-6"]),
    (
        "imp#1104",
        {"type": "number"},
        ["3.5", "1e5", "-2E-3"],
        ["3.5.5", "1e5e5", "1. 1", "01", "+1"],
    ),
    (
        "surrogates",
        {"type": "string"},
        [r'"\ud83d\ude00"', '"😀"'],
        [b'"\xed\xa0\x80"', r'"\ud800"', r'"\ude00"'],
    ),
    (
        "lattice#931",
        {"type": "string"},
        [r'"\\ \" \/ \b\f\n\r\t"'],
        [
            '"\x01"',
            r'"\q"',
            r'"\'"',
            r'"\u12"',
            b'"\xc0\x80"',
            b'"\xe0\x80\x80"',
            b'"\xf0\x80\x80\x80"',
        ],
    ),
    ("imp#1563", {"const": "é"}, ['"é"'], ['"?"', '"e"']),
    (
        "outlines#724",
        {"type": "object", "properties": {"a(b": {"type": "null"}}},
        ['{"a(b": null}'],
        ['{"a(b": 1}'],
    ),
    ("outlines-core#231", {"const": 'a"b\\'}, [r'"a\"b\\"'], ['"a"b\\"']),
    ("outlines-core#189", {"enum": ["a\nb"]}, [r'"a\nb"'], ['"a\nb"']),
    ("search", {"pattern": "foo"}, ['"a foo b"', '"foo"', "1"], ['"fo"']),
    ("anchors per branch", ANCHORS, ['"axx"', '"xb"'], ['"xa"', '"bx"']),
    (
        "look-ahead is not ignored",
        {"type": "string", "pattern": "^(?!x).*$"},
        ['"yz"', '""'],
        ['"xyz"'],
    ),
    ("xgrammar#207", LIST_OF_LISTS, ["[[], [[]]]", "[]"], ["[1]", "[[], 1]"]),
    (
        "siblings of $ref",
        {"$defs": {"i": {"type": "integer"}}, "$ref": "#/$defs/i", "minimum": 5},
        ["5"],
        ["1", '"5"'],
    ),
    (
        "anchors",
        {"$defs": {"i": {"$anchor": "foo", "type": "integer"}}, "$ref": "#foo"},
        ["1"],
        ['"x"'],
    ),
    (
        "llguidance#266",
        {"properties": {"a": {}}},
        ['{"a" : 1}'],
        ['{"a"\u00a0: 1}', '{"a"\u00a0:1}'],
    ),
    (
        "lm-format-enforcer#80",
        {"type": "array", "items": {"type": "integer"}},
        ["[1]"],
        ["[,1]", "[1,]", "[1 2]"],
    ),
    (
        "keywords of objects",
        {"properties": {"a": {"type": "integer"}}},
        ["[]", "1", '"a"'],
        ['{"a": []}'],
    ),
]


@pytest.mark.parametrize(
    ("schema", "accepted", "refused"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_report(schema, accepted, refused):
    assert [text for text in accepted if not holds(schema, text)] == []
    assert [text for text in refused if holds(schema, text)] == []
