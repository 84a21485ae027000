"""The body of ``/v1/responses``, and its translation into a chat request."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from sglang_lite.runtime.server.errors import invalid
from sglang_lite.runtime.server.schemas.chat import (
    OPENAI_IGNORED,
    ChatCompletionRequest,
    ContentPart,
)
from sglang_lite.runtime.server.schemas.wire import Many, WireModel


class InputItem(WireModel):
    """A message, a call of the model's, or the result of one."""

    type: Literal["message", "function_call", "function_call_output"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | Many[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str = "{}"
    output: str | Many[ContentPart] | None = None
    ignored: ClassVar[frozenset[str]] = frozenset({"id", "status", "phase"})

    @model_validator(mode="after")
    def _check(self) -> Self:
        needed = {
            "message": ("role", "content"),
            "function_call": ("call_id", "name"),
            "function_call_output": ("call_id", "output"),
        }[self.type]
        for field in needed:
            if getattr(self, field) is None:
                raise PydanticCustomError("missing", "Field required", {"field": field})
        return self

    def message(self) -> dict[str, Any]:
        """As a chat message."""
        if self.type == "function_call":
            function = {"name": self.name, "arguments": self.arguments}
            call = {"id": self.call_id, "type": "function", "function": function}
            return {"role": "assistant", "tool_calls": [call]}
        if self.type == "function_call_output":
            return {"role": "tool", "tool_call_id": self.call_id, "content": _plain(self.output)}
        return {"role": self.role, "content": _plain(self.content)}


class TextFormat(WireModel):
    """``text.format``: the flat form of ``response_format``."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    strict: bool = True


class TextOptions(WireModel):
    """``text``."""

    format: TextFormat | None = None
    ignored: ClassVar[frozenset[str]] = frozenset({"verbosity"})


class FunctionTool(WireModel):
    """A function, flat."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = True


class FunctionChoice(WireModel):
    """``tool_choice`` that forces one function."""

    type: Literal["function"]
    name: str


class ResponsesRequest(WireModel):
    """The body of ``POST /v1/responses``; nothing is stored, so nothing can be referred to."""

    model: str | None = None
    input: str | Many[InputItem]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    text: TextOptions | None = None
    tools: Many[FunctionTool] = []
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice = "auto"
    parallel_tool_calls: bool = True
    stream: bool = False
    store: bool = False
    background: bool = False
    truncation: Literal["disabled"] = "disabled"
    previous_response_id: str | None = None
    metadata: dict[str, str] = {}
    ignored: ClassVar[frozenset[str]] = (OPENAI_IGNORED - {"store", "metadata"}) | {"reasoning"}

    def check(self) -> None:
        """What needs a store is refused; raises a 400."""
        for name in ("store", "background", "previous_response_id"):
            if getattr(self, name):
                text = f"{name} needs stored responses, and this server stores none"
                raise invalid(name, text, "unsupported_value")

    def chat(self) -> ChatCompletionRequest:
        """The same request for ``/v1/chat/completions``."""
        items = self.input
        if isinstance(items, str):
            messages = [{"role": "user", "content": items}]
        else:
            messages = [item.message() for item in items]
        if self.instructions:
            messages.insert(0, {"role": "system", "content": self.instructions})
        fields: dict[str, Any] = {
            "messages": messages,
            "model": self.model,
            "max_completion_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "response_format": self._response_format(),
        }
        if self.tools:
            functions = [tool.model_dump(exclude={"type"}) for tool in self.tools]
            fields["tools"] = [{"type": "function", "function": f} for f in functions]
            fields["parallel_tool_calls"] = self.parallel_tool_calls
        choice = self.tool_choice
        if isinstance(choice, FunctionChoice):
            fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        elif self.tools or choice == "required":
            fields["tool_choice"] = choice
        return ChatCompletionRequest.model_validate(fields)

    def _response_format(self) -> dict[str, Any] | None:
        form = self.text.format if self.text else None
        if form is None or form.type == "text":
            return None
        if form.type == "json_object":
            return {"type": "json_object"}
        if form.schema_ is None:
            raise invalid(
                "text.format.schema", "json_schema needs a schema", "missing_required_parameter"
            )
        inner = {"name": form.name, "schema": form.schema_}
        return {"type": "json_schema", "json_schema": inner}


def _plain(content: str | list[ContentPart] | None) -> str:
    if isinstance(content, list):
        return "".join(part.text or "" for part in content)
    return content or ""
