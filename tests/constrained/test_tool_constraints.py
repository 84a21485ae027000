"""Constraints for tool calls."""

from __future__ import annotations

import pytest

from sglang_lite.constrained import GrammarCompiler, GrammarMatcher
from sglang_lite.constraint import Constraint
from sglang_lite.errors import InvalidRequest
from sglang_lite.tool_constraints import (
    HERMES,
    LLAMA_JSON,
    Tool,
    named_call,
    optional_calls,
    required_calls,
)
from tests.constrained.core_vocabularies import byte_level

COMPILER = GrammarCompiler(byte_level())
TREE = {
    "$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
    "type": "object",
    "properties": {"tree": {"$ref": "#/$defs/node"}},
    "required": ["tree"],
    "additionalProperties": False,
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [Tool("weather", CITY), Tool("grow", TREE), Tool("now")]


def allows(constraint: Constraint, text: str) -> bool:
    matcher = GrammarMatcher(COMPILER.compile(constraint))
    return matcher.accept_string(text) and matcher.is_completed()


def test_named_call_is_its_arguments() -> None:
    assert allows(named_call(TOOLS[0]), '{"city": "Zürich"}')
    assert allows(named_call(TOOLS[2]), "{}")
    assert not allows(named_call(TOOLS[2]), '{"a": 1}')


def test_required_calls_as_an_array() -> None:
    one = '{"name": "weather", "parameters": {"city": "x"}}'
    two = '{"name": "grow", "parameters": {"tree": [[], [[]]]}}'
    three = '{"name": "now", "parameters": {}}'
    several, single = required_calls(TOOLS), required_calls(TOOLS, parallel=False)
    assert allows(several, f"[{one}, {two}, {three}]")
    assert allows(single, f"[{two}]")
    assert not allows(single, f"[{one}, {two}]")
    for wrong in ("[]", one, "Hello", f"[{one}", '[{"name": "other", "parameters": {}}]'):
        assert not allows(several, wrong)
    assert not allows(several, '[{"name": "grow", "parameters": {"tree": [1]}}]')


def test_required_calls_in_a_models_style() -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert allows(required_calls(TOOLS, style=HERMES), call)
    assert allows(required_calls(TOOLS, style=HERMES), f"{call}\n{call}")
    assert not allows(required_calls(TOOLS, style=HERMES), f"Sure: {call}")
    assert allows(required_calls(TOOLS, style=LLAMA_JSON), '{"name": "now", "parameters": {}}')


def test_optional_calls() -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "x"}}\n</tool_call>'
    auto = optional_calls(TOOLS)
    for text in ("", "No call, 1 < 2.", call, f"Sure.\n{call}\n{call} Done."):
        assert allows(auto, text)
    for text in ("<tool_call>", "<tool_call>\n{}\n</tool_call>", call.replace("city", "town")):
        assert not allows(auto, text)
    assert not allows(optional_calls(TOOLS, parallel=False), f"{call} Done.")
    llama = optional_calls(TOOLS, style=LLAMA_JSON)
    assert allows(llama, 'So {"name": "now", "parameters": {}}')
    assert not allows(llama, 'So {"name": "then", "parameters": {}}')


def test_tools_are_checked() -> None:
    for tools in ([], [Tool("a"), Tool("a", CITY)]):
        with pytest.raises(InvalidRequest, match="tools"):
            required_calls(tools)
        with pytest.raises(InvalidRequest, match="tools"):
            optional_calls(tools)
