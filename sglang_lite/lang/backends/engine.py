"""The in-process engine as a backend: token ids in, token ids out, so prefixes match exactly."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

from sglang_lite.constraint import Constraint
from sglang_lite.errors import ConstraintError, EngineError
from sglang_lite.lang.backends.base import Backend, ChoiceScores, common_prefix
from sglang_lite.lang.chat_template import ChatTemplate
from sglang_lite.lang.nodes import LogprobOptions
from sglang_lite.lang.transcript import Piece, Prompt, any_of, runs
from sglang_lite.outputs import RequestOutput, TokenLogprob
from sglang_lite.runtime.engine import Engine
from sglang_lite.runtime.messages import GenerateRequest
from sglang_lite.runtime.tokenizer import Tokenizer
from sglang_lite.sampling_params import SamplingParams

SCORE_ONLY = SamplingParams(max_new_tokens=0, temperature=0.0)


@functools.lru_cache(maxsize=8)
def _text_rules(tokenizer: Tokenizer) -> tuple[ChatTemplate | None, re.Pattern[str]]:
    """The tokenizer's chat template and what its control tokens look like."""

    def render(messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        return tokenizer.render_chat_template(messages, add_generation_prompt=add_generation_prompt)

    template = None
    if tokenizer.chat_template is not None:
        template = ChatTemplate(render, "the tokenizer's")
    return template, any_of(tokenizer.control_tokens)


class EngineBackend(Backend):
    """Runs programs on an :class:`~sglang_lite.runtime.engine.Engine` of this process."""

    name = "engine"
    heals = True
    ends_outside = True

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tokenizer = engine.tokenizer
        self.chat_template, self._control = _text_rules(engine.tokenizer)
        self._control_ids = engine.tokenizer.control_ids

    async def encode(self, pieces: Sequence[Piece], *, start: bool) -> tuple[int, ...]:
        """See :meth:`Backend.encode`; equal to the ids of the whole chat template's text."""
        ids: list[int] = []
        if start:
            ids += self.tokenizer.encode("", add_special_tokens=True)
            if ids and ids[-1] in self.tokenizer.eos_token_ids and len(ids) > 1:
                ids.pop()
        for text, parse_special in runs(pieces, self._control):
            ids += self.tokenizer.encode(text, parse_special=parse_special)
        return tuple(ids)

    def control_ids(self) -> frozenset[int]:
        """See :meth:`Backend.control_ids`."""
        return self._control_ids

    def token_text(self, token_id: int) -> str | None:
        """See :meth:`Backend.token_text`."""
        piece = self.tokenizer.piece_bytes(token_id, skip_special_tokens=False)
        return piece.decode("utf-8", "replace")

    async def pieces(self, token_ids: Sequence[int]) -> list[bytes]:
        """See :meth:`Backend.pieces`."""
        return [self.tokenizer.piece_bytes(token) for token in token_ids]

    async def stream(
        self, prompt: Prompt, params: SamplingParams, logprobs: LogprobOptions
    ) -> AsyncIterator[RequestOutput]:
        """See :meth:`Backend.stream`."""
        stream = await self.engine.asubmit(
            GenerateRequest(
                prompt.input_ids or (),
                params,
                return_logprob=logprobs.return_logprob,
                logprob_start_len=logprobs.logprob_start_len,
                top_logprobs_num=logprobs.top_logprobs_num,
            )
        )
        try:
            async for output in stream:
                yield output
        finally:
            stream.abort()

    async def score(
        self, prompt: Prompt, choices: Sequence[str], *, suffix: str, unconditional: str | None
    ) -> ChoiceScores:
        """One request per choice, all at once, over the tokens where any choice differs."""
        sealed = (prompt.input_ids or ())[: prompt.sealed]
        starts = not sealed and not (prompt.tail and prompt.tail[0].trusted)
        rows = [
            sealed + await self.encode([*prompt.tail, Piece(choice + suffix)], start=starts)
            for choice in choices
        ]
        common = min(common_prefix(row, prompt.input_ids or ()) for row in rows)
        scored = await asyncio.gather(*(self._logprobs(row, common) for row in rows))
        alone = None
        if unconditional is not None:
            before = await self.encode([Piece(unconditional)], start=bool(unconditional))
            parts = [before + row[common:] for row in rows]
            found = await asyncio.gather(*(self._logprobs(part, len(before)) for part in parts))
            alone = [self._entries(tokens) for tokens in found]
        return ChoiceScores(
            input=[self._entries(tokens) for tokens in scored],
            output=[[] for _ in rows],
            unconditional=alone,
        )

    async def _logprobs(self, ids: tuple[int, ...], start: int) -> list[TokenLogprob]:
        """Log probabilities of the tokens from position ``start`` on."""
        if start >= len(ids):
            return []
        request = GenerateRequest(ids, SCORE_ONLY, return_logprob=True, logprob_start_len=start)
        stream = await self.engine.asubmit(request)
        tokens: list[TokenLogprob] = []
        async for output in stream:
            if output.prompt_logprobs is not None:
                tokens += output.prompt_logprobs.tokens
        if len(tokens) != len(ids) - start:
            raise EngineError(f"{len(tokens)} log probabilities for {len(ids) - start} tokens")
        return tokens

    def _entries(self, tokens: Sequence[TokenLogprob]) -> list[list[Any]]:
        return [[value, id, self.token_text(id)] for value, id in tokens]

    def refuses(self, constraint: Constraint) -> str | None:
        """The compiler's reason."""
        try:
            self.engine.compile(constraint)
        except ConstraintError as error:
            return str(error)
        return None

    async def flush_cache(self) -> bool:
        """See :meth:`Backend.flush_cache`."""
        return await asyncio.to_thread(self.engine.flush_cache)

    async def server_info(self) -> dict[str, Any]:
        """The engine's statistics."""
        return dict(self.engine.stats())
