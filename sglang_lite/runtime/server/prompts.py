"""From messages and texts to token ids, off the event loop: templates and long texts take time."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from sglang_lite.runtime.server.errors import ApiError, invalid
from sglang_lite.runtime.server.schemas.chat import Message, Tool

if TYPE_CHECKING:
    from sglang_lite.runtime.tokenizer import Tokenizer

MAX_TEMPLATE_KWARGS_BYTES = 4096
_RESERVED = ("messages", "tools", "add_generation_prompt", "continue_final_message", "tokenize")


def new_id(prefix: str) -> str:
    """A fresh id: ``chatcmpl-`` gives ``chatcmpl-1f…``."""
    return f"{prefix}{uuid.uuid4().hex}"


async def chat_ids(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    tools: Sequence[Tool] | None = None,
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    template_kwargs: dict[str, Any] | None = None,
) -> list[int]:
    """The prompt's ids by the model's own chat template; a template's refusal is a 400."""
    kwargs = check_template_kwargs(template_kwargs)
    if tokenizer.chat_template is None:
        raise ApiError(
            400,
            "This model has no chat template; use /v1/completions, or start the server with "
            "--chat-template.",
            code="unsupported_value",
            param="messages",
        )
    conversation = [template_message(message) for message in messages]
    specs = [tool.model_dump(exclude_none=True) for tool in tools] if tools else None
    try:
        return await asyncio.to_thread(
            tokenizer.apply_chat_template,
            conversation,
            add_generation_prompt=add_generation_prompt and not continue_final_message,
            continue_final_message=continue_final_message,
            tools=specs,
            **kwargs,
        )
    except TemplateError as error:
        text = f"The model's chat template refuses these messages: {error.message or error}"
        raise invalid("messages", text) from None


def check_template_kwargs(kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """Extra variables for the template: small, and none that the server sets itself."""
    if not kwargs:
        return {}
    for name in kwargs:
        if name in _RESERVED or name == "chat_template" or not name.isidentifier():
            raise invalid(f"chat_template_kwargs.{name[:64]}", "this variable cannot be set")
    if len(json.dumps(kwargs)) > MAX_TEMPLATE_KWARGS_BYTES:
        limit = f"at most {MAX_TEMPLATE_KWARGS_BYTES} bytes are accepted"
        raise invalid("chat_template_kwargs", limit)
    return kwargs


def template_message(message: Message) -> dict[str, Any]:
    """A message as templates know it: text content, arguments as a mapping."""
    role = {"developer": "system", "function": "tool"}.get(message.role, message.role)
    made: dict[str, Any] = {"role": role, "content": message.text or ""}
    if message.name is not None:
        made["name"] = message.name
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    if message.reasoning_content is not None:
        made["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        made["tool_calls"] = [
            {
                "id": call.id or "",
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(call.function.arguments),
                },
            }
            for call in message.tool_calls
        ]
    return made


def _arguments(text: str) -> Any:
    """A mapping for the template; a history with broken JSON is shown as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


async def encode(
    tokenizer: Tokenizer,
    text: str,
    *,
    add_special_tokens: bool = True,
    parse_special: bool = True,
) -> list[int]:
    """Ids of a raw prompt; long ones in another thread.

    Control tokens in a raw prompt are meant: clients apply chat templates themselves.
    """
    options = {"add_special_tokens": add_special_tokens, "parse_special": parse_special}
    if len(text) < 2000:
        return tokenizer.encode(text, **options)
    return await asyncio.to_thread(tokenizer.encode, text, **options)
