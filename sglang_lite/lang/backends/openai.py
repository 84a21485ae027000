"""Servers that speak OpenAI's API: OpenAI itself, vLLM, SGLang, ours, and others.

Chat models get messages, completion models get text.  The dialect decides what may be asked for:
what a server would ignore is refused before anything is sent.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sglang_lite.errors import BackendError, InvalidRequest, NotSupported
from sglang_lite.lang.backends.base import Backend, ChoiceScores, common_prefix
from sglang_lite.lang.backends.http import HttpClient
from sglang_lite.lang.backends.lowering import openai_params
from sglang_lite.lang.chat_template import ChatTemplate, chatml
from sglang_lite.lang.nodes import LogprobOptions
from sglang_lite.lang.transcript import Prompt
from sglang_lite.outputs import FinishReason, RequestOutput, Usage
from sglang_lite.sampling_params import SamplingParams

Dialect = Literal["openai", "vllm", "sglang"]


@dataclass
class TokenUsage:
    """Tokens of all requests since the last :meth:`reset`."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, usage: Usage) -> None:
        """Count one answer."""
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens

    def reset(self) -> None:
        """Begin again at 0."""
        self.prompt_tokens = self.completion_tokens = 0


class OpenAI(Backend):
    """``model_name`` on an OpenAI-compatible server.

    * ``is_chat_model``: use chat completions (True, None) or text completions.
    * ``base_url``: with its ``/v1``; ``api_key``: else the environment's ``OPENAI_API_KEY``.
    * ``dialect``: what the server understands beyond OpenAI's own fields; None asks the server.
    * ``token_usage`` counts the tokens of all requests.
    * ``chat_template``: for completion models only; how roles become text (default: ChatML).
    """

    name = "openai"
    obeys_constraints = False
    paid_by_prompt = True

    def __init__(
        self,
        model_name: str,
        is_chat_model: bool | None = None,
        chat_template: ChatTemplate | None = None,
        is_azure: bool = False,
        *,
        base_url: str = "https://api.openai.com/v1",
        api_key: str | None = None,
        dialect: Dialect | None = None,
        timeout: float = 600.0,
        retries: int = 2,
    ) -> None:
        if is_azure:
            raise NotSupported("is_azure: give the deployment's URL as base_url")
        if dialect not in (None, "openai", "vllm", "sglang"):
            raise InvalidRequest("dialect", dialect, "openai, vllm, sglang or None")
        self.model_name = model_name
        self.is_chat_model = is_chat_model is None or is_chat_model
        # A chat model's control text is never sent; the roles are.
        self.chat_template = chat_template or ChatTemplate(chatml, "chatml")
        self.token_usage = TokenUsage()
        self._dialect: Dialect | None = dialect
        key = api_key if api_key is not None else os.environ.get("OPENAI_API_KEY")
        self.http = HttpClient(base_url, api_key=key, timeout=timeout, retries=retries)

    async def dialect(self) -> Dialect:
        """What the server is; found out by its other routes."""
        if self._dialect is None:
            if "api.openai.com" in self.http.base_url:
                self._dialect = "openai"
            elif await self.http.ok("GET", "/../get_model_info"):
                self._dialect = "sglang"
            elif await self.http.ok("GET", "/../version"):
                self._dialect = "vllm"
            else:
                self._dialect = "openai"
        return self._dialect

    async def continues(self, prompt: Prompt) -> bool:
        """See :meth:`Backend.continues`: OpenAI's own chat API goes on with no message."""
        begun = prompt.messages[-1].content if prompt.messages else ""
        return not (self.is_chat_model and begun and await self.dialect() == "openai")

    async def stream(
        self, prompt: Prompt, params: SamplingParams, logprobs: LogprobOptions
    ) -> AsyncIterator[RequestOutput]:
        """See :meth:`Backend.stream`."""
        if logprobs.return_logprob:
            raise NotSupported(f"return_logprob is not supported by backend {self.name}")
        dialect = await self.dialect()
        body = {
            "model": self.model_name,
            **self._prompt(prompt, dialect),
            **openai_params(params, dialect, chat=self.is_chat_model),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        events = self.http.events(self._path, body)
        held: dict[int, RequestOutput] = {}
        usage = Usage()
        try:
            async for event in events:
                if event.get("error"):
                    raise BackendError("the server failed", body=json.dumps(event["error"]))
                if event.get("usage"):
                    usage = _usage(event["usage"])
                for choice in event.get("choices", []):
                    output = self._output(event, choice)
                    if output.finish_reason is None:
                        yield output
                    else:  # the usage comes later
                        held[output.index] = output
        finally:
            await events.aclose()  # type: ignore[attr-defined]
        self.token_usage.add(usage)
        for index in range(params.n):
            if index not in held:
                raise BackendError(f"the stream ended before sample {index} had finished")
            last = held[index]
            yield RequestOutput(
                last.rid, index, last.text, finish_reason=last.finish_reason, usage=usage
            )

    @property
    def _path(self) -> str:
        return "/chat/completions" if self.is_chat_model else "/completions"

    def _prompt(self, prompt: Prompt, dialect: Dialect) -> dict[str, Any]:
        if not self.is_chat_model:
            return {"prompt": prompt.text}
        messages = list(prompt.messages)
        if not messages or messages[-1].role != "assistant" or not messages[-1].partial:
            raise NotSupported("a chat model generates inside an assistant message only")
        begun = messages.pop()
        sent = [{"role": m.role, "content": m.content} for m in messages]
        if not begun.content:
            return {"messages": sent}
        if dialect == "openai":
            raise NotSupported(
                "OpenAI's chat API cannot continue a message: gen must come first in it (or "
                "@function(num_api_spec_tokens=...) has the whole message written at once), "
                f"but the assistant has said {begun.content[:40]!r}"
            )
        sent.append({"role": "assistant", "content": begun.content})
        return {
            "messages": sent,
            "continue_final_message": True,
            "add_generation_prompt": False,
        }

    def _output(self, event: dict[str, Any], choice: dict[str, Any]) -> RequestOutput:
        text = choice.get("text")
        if self.is_chat_model:
            text = choice.get("delta", {}).get("content")
        reason = choice.get("finish_reason")
        finish = None
        if reason is not None:
            matched = choice.get("stop_reason", choice.get("matched_stop"))
            finish = FinishReason("length" if reason == "length" else "stop", matched)
            if reason not in ("stop", "length"):
                finish = FinishReason("abort", message=f"finish_reason {reason}")
        rid, index = str(event.get("id", "")), choice.get("index", 0)
        return RequestOutput(rid, index, text or "", finish_reason=finish)

    async def choose(self, prompt: Prompt, choices: Sequence[str]) -> str | None:
        """Chat models choose by writing; they have no scores to give."""
        if not self.is_chat_model:
            return None
        schema = {
            "type": "object",
            "properties": {"choice": {"type": "string", "enum": list(choices)}},
            "required": ["choice"],
            "additionalProperties": False,
        }
        body = {
            "model": self.model_name,
            **self._prompt(prompt, await self.dialect()),
            "temperature": 0,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "choice", "schema": schema, "strict": True},
            },
        }
        answer = await self.http.json("POST", self._path, body)
        self.token_usage.add(_usage(answer.get("usage") or {}))
        text = answer["choices"][0]["message"]["content"] or ""
        try:
            chosen = json.loads(text)["choice"]
        except (ValueError, KeyError, TypeError):
            chosen = text.strip()
        if chosen not in choices:
            raise BackendError(f"the server chose none of {list(choices)}", 200, text)
        return chosen

    async def score(
        self, prompt: Prompt, choices: Sequence[str], *, suffix: str, unconditional: str | None
    ) -> ChoiceScores:
        """By echoed log probabilities, for completion models."""
        texts = [prompt.text, *(prompt.text + choice + suffix for choice in choices)]
        rows = [_entries(choice) for choice in await self._echo(texts)]
        tokens = [[entry[2] for entry in row] for row in rows]
        common = min(common_prefix(row, tokens[0]) for row in tokens[1:])
        scored = [row[common:] for row in rows[1:]]
        alone = None
        if unconditional is not None:
            bare = [unconditional + "".join(entry[2] for entry in row) for row in scored]
            rows = [_entries(choice) for choice in await self._echo(bare)]
            alone = [_after(row, len(unconditional)) for row in rows]
        return ChoiceScores(scored, [[] for _ in scored], alone)

    async def _echo(self, texts: list[str]) -> list[dict[str, Any]]:
        body = {
            "model": self.model_name,
            "prompt": texts,
            "max_tokens": 0,
            "echo": True,
            "logprobs": 1,
            "temperature": 0,
        }
        answer = await self.http.json("POST", "/completions", body)
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        if len(choices) != len(texts) or not all(choice.get("logprobs") for choice in choices):
            raise NotSupported("select: this server does not echo log probabilities")
        return choices

    async def server_info(self) -> dict[str, Any]:
        """The server's list of models."""
        return await self.http.json("GET", "/models")

    async def close(self) -> None:
        """Close the connections."""
        await self.http.close()


def _after(row: list[list[Any]], length: int) -> list[list[Any]]:
    """The entries of a row's tokens that begin after so many characters."""
    begins = itertools.accumulate((len(entry[2]) for entry in row), initial=0)
    return [entry for begin, entry in zip(begins, row, strict=False) if begin >= length]


def _usage(usage: dict[str, Any]) -> Usage:
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=usage.get("prompt_tokens", 0),
        completion_tokens=usage.get("completion_tokens", 0),
        cached_tokens=details.get("cached_tokens") or 0,
    )


def _entries(choice: dict[str, Any]) -> list[list[Any]]:
    logprobs = choice["logprobs"]
    pairs = zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)
    return [[value, -1, token] for token, value in pairs]
