"""A server that speaks SGLang's native API: ours, or SGLang itself."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from sglang_lite.errors import BackendError, NotSupported
from sglang_lite.lang.backends.base import Backend, ChoiceScores, common_prefix
from sglang_lite.lang.backends.http import HttpClient
from sglang_lite.lang.backends.lowering import sglang_params
from sglang_lite.lang.chat_template import ChatTemplate, chatml, jinja
from sglang_lite.lang.loop import block_on
from sglang_lite.lang.nodes import LogprobOptions
from sglang_lite.lang.transcript import Piece, Prompt, any_of, runs
from sglang_lite.outputs import FinishReason, Logprobs, RequestOutput, Usage
from sglang_lite.sampling_params import SamplingParams

_CONTROL = re.compile(r"<\|[^<|>]*\|>|</?s>|\[/?INST\]|<(?:start|end)_of_turn>")
"""What looks like a control token, for servers that do not list theirs."""


class RuntimeEndpoint(Backend):
    """A server at ``base_url``.

    * ``api_key``, ``verify`` (as in httpx; None is True), ``timeout`` in seconds, ``retries``: see
      :class:`HttpClient`.
    * ``chat_template_name``: "chatml", or the path of a Jinja file; None takes the server's.

    Raises :class:`BackendError` where no such server answers.
    """

    name = "endpoint"
    obeys_constraints = False

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: Any = None,
        chat_template_name: str | None = None,
        *,
        timeout: float = 600.0,
        retries: int = 2,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        checked = True if verify is None else verify
        self.http = HttpClient(
            base_url, api_key=api_key, verify=checked, timeout=timeout, retries=retries
        )
        self.model_info: dict[str, Any] = block_on(self._model_info)
        self.exact = self.heals = self.ends_outside = block_on(self._tokenizes)
        self.chat_template = _chat_template(chat_template_name, self.model_info)
        control = self.model_info.get("control_tokens")
        self._control = _CONTROL if control is None else any_of(control)
        self._control_ids = frozenset(self.model_info.get("control_token_ids", ()))
        self._encoded: dict[tuple[str, bool], tuple[int, ...]] = {}
        self._pieces: dict[int, bytes] = {}
        self._token_texts: dict[int, str] = {}

    async def _model_info(self) -> dict[str, Any]:
        return await self.http.json("GET", "/get_model_info")

    async def _tokenizes(self) -> bool:
        """True for a server of ours, which tokenises text with control tokens switched off."""
        if "control_token_ids" not in self.model_info:
            return False
        body = {"prompt": "a", "add_special_tokens": False, "parse_special": False}
        return await self.http.ok("POST", "/tokenize", body)

    async def encode(self, pieces: Sequence[Piece], *, start: bool) -> tuple[int, ...] | None:
        """Exact ids from the server; None where it only takes text."""
        found = runs(pieces, self._control)
        if not self.exact:
            forged = [text for text, parse in found if not parse]
            if forged:
                raise NotSupported(
                    f"the text holds {forged[0]!r}, which this server would read as a control token"
                )
            return None
        ids: list[int] = []
        if start:
            ids += await self._tokenize("", True, add_special_tokens=True)
        for text, parse in found:
            ids += await self._tokenize(text, parse)
        return tuple(ids)

    async def _tokenize(
        self, text: str, parse_special: bool, add_special_tokens: bool = False
    ) -> tuple[int, ...]:
        key = (text, parse_special)
        if key not in self._encoded:
            body = {
                "prompt": text,
                "add_special_tokens": add_special_tokens,
                "parse_special": parse_special,
            }
            answer = await self.http.json("POST", "/tokenize", body)
            if len(self._encoded) >= 4096:
                self._encoded.clear()
            self._encoded[key] = tuple(answer["tokens"])
        return self._encoded[key]

    async def pieces(self, token_ids: Sequence[int]) -> list[bytes] | None:
        """See :meth:`Backend.pieces`; the server is asked for those not seen before."""
        if not self.exact:
            return None
        new = list({*token_ids} - self._pieces.keys())
        if new:
            body = {"tokens": new, "return_token_bytes": True}
            answer = await self.http.json("POST", "/detokenize", body)
            self._pieces |= zip(new, map(bytes, answer["token_bytes"]), strict=True)
        return [self._pieces[token] for token in token_ids]

    def control_ids(self) -> frozenset[int]:
        """See :meth:`Backend.control_ids`."""
        return self._control_ids if self.exact else frozenset()

    def token_text(self, token_id: int) -> str | None:
        """As the server told it beside a log probability."""
        return self._token_texts.get(token_id)

    async def stream(
        self, prompt: Prompt, params: SamplingParams, logprobs: LogprobOptions
    ) -> AsyncIterator[RequestOutput]:
        """See :meth:`Backend.stream`; the server's cumulative texts become deltas."""
        body = {
            **self._prompt(prompt),
            "sampling_params": sglang_params(params, ours=self.exact),
            "stream": True,
            "return_logprob": logprobs.return_logprob,
            "logprob_start_len": logprobs.logprob_start_len,
            "top_logprobs_num": logprobs.top_logprobs_num,
            "return_text_in_logprobs": logprobs.return_text_in_logprobs,
        }
        samples = [_Cumulative(self._token_texts) for _ in range(params.n)]
        events = self.http.events("/generate", body)
        try:
            async for event in events:
                if "error" in event:
                    raise BackendError("the server failed", body=json.dumps(event["error"]))
                index = event.get("index", 0)
                yield samples[index].output(event, index)
        finally:
            await events.aclose()  # type: ignore[attr-defined]

    def _prompt(self, prompt: Prompt) -> dict[str, Any]:
        if prompt.input_ids is not None:
            return {"input_ids": list(prompt.input_ids)}
        return {"text": prompt.text}

    async def score(
        self, prompt: Prompt, choices: Sequence[str], *, suffix: str, unconditional: str | None
    ) -> ChoiceScores:
        """All choices in one request, over the tokens where any of them differs."""
        pieces = [[*prompt.pieces, Piece(choice + suffix)] for choice in choices]
        if self.exact and prompt.input_ids is not None:
            rows = [
                [*prompt.input_ids[: prompt.sealed], *await self._tail(prompt, choice + suffix)]
                for choice in choices
            ]
            common = min(common_prefix(row, prompt.input_ids) for row in rows)
            scored = await self._logprobs({"input_ids": rows}, common)
        else:
            texts = ["".join(piece.text for piece in row) for row in pieces]
            whole = await self._logprobs({"text": [prompt.text, *texts]}, 0)
            ids = [[entry[1] for entry in row] for row in whole]
            common = min(common_prefix(row, ids[0]) for row in ids[1:])
            scored = [row[common:] for row in whole[1:]]
        alone = None
        if unconditional is not None:
            before = await self._context(unconditional)
            bare = [[*before, *(entry[1] for entry in row)] for row in scored]
            alone = await self._logprobs({"input_ids": bare}, len(before))
        return ChoiceScores(scored, [[] for _ in scored], alone)

    async def _context(self, text: str) -> tuple[int, ...]:
        if not text:
            return ()
        ids = await self.encode([Piece(text)], start=True)
        if ids is None:
            raise NotSupported("a neutral context: this server does not tokenise text")
        return ids

    async def _tail(self, prompt: Prompt, choice: str) -> tuple[int, ...]:
        starts = prompt.sealed == 0 and not (prompt.tail and prompt.tail[0].trusted)
        return await self.encode([*prompt.tail, Piece(choice)], start=starts) or ()

    async def _logprobs(self, prompts: dict[str, Any], start: int) -> list[list[list[Any]]]:
        body = {
            **prompts,
            "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": start,
            "return_text_in_logprobs": True,
        }
        answers = await self.http.json("POST", "/generate", body)
        return [answer["meta_info"]["input_token_logprobs"] for answer in answers]

    async def flush_cache(self) -> bool:
        """See :meth:`Backend.flush_cache`."""
        return await self.http.ok("POST", "/flush_cache")

    async def server_info(self) -> dict[str, Any]:
        """The server's own account of itself."""
        return await self.http.json("GET", "/get_server_info")

    async def close(self) -> None:
        """Close the connections."""
        await self.http.close()


