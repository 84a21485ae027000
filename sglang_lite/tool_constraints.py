"""Constraints for tool calls, as plain values.

Each call's arguments are constrained by the tool's own schema, compiled on its own, so that a
``$ref`` in it keeps its meaning; what stands around the arguments is fixed text, which is forced
and costs no sampling.  The styles differ in that fixed text only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_lite.constraint import JsonSchema, StructuralTag
from sglang_lite.errors import InvalidRequest

NO_ARGUMENTS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}
"""The schema of a tool that declares no parameters."""


@dataclass(frozen=True)
class Tool:
    """A tool's name and the JSON Schema of its arguments (None: it takes none).

    ``layout``: options of the structural tag's ``json_schema`` format, such as ``max_digits``.
    """

    name: str
    parameters: Mapping[str, Any] | bool | None = None
    layout: Mapping[str, Any] = field(default_factory=dict)

    @property
    def schema(self) -> Mapping[str, Any] | bool:
        """The schema of the arguments."""
        return NO_ARGUMENTS if self.parameters is None else self.parameters


@dataclass(frozen=True)
class CallStyle:
    """How a model writes a call: ``begin`` {"name": …, ``arguments``: …} ``end``."""

    begin: str
    end: str
    arguments: str = "arguments"
    separator: str = "\n"

    def opening(self, name: str) -> str:
        """What stands before the arguments of a call of the tool ``name``."""
        quoted = json.dumps(name, ensure_ascii=False)
        return f'{self.begin}{{"name": {quoted}, "{self.arguments}": '

    @property
    def closing(self) -> str:
        """What stands after them."""
        return "}" + self.end

    def tag(self, tool: Tool) -> dict[str, Any]:
        """The call of ``tool`` as a structural tag's tag."""
        content = {"type": "json_schema", "json_schema": tool.schema, **tool.layout}
        begin = self.opening(tool.name)
        return {"type": "tag", "begin": begin, "content": content, "end": self.closing}


HERMES = CallStyle("<tool_call>\n", "\n</tool_call>")
"""Hermes and Qwen: a JSON object between ``<tool_call>`` tags."""

LLAMA_JSON = CallStyle("", "", "parameters", "; ")
"""Llama 3: a JSON object alone."""


def named_call(tool: Tool) -> JsonSchema:
    """The arguments of one certain tool, without anything around them."""
    return JsonSchema.of(tool.schema)


def required_calls(
    tools: Sequence[Tool],
    *,
    parallel: bool = True,
    style: CallStyle | None = None,
    otherwise: Mapping[str, Any] | None = None,
) -> StructuralTag:
    """One call or (``parallel``) several, and nothing else.

    Without ``style`` it is a JSON array of {"name", "parameters"}, which any model can write.
    ``otherwise`` is a structural tag's format that the text may match instead.
    Raises :class:`InvalidRequest` where there is no tool, or two have the same name.
    """
    _check(tools)
    inner = style or CallStyle("", "", "parameters", ", ")
    calls = {
        "type": "tags_with_separator",
        "tags": [inner.tag(tool) for tool in tools],
        "separator": inner.separator,
        "at_least_one": True,
        "stop_after_first": not parallel,
    }
    if style is None:
        left, right = ({"type": "const_string", "value": bracket} for bracket in "[]")
        calls = {"type": "sequence", "elements": [left, calls, right]}
    if otherwise is not None:
        calls = {"type": "or", "elements": [dict(otherwise), calls]}
    return _structural_tag(calls)


def optional_calls(
    tools: Sequence[Tool], *, parallel: bool = True, style: CallStyle = HERMES
) -> StructuralTag:
    """Free text in which calls may stand (``tool_choice`` "auto").

    Unless ``parallel``, the text ends with the first call.  Raises :class:`InvalidRequest` where
    there is no tool, or two have the same name.
    """
    _check(tools)
    trigger = style.begin.strip() or '{"name": '
    return _structural_tag(
        {
            "type": "triggered_tags",
            "triggers": [trigger],
            "tags": [style.tag(tool) for tool in tools],
            "stop_after_first": not parallel,
        }
    )


def _structural_tag(format: dict[str, Any]) -> StructuralTag:
    return StructuralTag.of({"type": "structural_tag", "format": format})


def _check(tools: Sequence[Tool]) -> None:
    names = [tool.name for tool in tools]
    if not names:
        raise InvalidRequest("tools", [], "at least one tool")
    if len(set(names)) < len(names):
        raise InvalidRequest("tools", names, "tools with different names")
