"""Writing ahead on APIs that are paid by the prompt: ``@function(num_api_spec_tokens=k)``.

One long answer is asked for; the gens that follow are cut out of it as long as the literals between
them are what the model has written too.  So a program of several gens sends its prompt once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator

from sglang_lite.errors import BackendError
from sglang_lite.lang.backends.base import Backend
from sglang_lite.lang.nodes import LogprobOptions
from sglang_lite.lang.transcript import Prompt
from sglang_lite.outputs import FinishReason, RequestOutput, Usage
from sglang_lite.sampling_params import SamplingParams

TRIES = 3
"""So often an answer is asked for that has to begin as the program's own text does."""


class Speculation:
    """What the model has written beyond the end of one state; ``tokens``: the least asked for."""

    def __init__(self, backend: Backend, tokens: int) -> None:
        self._backend = backend
        self._tokens = tokens
        self._ahead = ""
        self._ended = False
        self._made_with: SamplingParams | None = None

    def literal(self, text: str) -> None:
        """The program has appended ``text``."""
        if self._ahead.startswith(text):
            self._ahead = self._ahead[len(text) :]
        else:
            self.drop()

    def drop(self) -> None:
        """The program goes another way than the model."""
        self._ahead = ""

    async def stream(
        self, prompt: Prompt, params: SamplingParams, logprobs: LogprobOptions
    ) -> AsyncIterator[RequestOutput]:
        """As ``Backend.stream``, with the answer from what is written already where it can be.

        The usage of an answer belongs to the gen that asked for it.
        """
        usage, found = Usage(), None
        if not _plain(params) or logprobs.return_logprob:
            self.drop()
        else:
            found = self._take(params)
            if found is None:
                usage = await self._write(prompt, params, logprobs)
                found = self._take(params)
        if found is not None:
            text, reason = found
            yield RequestOutput("ahead", 0, text, finish_reason=reason, usage=usage)
            return
        self.drop()
        outputs = self._backend.stream(prompt, params, logprobs)
        try:
            async for output in outputs:
                yield output
        finally:
            await outputs.aclose()  # type: ignore[attr-defined]

    def _take(self, params: SamplingParams) -> tuple[str, FinishReason] | None:
        """The beginning of what is written that ``params`` would have stopped after."""
        if not self._ahead or self._made_with != _kind(params):
            return None
        stops = [
            (self._ahead.index(stop), -len(stop), stop)
            for stop in params.stop
            if stop in self._ahead
        ]
        if stops:
            end, _, stop = min(stops)
            reason = FinishReason("stop", stop)
        elif self._ended:
            end, reason = len(self._ahead), FinishReason("stop")
        else:
            return None
        text = self._ahead[:end]
        # A token is at least a byte; a longer text may have more tokens than were asked for.
        limit = params.max_new_tokens
        if limit is not None and len(text.encode()) > limit:
            return None
        self._ahead = self._ahead[end:]
        return text, reason

    async def _write(
        self, prompt: Prompt, params: SamplingParams, logprobs: LogprobOptions
    ) -> Usage:
        """Ask for a long answer."""
        limit = params.max_new_tokens
        length = None if limit is None else max(limit, self._tokens)
        ahead = params.replace(stop=(), max_new_tokens=length)
        begun = "" if await self._backend.continues(prompt) else prompt.messages[-1].content
        if begun:
            empty = dataclasses.replace(prompt.messages[-1], content="")
            prompt = dataclasses.replace(prompt, messages=(*prompt.messages[:-1], empty))
        usage = Usage()
        for _ in range(TRIES):
            text = ""
            async for output in self._backend.stream(prompt, ahead, logprobs):
                text += output.text
                if output.finish_reason is not None:
                    self._ended = output.finish_reason.type == "stop"
                    usage = usage + output.usage
            if text.startswith(begun):
                self._ahead, self._made_with = text[len(begun) :], _kind(params)
                return usage
        told = f"{TRIES} answers in turn do not begin with {begun!r}; the last one is"
        raise BackendError(told, body=text)


def _plain(params: SamplingParams) -> bool:
    """True where texts may be cut out of a longer answer."""
    special = params.constraint, params.stop_regex, params.stop_token_ids, params.min_new_tokens
    return params.n == 1 and not any(special) and not params.no_stop_trim


def _kind(params: SamplingParams) -> SamplingParams:
    """What two gens must have in common to share an answer: all but stops, length and seed."""
    return params.replace(stop=(), max_new_tokens=None, seed=None)