class _Cumulative:
    """Turns the server's texts, which repeat everything so far, into deltas."""

    def __init__(self, token_texts: dict[int, str]) -> None:
        self._token_texts = token_texts
        self._text = 0
        self._ids = 0
        self._logprobs = 0
        self._prompt_logprobs = False

    def output(self, event: dict[str, Any], index: int) -> RequestOutput:
        meta = event.get("meta_info", {})
        text, ids = event.get("text", ""), event.get("output_ids", [])
        reason = meta.get("finish_reason")
        entries, top = self._entries(meta, "output")
        prompt_entries, prompt_top = self._entries(meta, "input")
        output = RequestOutput(
            rid=str(meta.get("id", "")),
            index=index,
            text=text[self._text :],
            token_ids=tuple(ids[self._ids :]),
            logprobs=_logprobs(entries[self._logprobs :], top[self._logprobs :]),
            prompt_logprobs=None
            if self._prompt_logprobs
            else _logprobs(prompt_entries, prompt_top),
            finish_reason=None if reason is None else _reason(reason),
            usage=Usage(
                prompt_tokens=meta.get("prompt_tokens", 0),
                completion_tokens=meta.get("completion_tokens", 0),
                cached_tokens=meta.get("cached_tokens", 0),
                forced_tokens=meta.get("forced_tokens", 0),
                compile_s=meta.get("compile_time", 0.0),
                queue_s=meta.get("queue_time", 0.0),
                ttft_s=meta.get("ttft", 0.0),
                e2e_s=meta.get("e2e_latency", 0.0),
            ),
        )
        self._text, self._ids, self._logprobs = len(text), len(ids), len(entries)
        self._prompt_logprobs = self._prompt_logprobs or bool(prompt_entries)
        return output

    def _entries(self, meta: dict[str, Any], side: str) -> tuple[list[Any], list[Any]]:
        """The tokens' entries and those of their alternatives; their texts are kept."""
        entries = meta.get(f"{side}_token_logprobs") or []
        top = [row or [] for row in meta.get(f"{side}_top_logprobs") or []]
        for _, token, text in [*entries, *(entry for row in top for entry in row)]:
            if text is not None:
                self._token_texts[token] = text
        return entries, top


