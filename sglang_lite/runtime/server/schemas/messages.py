"""The bodies of Anthropic's ``/v1/messages``, and their translation into a chat request."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from sglang_lite.runtime.server.errors import invalid
from sglang_lite.runtime.server.schemas.chat import ChatCompletionRequest
from sglang_lite.runtime.server.schemas.wire import Many, WireModel

ANTHROPIC_IGNORED = frozenset(
    (
        *("metadata", "service_tier", "speed", "inference_geo", "cache_control", "diagnostics"),
        *("user_profile_id", "workspace_id"),
    )
)
"""Anthropic's fields about accounts, routing and caching: every prefix is cached here anyway."""

_NEEDED = {
    "text": ("text",),
    "thinking": ("thinking",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
}
_ALLOWED = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
}


class TextBlock(WireModel):
    """A piece of text, where nothing else can stand."""

    type: Literal["text"]
    text: str
    ignored: ClassVar[frozenset[str]] = frozenset({"cache_control", "citations"})


class Block(WireModel):
    """One block of a turn: text, a call of the model's, its result, or what the model thought."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | Many[TextBlock] | None = None
    is_error: bool = False
    ignored: ClassVar[frozenset[str]] = frozenset(
        {"cache_control", "citations", "caller", "signature", "source", "title", "context"}
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.type not in _NEEDED:
            raise PydanticCustomError(
                "unsupported_value",
                "content of type '{type}' is not supported, only text, thinking, tool_use and "
                "tool_result are",
                {"type": self.type[:40]},
            )
        for field in _NEEDED[self.type]:
            if getattr(self, field) is None:
                raise PydanticCustomError("missing", "Field required", {"field": field})
        return self

    def result(self) -> dict[str, Any]:
        """A ``tool_result`` as a chat message; templates know no failure: it is said in words."""
        text = _joined(self.content or "")
        text = f"Error: {text}" if self.is_error else text
        return {"role": "tool", "tool_call_id": self.tool_use_id, "content": text}

    def call(self) -> dict[str, Any]:
        """A ``tool_use`` as a call of a chat message."""
        arguments = json.dumps(self.input, ensure_ascii=False)
        function = {"name": self.name, "arguments": arguments}
        return {"id": self.id, "type": "function", "function": function}


class Turn(WireModel):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: str | Many[Block]

    @model_validator(mode="after")
    def _check(self) -> Self:
        for block in self.blocks:
            if block.type not in _ALLOWED[self.role]:
                raise PydanticCustomError(
                    "invalid_value",
                    "a turn of role '{role}' cannot hold a block of type '{type}'",
                    {"role": self.role, "type": block.type, "field": "content"},
                )
        return self

    @property
    def blocks(self) -> list[Block]:
        """The content; a text is one block."""
        if isinstance(self.content, str):
            return [Block(type="text", text=self.content)]
        return self.content

    def messages(self) -> list[dict[str, Any]]:
        """As chat messages: each result of a tool is one of its own, before the turn's text."""
        results = [block.result() for block in self.blocks if block.type == "tool_result"]
        texts = [block.text or "" for block in self.blocks if block.type == "text"]
        thoughts = [block.thinking or "" for block in self.blocks if block.type == "thinking"]
        calls = [block.call() for block in self.blocks if block.type == "tool_use"]
        message: dict[str, Any] = {"role": self.role, "content": "".join(texts)}
        if thoughts:
            message["reasoning_content"] = "".join(thoughts)
        if calls:
            message["tool_calls"] = calls
        return [*results, message] if texts or calls or thoughts or not results else results


