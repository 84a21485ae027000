"""The bodies of ``/tokenize`` and ``/detokenize``; vLLM's fields."""

from __future__ import annotations

from typing import Any

from sglang_lite.runtime.server.schemas.chat import ChatCompletionRequest, Message, Tool
from sglang_lite.runtime.server.schemas.wire import Many, WireModel


class TokenizeRequest(WireModel):
    """A text, or messages for the chat template.

    ``parse_special``: control tokens written in ``prompt`` become control tokens.
    """

    model: str | None = None
    prompt: str | None = None
    messages: Many[Message] | None = None
    tools: Many[Tool] | None = None
    add_special_tokens: bool = True
    parse_special: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = False

    def chat(self) -> ChatCompletionRequest:
        """The chat whose prompt is wanted."""
        shared = self.model_fields_set & set(ChatCompletionRequest.model_fields)
        given = {name: getattr(self, name) for name in shared}
        return ChatCompletionRequest.model_construct(**given)


class DetokenizeRequest(WireModel):
    """Token ids; ``return_token_bytes``: also the bytes of each, none for control tokens."""

    model: str | None = None
    tokens: Many[int]
    skip_special_tokens: bool = False
    return_token_bytes: bool = False