def _reason(reason: dict[str, Any]) -> FinishReason:
    return FinishReason(reason["type"], reason.get("matched"), reason.get("message"))


def _logprobs(entries: Sequence[Any], top: Sequence[Any]) -> Logprobs | None:
    if not entries:
        return None
    pairs = [[(entry[0], entry[1]) for entry in row] for row in top]
    return Logprobs([(entry[0], entry[1]) for entry in entries], pairs)


def _chat_template(name: str | None, info: dict[str, Any]) -> ChatTemplate | None:
    """The template by name, as the server tells it, or from the tokenizer's folder."""
    if name == "chatml":
        return ChatTemplate(chatml, "chatml")
    if name is not None:
        return ChatTemplate(jinja(Path(name).read_text(encoding="utf-8")), name)
    if info.get("chat_template"):
        render = jinja(info["chat_template"], **info.get("named_tokens", {}))
        return ChatTemplate(render, "the server's")
    folder = Path(str(info.get("tokenizer_path") or info.get("model_path") or "."))
    return _folder_template(folder)


def _folder_template(folder: Path) -> ChatTemplate | None:
    config_file, jinja_file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    if not config_file.is_file():
        return None
    config = json.loads(config_file.read_text(encoding="utf-8"))
    source = config.get("chat_template")
    if jinja_file.is_file():
        source = jinja_file.read_text(encoding="utf-8")
    if not isinstance(source, str):
        return None
    tokens = {name: config.get(name) for name in ("bos_token", "eos_token", "unk_token")}
    named = {k: v["content"] if isinstance(v, dict) else v for k, v in tokens.items() if v}
    return ChatTemplate(jinja(source, **named), str(folder))
