"""Tool calls: what the model is told, what it may write, and how that is read back.

A call is ``<tool_call>\\n{"name": "f", "arguments": {…}}\\n</tool_call>``, the form of Hermes and
Qwen.  Templates that know it get the tools themselves; with any other template the tools are
described in the system message.  Either way a structural tag makes every call well formed: one of
the given names, and arguments that satisfy its schema.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sglang_lite.constraint import Constraint, JsonSchema
from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime.server.config import JsonStyle
from sglang_lite.runtime.server.errors import invalid
from sglang_lite.runtime.server.schemas.chat import (
    ChatCompletionRequest,
    FunctionSpec,
    Message,
    NamedToolChoice,
    Tool,
)
from sglang_lite.runtime.server.schemas.constraints import WireConstraint
from sglang_lite.tool_constraints import HERMES, NO_ARGUMENTS, optional_calls, required_calls
from sglang_lite.tool_constraints import Tool as CallTool

OPEN = HERMES.begin.strip()
_END = HERMES.closing
"""Cannot occur inside arguments: a JSON string has no raw newline, and ``<`` is only in strings."""

MAX_TOOLS = 128

_INSTRUCTIONS = """You can call functions. Here is a JSON description of each:
<tools>
{tools}
</tools>
To call one, write exactly this, with its name and its arguments:
<tool_call>
{{"name": "NAME", "arguments": {{}}}}
</tool_call>"""


@dataclass(frozen=True)
class ToolPlan:
    """What a request's tools mean.

    ``mode``: whether calls may or must be made.  ``functions``: those that may be called.
    """

    mode: Literal["none", "auto", "required", "named"]
    functions: tuple[FunctionSpec, ...] = ()
    parallel: bool = True

    @classmethod
    def of(cls, body: ChatCompletionRequest) -> ToolPlan:
        """Read ``tools`` and ``tool_choice``; raises a 400."""
        functions = tuple(tool.function for tool in body.tools or ())
        choice = body.tool_choice
        if body.tools is not None and not body.tools:
            raise invalid("tools", "tools must not be empty; leave it out")
        if len(functions) > MAX_TOOLS:
            raise invalid("tools", f"at most {MAX_TOOLS} tools are accepted")
        names = [function.name for function in functions]
        if len(set(names)) < len(names):
            raise invalid("tools", "two tools have the same name")
        if not functions:
            if choice not in (None, "none", "auto"):
                raise invalid("tool_choice", "this tool_choice needs tools")
            return cls("none")
        if isinstance(choice, NamedToolChoice):
            named = tuple(f for f in functions if f.name == choice.function.name)
            if not named:
                raise invalid("tool_choice.function.name", f"no tool has this name; known: {names}")
            return cls("named", named, parallel=False)
        return cls(choice or "auto", functions, body.parallel_tool_calls)

    @property
    def active(self) -> bool:
        """Whether the answer may hold calls."""
        return self.mode != "none"

    def schemas(self) -> list[tuple[str, JsonSchema]]:
        """Each function's field in the request and the schema of its arguments."""
        return [
            (
                f"tools.{number}.function.parameters",
                JsonSchema.of(function.parameters or NO_ARGUMENTS),
            )
            for number, function in enumerate(self.functions)
        ]

    def constraint(self, wire: WireConstraint | None, style: JsonStyle) -> Constraint | None:
        """What the whole answer must match; ``wire`` is the request's own constraint."""
        if not self.active:
            return wire.constraint if wire else None
        # Models write arguments on one line: without a layout, a gap needs one space at most.
        gap = 1 if style.max_whitespace is None else min(1, style.max_whitespace)
        layout = _layout(replace(style, max_whitespace=gap))
        tools = [CallTool(f.name, f.parameters or None, layout) for f in self.functions]
        if self.mode == "auto" and wire is None:
            return optional_calls(tools, parallel=self.parallel)
        answer = None
        if wire is not None:
            if self.mode != "auto":
                text = f"tool_choice={self.mode!r} leaves no room for a constraint"
                raise invalid(wire.param, text)
            if not isinstance(wire.constraint, JsonSchema):
                text = "with tools only a JSON schema can constrain the other answer"
                raise InvalidRequest(wire.param, wire.constraint, text)
            form = {"type": "json_schema", "json_schema": wire.constraint.schema}
            own = replace(style, separators=wire.constraint.separators)
            answer = {**form, **_layout(own)}
        return required_calls(tools, parallel=self.parallel, style=HERMES, otherwise=answer)

    def finish_reason(self, engine_reason: str, calls: int) -> str:
        """OpenAI's reason: a named function that was forced is no choice of the model's."""
        called = calls and engine_reason == "stop" and self.mode != "named"
        return "tool_calls" if called else engine_reason