class JsonFormat(WireModel):
    """``output_config.format``."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] | bool = Field(alias="schema")


class OutputConfig(WireModel):
    """``output_config``; ``effort`` is a wish that models here do not know."""

    format: JsonFormat | None = None
    ignored: ClassVar[frozenset[str]] = frozenset({"effort"})


class MessagesTool(WireModel):
    """A function that the model may call; Anthropic's own tools run on Anthropic's servers."""

    type: str = "custom"
    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool = True
    ignored: ClassVar[frozenset[str]] = frozenset(
        {"cache_control", "input_examples", "eager_input_streaming"}
    )

    @model_validator(mode="before")
    @classmethod
    def _check(cls, data: Any) -> Any:
        kind = data.get("type", "custom") if isinstance(data, dict) else "custom"
        if isinstance(kind, str) and kind != "custom":
            raise PydanticCustomError(
                "unsupported_value",
                "tools of type '{type}' are not supported, only 'custom' is",
                {"type": kind[:40], "field": "type"},
            )
        return data

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if self.input_schema.get("type") != "object":
            reason = "the schema of a tool's input has 'type': 'object'"
            raise PydanticCustomError("invalid_value", reason, {"field": "input_schema"})
        return self


class MessagesToolChoice(WireModel):
    """``tool_choice``."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.type == "tool" and self.name is None:
            raise PydanticCustomError("missing", "Field required", {"field": "name"})
        if self.type != "tool" and self.name is not None:
            raise PydanticCustomError(
                "invalid_value", "only type 'tool' takes a name", {"field": "name"}
            )
        return self

    def chat(self) -> str | dict[str, Any]:
        """As OpenAI writes it."""
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name}}
        return "required" if self.type == "any" else self.type


class Thinking(WireModel):
    """``thinking``: only that there is to be none."""

    type: str

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.type != "disabled":
            text = "thinking is not offered, only {'type': 'disabled'} is accepted"
            raise PydanticCustomError("unsupported_value", text, {"field": "type"})
        return self


class Conversation(WireModel):
    """What makes the prompt: the body of ``POST /v1/messages/count_tokens``."""

    model: str | None = None
    messages: Many[Turn]
    system: str | Many[TextBlock] | None = None
    tools: Many[MessagesTool] = []
    tool_choice: MessagesToolChoice | None = None
    output_config: OutputConfig | None = None
    thinking: Thinking | None = None
    ignored: ClassVar[frozenset[str]] = ANTHROPIC_IGNORED

    def chat(self) -> ChatCompletionRequest:
        """The same request for ``/v1/chat/completions``; raises a 400."""
        messages = self._messages()
        fields: dict[str, Any] = {"messages": messages, "model": self.model}
        if messages and messages[-1]["role"] == "assistant":
            if messages[-1].get("tool_calls"):
                raise invalid("messages", "the last turn's calls need their results after them")
            fields["continue_final_message"] = True
        if self.tools:
            fields["tools"] = [_chat_tool(tool) for tool in self.tools]
        if self.tool_choice is not None:
            fields["tool_choice"] = self.tool_choice.chat()
            fields["parallel_tool_calls"] = not self.tool_choice.disable_parallel_tool_use
        if self.output_config is not None and self.output_config.format is not None:
            schema = {"schema": self.output_config.format.schema_}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        if self.thinking is not None:
            fields["chat_template_kwargs"] = {"enable_thinking": False}
        return ChatCompletionRequest.model_validate({**fields, **self._sampling()})

    def _messages(self) -> list[dict[str, Any]]:
        """Chat messages; turns of one role in a row are one turn, as Anthropic has it."""
        made: list[dict[str, Any]] = []
        if self.system:
            made.append({"role": "system", "content": _joined(self.system)})
        for message in (each for turn in self.messages for each in turn.messages()):
            if made and made[-1]["role"] == message["role"] != "tool":
                _append(made[-1], message)
            else:
                made.append(message)
        return made if self.messages else []

    def _sampling(self) -> dict[str, Any]:
        return {}


class MessagesRequest(Conversation):
    """The body of ``POST /v1/messages``."""

    max_tokens: int = Field(ge=1)
    stop_sequences: Many[str] = []
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = None
    top_k: int | None = Field(default=None, ge=0)
    stream: bool = False

    def _sampling(self) -> dict[str, Any]:
        return {
            "max_tokens": self.max_tokens,
            "stop": self.stop_sequences or None,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
        }


def _chat_tool(tool: MessagesTool) -> dict[str, Any]:
    function = {"name": tool.name, "parameters": tool.input_schema}
    return {"type": "function", "function": {**function, "description": tool.description}}


def _append(message: dict[str, Any], more: dict[str, Any]) -> None:
    for name in ("content", "reasoning_content"):
        texts = [text for text in (message.get(name), more.get(name)) if text]
        if texts or name == "content":
            message[name] = "\n\n".join(texts)
    if more.get("tool_calls"):
        message["tool_calls"] = [*message.get("tool_calls", []), *more["tool_calls"]]


def _joined(text: str | list[TextBlock]) -> str:
    return text if isinstance(text, str) else "".join(block.text for block in text)
