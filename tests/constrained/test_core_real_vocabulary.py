"""Exactness over a real vocabulary: the default model's, byte-level BPE with 49k tokens."""

from __future__ import annotations

import pytest

from sglang_lite.constrained import GrammarCompiler, GrammarMatcher, Vocabulary
from tests.constrained.core_reference import assert_exact, assert_exact_along

pytestmark = pytest.mark.model

SCHEMAS = [
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "date": {"type": "string", "format": "date"},
            "code": {"type": "string", "pattern": "^[a-z]+-[0-9a-f]{4,}ing$"},
            "note": {"type": "string", "pattern": "(\\S+\\s){0,5}x"},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        },
        "required": ["name", "code"],
    },
    {
        "type": "object",
        "properties": {
            "few": {"type": "string", "pattern": "^(\\S+\\s+){0,9}\\S+$", "maxLength": 40},
            "many": {"type": "string", "pattern": "^(\\S+\\s+){0,49}\\S+$", "maxLength": 60},
        },
        "required": ["few", "many"],
    },
    {"type": "array", "items": {"type": ["number", "null"], "minimum": -1}, "minItems": 2},
]

TEXTS = [
    '{"name": "Zoë \\n", "date": "2024-02-29", "code": "ab-12efing", "note": "a b x", '
    '"tags": ["red", "blue"]}',
    '{"few": "a b c d e f g h i j", "many": "one two three four, five six é seven \\n eight ni"}',
    "[null, -0.5, 12e3, 7]",
]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    from sglang_lite.errors import ModelNotFound
    from sglang_lite.runtime.default_model import default_model_path
    from sglang_lite.runtime.tokenizer import Tokenizer

    try:
        return Tokenizer.from_pretrained(default_model_path()).vocabulary
    except ModelNotFound as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("order", ["schema", "any"])
@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_json_schema(vocabulary: Vocabulary, number: int, order: str) -> None:
    compiler = GrammarCompiler(vocabulary)
    grammar = compiler.compile_json_schema(SCHEMAS[number], property_order=order)
    assert_exact(grammar, seed=number, texts=3, length=12)
    assert assert_exact_along(grammar, TEXTS[number]) >= 10


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("[A-Z][a-z]+( [A-Z][a-z]+)*", "Ada Lovelace"),
        ("[^:]+://[^/ ]+/.*", "https://example.org/a b"),
        ("日本?語+", "日本語語"),
    ],
)
def test_regex(vocabulary: Vocabulary, pattern: str, text: str) -> None:
    grammar = GrammarCompiler(vocabulary).compile_regex(pattern)
    assert_exact(grammar, texts=3, length=8)
    assert assert_exact_along(grammar, text) >= 3


def test_forced_tokens_are_the_tokenizers(vocabulary: Vocabulary) -> None:
    grammar = GrammarCompiler(vocabulary).compile_regex('\\{"first_name": "[a-z]+"\\}')
    matcher = GrammarMatcher(grammar)
    assert matcher.find_jump_forward_string() == '{"first_name": "'
    forced = matcher.find_forced_tokens()
    assert vocabulary.encode is not None
    own = list(vocabulary.encode('{"first_name": "ab"}'))
    assert len(forced) >= 3
    assert own[: len(forced)] == forced
    for token in forced:
        assert matcher.accept_token(token)
