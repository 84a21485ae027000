"""What the language needs from whatever generates: one small protocol.

A backend gets a :class:`~sglang_lite.lang.transcript.Prompt`, the same state in several forms
(token ids, text, messages), and uses the best one that it understands.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_lite.constraint import Constraint
from sglang_lite.errors import NotSupported
from sglang_lite.lang.chat_template import ChatTemplate, chatml
from sglang_lite.lang.nodes import LogprobOptions
from sglang_lite.lang.transcript import Piece, Prompt
from sglang_lite.outputs import RequestOutput
from sglang_lite.sampling_params import SamplingParams


def common_prefix(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Length of the common beginning."""
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length


log = logging.getLogger("sglang_lite")


@dataclass(frozen=True)
class ChoiceScores:
    """Per choice the token entries ``[logprob, id, text]`` of one window common to all.

    ``token_ids`` are the ids of prompt + choice (None without a tokenizer), ``output`` the entries
    of what would follow (SGLang's ``output_token_logprobs``), ``unconditional`` those of the
    choice alone.
    """

    input: list[list[list[Any]]]
    output: list[list[list[Any]]]
    unconditional: list[list[list[Any]]] | None = None
    token_ids: list[tuple[int, ...]] | None = None
    usage: Mapping[str, int] = field(default_factory=dict)


class Backend(ABC):
    """Everything the interpreter calls; all coroutines run on the background loop."""

    name: str = "backend"
    obeys_constraints: bool = True
    """False for servers that may ignore a constraint: their answers are checked."""

    heals: bool = False
    """True where prompts are token ids and a constraint may have a prefix."""

    ends_outside: bool = False
    """True where ``SamplingParams.stop_outside`` is obeyed."""

    paid_by_prompt: bool = False
    """True for APIs to which every request sends the whole prompt, and pays for it."""

    chat_template: ChatTemplate | None = None

    async def encode(self, pieces: Sequence[Piece], *, start: bool) -> tuple[int, ...] | None:
        """Token ids of consecutive pieces, neighbours of one kind tokenised as one text.

        ``start`` adds what the tokenizer puts before a text (BOS).  None: no tokenizer here.
        """
        return None

    async def pieces(self, token_ids: Sequence[int]) -> list[bytes] | None:
        """The bytes that each token adds to a text, none for control tokens.

        None: no tokenizer here.
        """
        return None

    def control_ids(self) -> frozenset[int]:
        """The ids that say something else than text, such as the end of a turn."""
        return frozenset()

    def template(self) -> ChatTemplate:
        """The model's chat template; ChatML, with one warning, where it brings none."""
        if self.chat_template is None:
            log.warning("backend %s has no chat template: using ChatML", self.name)
            self.chat_template = ChatTemplate(chatml, "chatml", guessed=True)
        return self.chat_template

    async def continues(self, prompt: Prompt) -> bool:
        """True where this prompt can be gone on with; some chat APIs only begin messages."""
        return True

    @abstractmethod
    def stream(
        self, prompt: Prompt, params: SamplingParams, logprobs: LogprobOptions
    ) -> AsyncIterator[RequestOutput]:
        """Generate; deltas of all samples until each has a finish reason.

        Leaving the iterator early aborts the request.
        """

    async def score(
        self, prompt: Prompt, choices: Sequence[str], *, suffix: str, unconditional: str | None
    ) -> ChoiceScores:
        """Log probabilities of ``choice + suffix`` after the prompt, for every choice.

        ``unconditional``: a text after which the same tokens are scored too, in the prompt's place.
        """
        raise NotSupported(f"select is not supported by backend {self.name}")

    def token_text(self, token_id: int) -> str | None:
        """One token's text; None where it is not known."""
        return None

    async def choose(self, prompt: Prompt, choices: Sequence[str]) -> str | None:
        """A choice made without scores, for backends that have none; None: use :meth:`score`."""
        return None

    def refuses(self, constraint: Constraint) -> str | None:
        """Why this backend would not take a constraint; None where it would, or cannot tell."""
        return None

    async def flush_cache(self) -> bool:
        """Forget cached prefixes; False where that is not possible now."""
        return False

    async def server_info(self) -> dict[str, Any]:
        """What the backend tells about itself."""
        return {"backend": self.name}

    async def close(self) -> None:  # noqa: B027  most backends hold nothing
        """Release connections; the backend is not used any more."""
