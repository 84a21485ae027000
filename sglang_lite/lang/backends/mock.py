"""A backend without a model: scripted answers, for tests of programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

from sglang_lite.errors import BackendError
from sglang_lite.lang.backends.base import Backend, ChoiceScores
from sglang_lite.lang.chat_template import ChatTemplate, chatml
from sglang_lite.lang.nodes import LogprobOptions
from sglang_lite.lang.transcript import Piece, Prompt
from sglang_lite.outputs import FinishReason, RequestOutput, Usage
from sglang_lite.sampling_params import SamplingParams

Answer = str | BaseException | Sequence[str]
"""A text; a list of deltas to stream one by one; or an exception to raise."""


class Mock(Backend):
    """Answers from a script.

    * ``answers``: a mapping from the variable's name to its answer; an iterable of answers, taken
      in the order of the calls; a function ``(prompt text, SamplingParams) -> answer``; or one
      answer for every call.
    * ``choose``: ``(prompt text, choices) -> list of scores`` for select; by default the first
      choice is the best.
    * ``delay``: seconds before each delta.

    A token is a character here.  ``calls`` collects (prompt text, params), also of select.
    """

    name = "mock"

    def __init__(
        self,
        answers: Answer
        | Mapping[str, Answer]
        | Iterable[Answer]
        | Callable[[str, SamplingParams], Answer] = "",
        *,
        choose: Callable[[str, Sequence[str]], Sequence[float]] | None = None,
        delay: float = 0.0,
    ) -> None:
        self.chat_template = ChatTemplate(chatml, "chatml")
        self.calls: list[tuple[str, SamplingParams | None]] = []
        self.aborted = 0
        self._choose = choose
        self._delay = delay
        self._answer = _answering(answers)

    async def encode(self, pieces: Sequence[Piece], *, start: bool) -> tuple[int, ...]:
        """A token is a character."""
        return tuple(ord(character) for piece in pieces for character in piece.text)

    async def pieces(self, token_ids: Sequence[int]) -> list[bytes]:
        """A token is a character."""
        return [chr(token).encode() for token in token_ids]

    async def stream(
        self, prompt: Prompt, params: SamplingParams, logprobs: LogprobOptions
    ) -> AsyncIterator[RequestOutput]:
        """Stream the next answer, once per sample."""
        self.calls.append((prompt.text, params))
        finished = False
        try:
            for index in range(params.n):
                answer = self._answer(prompt, params)
                if isinstance(answer, BaseException):
                    raise answer
                deltas = [answer] if isinstance(answer, str) else list(answer)
                async for output in self._deltas(prompt, params, deltas, index):
                    yield output
            finished = True
        finally:
            self.aborted += not finished

    async def _deltas(
        self, prompt: Prompt, params: SamplingParams, deltas: list[Any], index: int
    ) -> AsyncIterator[RequestOutput]:
        count = 0
        usage = Usage(prompt_tokens=len(prompt.input_ids or ()))
        left = params.max_new_tokens
        reason: FinishReason | None = None
        for delta in deltas:
            if isinstance(delta, BaseException):
                raise delta
            if self._delay:
                await asyncio.sleep(self._delay)
            if left is not None and count + len(delta) > left:
                delta, reason = delta[: left - count], FinishReason("length")
            count += len(delta)
            ids = tuple(map(ord, delta))
            yield RequestOutput("mock", index, delta, ids, usage=usage)
            if reason is not None:
                break
        usage = Usage(usage.prompt_tokens, count)
        yield RequestOutput(
            "mock", index, finish_reason=reason or FinishReason("stop"), usage=usage
        )

    async def score(
        self, prompt: Prompt, choices: Sequence[str], *, suffix: str, unconditional: str | None
    ) -> ChoiceScores:
        """Every choice is one token with the score that ``choose`` gives."""
        self.calls.append((prompt.text, None))
        if self._delay:
            await asyncio.sleep(self._delay)
        if self._choose is None:
            scores: Sequence[float] = [-0.1 - index for index in range(len(choices))]
        else:
            scores = self._choose(prompt.text, choices)
        rows = [[[score, 0, choice]] for score, choice in zip(scores, choices, strict=True)]
        alone = [[[None, 0, choice]] for choice in choices] if unconditional is not None else None
        return ChoiceScores(rows, [[] for _ in rows], alone)

    async def flush_cache(self) -> bool:
        """There is none, so it is empty."""
        return True


def _answering(answers: Any) -> Callable[[Prompt, SamplingParams], Any]:
    if isinstance(answers, (str, BaseException)):
        return lambda prompt, params: answers
    if callable(answers):
        return lambda prompt, params: answers(prompt.text, params)
    if isinstance(answers, Mapping):
        scripted = dict(answers)

        def named(prompt: Prompt, params: SamplingParams) -> Any:
            if prompt.variable in scripted:
                return scripted[prompt.variable]
            raise BackendError(f"the mock's script has no answer for {prompt.variable!r}")

        return named
    iterator = iter(answers)

    def following(prompt: Prompt, params: SamplingParams) -> Any:
        for answer in iterator:
            return answer
        raise BackendError("the mock's script has no more answers")

    return following