def _layout(style: JsonStyle) -> dict[str, Any]:
    made = {
        "max_whitespace_cnt": style.max_whitespace,
        "max_digits": style.max_digits,
        "separators": None if style.separators is None else list(style.separators),
    }
    return {name: value for name, value in made.items() if value is not None}


def conversation(
    messages: Sequence[Message], plan: ToolPlan, template: str | None
) -> tuple[list[Message], list[Tool] | None]:
    """The messages and tools for the template; both in words where it does not know the form."""
    tools = [Tool(type="function", function=function) for function in plan.functions]
    if template is not None and OPEN in template and "tools" in template:
        return list(messages), tools if plan.active else None
    told = [_in_words(message) for message in messages]
    if plan.active:
        specs = "\n".join(json.dumps(tool.model_dump(exclude_none=True)) for tool in tools)
        text = _INSTRUCTIONS.format(tools=specs)
        if told and told[0].role in ("system", "developer"):
            text = f"{told[0].text}\n\n{text}"
            told = told[1:]
        told.insert(0, Message(role="system", content=text))
    return told, None


def _in_words(message: Message) -> Message:
    """A message without tool fields: calls as the model writes them, results as a user's turn."""
    if message.role in ("tool", "function"):
        text = f"<tool_response>\n{message.text}\n</tool_response>"
        return Message(role="user", content=text)
    if not message.tool_calls:
        return message
    calls = [
        f"{HERMES.opening(call.function.name)}{call.function.arguments or '{}'}{_END}"
        for call in message.tool_calls
    ]
    return Message(role="assistant", content="\n".join([message.text or "", *calls]).strip())


@dataclass(frozen=True)
class CallStart:
    """The model has begun call ``index``."""

    index: int
    name: str


@dataclass(frozen=True)
class CallArguments:
    """A piece of the arguments' JSON text."""

    index: int
    text: str


Part = str | CallStart | CallArguments


class ToolParser:
    """Reads an answer in pieces: plain text, starts of calls, pieces of arguments."""

    def __init__(self, plan: ToolPlan) -> None:
        self.calls = 0
        self._begins = {HERMES.opening(function.name): function.name for function in plan.functions}
        self._rest = ""
        self._in_call = False
        self._written = ""

    def feed(self, text: str) -> list[Part]:
        """The parts that are certain after ``text``."""
        self._rest += text
        parts: list[Part] = []
        while True:
            before = len(self._rest)
            self._arguments(parts) if self._in_call else self._text(parts)
            if len(self._rest) == before:
                return parts

    def finish(self) -> list[Part]:
        """What was held back when the answer ended."""
        rest, self._rest = self._rest, ""
        if not rest or (self.calls and not rest.strip()):
            return []
        if not self._in_call:
            return [rest]
        # An answer that was cut within the end of a call: its "}" is none of the arguments'.
        return [] if _is_json(self._written) else [CallArguments(self.calls - 1, rest)]

    def _text(self, parts: list[Part]) -> None:
        at = self._rest.find(OPEN)
        if at < 0:
            sure = len(self._rest) - _held_back(self._rest, OPEN)
            sure = len(self._rest[:sure].rstrip())
            if sure:
                parts.append(self._rest[:sure])
                self._rest = self._rest[sure:]
            return
        if self._rest[:at].strip():
            parts.append(self._rest[:at].rstrip())
        self._rest = self._rest[at:]
        for begin, name in self._begins.items():
            if self._rest.startswith(begin):
                parts.append(CallStart(self.calls, name))
                self.calls += 1
                self._in_call, self._written = True, ""
                self._rest = self._rest[len(begin) :]
                return

    def _arguments(self, parts: list[Part]) -> None:
        at = self._rest.find(_END)
        sure = at if at >= 0 else len(self._rest) - _held_back(self._rest, _END)
        if sure:
            parts.append(CallArguments(self.calls - 1, self._rest[:sure]))
            self._written += self._rest[:sure]
        self._rest = self._rest[sure:]
        if at >= 0:
            self._rest = self._rest[len(_END) :]
            self._in_call = False


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _held_back(text: str, marker: str) -> int:
    """How many characters at the end of ``text`` may be the start of ``marker``."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
