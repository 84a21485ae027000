"""The body of ``/v1/chat/completions``, and the fields that it shares with ``/v1/completions``."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from sglang_lite.constraint import Constraint
from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime.server.errors import invalid
from sglang_lite.runtime.server.schemas.constraints import ConstraintFields
from sglang_lite.runtime.server.schemas.wire import Many, WireModel
from sglang_lite.sampling_params import SamplingParams

MAX_LOGPROBS = 20

OPENAI_IGNORED = frozenset(
    (
        *("user", "metadata", "store", "service_tier", "safety_identifier", "modalities"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
        *("verbosity", "reasoning_effort", "prediction"),
    )
)
"""OpenAI's fields about accounts, billing and routing: nothing here could depend on them."""

_OPENAI_NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "no_stop_trim": "include_stop_str_in_output",
}


class StreamOptions(WireModel):
    """What a stream carries besides text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.include_obfuscation:
            raise PydanticCustomError("unsupported_value", "include_obfuscation is not offered")
        return self


class SamplingFields(ConstraintFields):
    """How to sample: OpenAI's fields and the extensions that vLLM and SGLang share."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | Many[str] | None = None
    stop_token_ids: Many[int] | None = None
    stop_regex: str | Many[str] | None = None
    include_stop_str_in_output: bool | None = None
    no_stop_trim: bool | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: int = Field(default=0, ge=-(2**31), lt=2**31)
    cache_salt: str = Field(default="", max_length=128)
    rid: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._:-]{1,128}$")
    request_id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._:-]{1,128}$")
    timeout: float | None = Field(default=None, gt=0)
    return_token_ids: bool = False

    def sampling_params(
        self, max_tokens: int | None, constraint: Constraint | None
    ) -> SamplingParams:
        """The request's ``SamplingParams``; a bad value is a 400 under OpenAI's name for it."""
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise invalid("temperature", f"temperature={self.temperature} is not in [0, 2]")
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options", "stream_options needs stream=true")
        if None not in (self.include_stop_str_in_output, self.no_stop_trim):
            raise invalid("no_stop_trim", "give one of no_stop_trim, include_stop_str_in_output")
        keep_stop = self.include_stop_str_in_output or self.no_stop_trim
        fields = {
            name: getattr(self, name)
            for name in _SAME_NAME
            if getattr(self, name) not in (None, [], {})
        }
        try:
            return SamplingParams(
                max_new_tokens=max_tokens,
                min_new_tokens=self.min_tokens or 0,
                no_stop_trim=bool(keep_stop),
                constraint=constraint,
                **fields,
            )
        except InvalidRequest as error:
            name = _OPENAI_NAMES.get(error.field, error.field)
            message = str(error).replace(error.field, name, 1)
            raise invalid(name, message, error.code) from None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of a stream carries the usage so far."""
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)


_SAME_NAME = (
    *("temperature", "top_p", "top_k", "min_p", "n", "seed", "stop", "stop_token_ids"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "stop_regex", "logit_bias"),
    *("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens"),
)


class ContentPart(WireModel):
    """One part of a message's content; only text exists here."""

    type: str
    text: str | None = None
    ignored: ClassVar[frozenset[str]] = frozenset(
        {"image_url", "input_audio", "file", "video_url", "audio_url", "refusal"}
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.type not in ("text", "input_text", "output_text"):
            raise PydanticCustomError(
                "unsupported_value",
                "content of type '{type}' is not supported, only text is",
                {"type": self.type[:40]},
            )
        if self.text is None:
            raise PydanticCustomError("missing", "a text part needs 'text'", {"field": "text"})
        return self


class FunctionCall(WireModel):
    """A call in the history; ``arguments`` is JSON text, or what a model made of it."""

    name: str
    arguments: str = "{}"


class ToolCall(WireModel):
    """One call of an assistant's message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class Message(WireModel):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Many[ContentPart] | None = None
    name: str | None = None
    tool_calls: Many[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    ignored: ClassVar[frozenset[str]] = frozenset({"refusal", "audio", "annotations", "id"})

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise PydanticCustomError("missing", "a message needs content", {"field": "content"})
        return self

    @property
    def text(self) -> str | None:
        """The content as one string."""
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content)
        return self.content


class FunctionSpec(WireModel):
    """A function that the model may call."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = True


class Tool(WireModel):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionSpec


class NamedFunction(WireModel):
    """The name inside a forced choice."""

    name: str


class NamedToolChoice(WireModel):
    """``tool_choice`` that forces one function."""

    type: Literal["function"]
    function: NamedFunction


class ChatCompletionRequest(SamplingFields):
    """The body of ``POST /v1/chat/completions``."""

    messages: Many[Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    tools: Many[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: str | None = None
    ignored: ClassVar[frozenset[str]] = OPENAI_IGNORED

    def check(self) -> None:
        """The rules between fields; raises a 400."""
        if not self.messages:
            raise invalid("messages", "messages must hold at least one message")
        if self.chat_template is not None:
            raise invalid(
                "chat_template", "a request cannot bring its own template", "unsupported_value"
            )
        for name in ("max_tokens", "max_completion_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise invalid(name, f"{name}={value} is not accepted: an integer, at least 1")
        if self.top_logprobs is not None:
            if not self.logprobs:
                raise invalid("top_logprobs", "top_logprobs needs logprobs=true")
            if not 0 <= self.top_logprobs <= MAX_LOGPROBS:
                raise invalid("top_logprobs", f"top_logprobs is an integer, 0 to {MAX_LOGPROBS}")
        if self.continue_final_message:
            if "add_generation_prompt" in self.model_fields_set and self.add_generation_prompt:
                raise invalid(
                    "continue_final_message",
                    "continue_final_message excludes add_generation_prompt=true",
                )
            if self.messages[-1].role != "assistant":
                raise invalid(
                    "continue_final_message",
                    "continue_final_message needs an assistant's message at the end",
                )

    @property
    def token_limit(self) -> int | None:
        """How many tokens at most; None fills the context."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens
