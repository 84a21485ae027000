"""A backend without a model that answers with random texts, each allowed by its constraint.

It finds out in milliseconds what a program does with values that no model would give in a test.
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Sequence

from sglang_lite.constrained import (
    GrammarCompiler,
    GrammarMatcher,
    Vocabulary,
    allocate_token_bitmask,
)
from sglang_lite.constraint import Constraint
from sglang_lite.errors import ConstraintError
from sglang_lite.lang.backends.base import Backend, ChoiceScores
from sglang_lite.lang.chat_template import ChatTemplate, chatml
from sglang_lite.lang.nodes import LogprobOptions
from sglang_lite.lang.transcript import Prompt
from sglang_lite.outputs import FinishReason, RequestOutput, Usage
from sglang_lite.sampling_params import SamplingParams

END = 256
CLOSERS = frozenset(b'"]}')
WORDS = ["red", "fox", "λόγος", "你好", "🙂", "42", ",", ".", "\n", "yes", "no"]


class Fuzz(Backend):
    """Draws texts at random; the same ``seed`` gives the same texts in the same order.

    ``max_bytes``: about where texts without a natural end are brought to one; a text that its
    constraint does not let end there ends with "length".
    """

    name = "fuzz"

    def __init__(self, seed: int = 0, *, max_bytes: int = 400) -> None:
        self.chat_template = ChatTemplate(chatml, "chatml")
        self._random = random.Random(seed)
        self._max_bytes = max_bytes
        tokens = [bytes([byte]) for byte in range(256)]
        self._compiler = GrammarCompiler(Vocabulary([*tokens, b""], eos_token_ids=[END]))

    async def stream(
        self, prompt: Prompt, params: SamplingParams, logprobs: LogprobOptions
    ) -> AsyncIterator[RequestOutput]:
        """One random text for each sample, in one piece; stop texts end it."""
        for index in range(params.n):
            if params.constraint is None:
                text, finish = self._words(params)
            else:
                text, finish = self._walk(params.constraint)
            found = [(text.index(stop), -len(stop), stop) for stop in params.stop if stop in text]
            if found:
                at, _, stop = min(found)
                text, finish = text[:at], FinishReason("stop", stop)
            yield RequestOutput(
                "fuzz", index, text, finish_reason=finish, usage=Usage(0, len(text))
            )

    def _words(self, params: SamplingParams) -> tuple[str, FinishReason]:
        limit = params.max_new_tokens if params.max_new_tokens is not None else 50
        count = self._random.randint(0, min(limit, 50))
        words = " ".join(self._random.choice(WORDS) for _ in range(count))
        return words, FinishReason("length" if count == limit else "stop")

    def _walk(self, constraint: Constraint) -> tuple[str, FinishReason]:
        """A random walk over the bytes that the constraint allows."""
        matcher = GrammarMatcher(self._compiler.compile(constraint))
        mask = allocate_token_bitmask(1, END + 1)
        text = bytearray()
        while len(text) < 3 * self._max_bytes:
            matcher.fill_next_token_bitmask(mask, 0)
            words = [int(word) & 0xFFFFFFFF for word in mask[0]]
            allowed = [token for token in range(END + 1) if words[token // 32] >> token % 32 & 1]
            token = self._choose(allowed, hurry=len(text) > self._max_bytes)
            if token == END:
                return text.decode(), FinishReason("stop")
            matcher.accept_token(token)
            text.append(token)
        return text.decode("utf-8", "ignore"), FinishReason("length")

    def _choose(self, allowed: list[int], hurry: bool) -> int:
        if END in allowed and (len(allowed) == 1 or hurry or self._random.random() < 0.2):
            return END
        closers = [token for token in allowed if token in CLOSERS]
        if closers and (hurry or self._random.random() < 0.1):
            return self._random.choice(closers)
        # Printable ASCII is a third of the bytes but most of what programs will meet.
        plain = [token for token in allowed if 32 <= token < 127]
        if plain and self._random.random() < 0.8:
            return self._random.choice(plain)
        return self._random.choice([token for token in allowed if token != END] or allowed)

    def refuses(self, constraint: Constraint) -> str | None:
        """What the compiler of this package says of a constraint."""
        try:
            self._compiler.compile(constraint)
        except ConstraintError as error:
            return str(error)
        return None

    async def score(
        self, prompt: Prompt, choices: Sequence[str], *, suffix: str, unconditional: str | None
    ) -> ChoiceScores:
        """Random probabilities."""
        rows = [[[math.log(self._random.uniform(1e-6, 1)), 0, choice]] for choice in choices]
        alone = [[[None, 0, choice]] for choice in choices] if unconditional is not None else None
        return ChoiceScores(rows, [[] for _ in rows], alone)
