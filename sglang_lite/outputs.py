"""What comes back from a generation: deltas, log probabilities, finish reasons and usage.

Shared by the engine, the server and the language's backends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

TokenLogprob = tuple["float | None", int]
"""(log probability, token id); None for the first token of a sequence, which nothing predicts."""


@dataclass(frozen=True)
class FinishReason:
    """Why a sample ended.

    ``stop``: a stop text, stop id or EOS (``matched`` says which) or the end of the constraint;
    ``length``: ``max_new_tokens`` or the context is used up; ``abort``: the caller gave up.
    """

    type: Literal["stop", "length", "abort"]
    matched: str | int | None = None
    message: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """SGLang's ``finish_reason`` object."""
        fields = {"matched": self.matched, "message": self.message}
        return {"type": self.type, **{k: v for k, v in fields.items() if v is not None}}


@dataclass
class Usage:
    """What one sample cost; times in seconds, measured by the engine's clock.

    ``cached_tokens``: prompt tokens found in the radix tree; ``forced_tokens``: completion tokens
    that the grammar left no choice about, so that they were never sampled.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    forced_tokens: int = 0
    compile_s: float = 0.0
    queue_s: float = 0.0
    ttft_s: float = 0.0
    e2e_s: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        """Both together; times are added too."""
        return Usage(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    @property
    def sampled_tokens(self) -> int:
        """Completion tokens that the model chose."""
        return self.completion_tokens - self.forced_tokens


@dataclass(frozen=True)
class Logprobs:
    """Log probabilities of some consecutive tokens, one entry per token in each filled list."""

    tokens: Sequence[TokenLogprob] = ()
    top: Sequence[Sequence[TokenLogprob]] = ()
    chosen_ids: Sequence[Sequence[TokenLogprob]] = ()


@dataclass(frozen=True)
class RequestOutput:
    """News of one sample: the deltas since the last one.  Deltas concatenate to the whole exactly.

    ``text`` never ends inside a character and never holds a part of a stop text; so ``token_ids``
    may run ahead of it.  ``index`` is the sample's number for n > 1.  The last output of a sample
    has a ``finish_reason`` and the final ``usage``.  ``prompt_logprobs`` comes once, with the
    first output.
    """

    rid: str
    index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None
    usage: Usage = field(default_factory=Usage)


def joined(outputs: Sequence[RequestOutput]) -> list[RequestOutput]:
    """The same news as one output per sample, for a reader that has fallen behind."""
    samples: dict[int, list[RequestOutput]] = {}
    for output in outputs:
        samples.setdefault(output.index, []).append(output)
    return [parts[0] if len(parts) == 1 else _join(parts) for parts in samples.values()]


def _join(parts: list[RequestOutput]) -> RequestOutput:
    """One sample's consecutive outputs as one."""
    logprobs = [part.logprobs for part in parts if part.logprobs is not None]
    return replace(
        parts[-1],
        text="".join(part.text for part in parts),
        token_ids=tuple(token for part in parts for token in part.token_ids),
        logprobs=Logprobs(
            [entry for part in logprobs for entry in part.tokens],
            [entry for part in logprobs for entry in part.top],
            [entry for part in logprobs for entry in part.chosen_ids],
        )
        if logprobs
        else None,
        prompt_logprobs=parts[0].prompt_logprobs,
    )
