"""``/tokenize``, ``/detokenize`` and ``/tokenizer_info``: what remote tokenizers need."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from sglang_lite.runtime.server.context import server_of
from sglang_lite.runtime.server.errors import invalid
from sglang_lite.runtime.server.openai_chat import prompt_ids
from sglang_lite.runtime.server.prompts import encode
from sglang_lite.runtime.server.schemas.tokens import DetokenizeRequest, TokenizeRequest
from sglang_lite.runtime.server.schemas.wire import json_body, read_body
from sglang_lite.runtime.server.tools import ToolPlan

router = APIRouter()


@router.post("/tokenize", openapi_extra=json_body(TokenizeRequest))
@router.post("/v1/tokenize", openapi_extra=json_body(TokenizeRequest))
async def tokenize(request: Request) -> dict[str, Any]:
    """The ids of a text or of a conversation."""
    server = server_of(request)
    body = await read_body(request, TokenizeRequest)
    server.check_model(body.model)
    engine = server.engine
    if (body.prompt is None) == (body.messages is None):
        raise invalid("prompt", "give one of prompt and messages")
    if body.messages is not None:
        chat = body.chat()
        chat.check()
        ids = await prompt_ids(server, chat, ToolPlan.of(chat))
    else:
        ids = await encode(
            engine.tokenizer,
            body.prompt or "",
            add_special_tokens=body.add_special_tokens,
            parse_special=body.parse_special,
        )
    names = [server.texts.text_of(token) for token in ids] if body.return_token_strs else None
    return {
        "count": len(ids),
        "max_model_len": engine.context_length,
        "tokens": ids,
        "token_strs": names,
    }


@router.post("/detokenize", openapi_extra=json_body(DetokenizeRequest))
@router.post("/v1/detokenize", openapi_extra=json_body(DetokenizeRequest))
async def detokenize(request: Request) -> dict[str, Any]:
    """The text of some ids."""
    server = server_of(request)
    body = await read_body(request, DetokenizeRequest)
    server.check_model(body.model)
    engine = server.engine
    size = engine.model_config.vocab_size
    if not all(0 <= token < size for token in body.tokens):
        raise invalid("tokens", f"token ids are integers from 0 to {size - 1}")
    tokenizer = engine.tokenizer
    text = tokenizer.decode(body.tokens, skip_special_tokens=body.skip_special_tokens)
    answer: dict[str, Any] = {"prompt": text, "text": text}
    if body.return_token_bytes:
        answer["token_bytes"] = [list(tokenizer.piece_bytes(token)) for token in body.tokens]
    return answer


@router.get("/tokenizer_info")
async def tokenizer_info(request: Request) -> dict[str, Any]:
    """The tokenizer's control tokens and its chat template."""
    engine = server_of(request).engine
    tokenizer = engine.tokenizer
    named = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"))
    return {
        "tokenizer_class": type(tokenizer).__name__,
        **named,
        **tokenizer.named_tokens,
        "vocab_size": engine.model_config.vocab_size,
        "model_max_length": engine.context_length,
        "chat_template": tokenizer.chat_template,
    }
