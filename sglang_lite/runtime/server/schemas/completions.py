"""The body of ``/v1/completions``."""

from __future__ import annotations

from typing import ClassVar

from sglang_lite.runtime.server.errors import invalid
from sglang_lite.runtime.server.schemas.chat import MAX_LOGPROBS, OPENAI_IGNORED, SamplingFields
from sglang_lite.runtime.server.schemas.wire import Many

MAX_PROMPTS = 256
DEFAULT_MAX_TOKENS = 16


class CompletionRequest(SamplingFields):
    """The body of ``POST /v1/completions``; a prompt is a text or token ids, or a list of these."""

    prompt: str | Many[str] | Many[int] | Many[Many[int]]
    max_tokens: int | None = None
    echo: bool = False
    logprobs: int | None = None
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: bool = True
    ignored: ClassVar[frozenset[str]] = OPENAI_IGNORED

    def check(self) -> None:
        """The rules between fields; raises a 400."""
        if self.suffix:
            raise invalid("suffix", "this model cannot fill in text", "unsupported_value")
        limit = self.token_limit
        if limit < 0 or (limit == 0 and not self.echo):
            raise invalid("max_tokens", f"max_tokens={limit} needs echo=true, or to be at least 1")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise invalid("logprobs", f"logprobs is an integer, 0 to {MAX_LOGPROBS}")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise invalid("best_of", "only best_of = n is supported", "unsupported_value")

    @property
    def token_limit(self) -> int:
        """How many tokens at most."""
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    def prompts(self) -> list[str | list[int]]:
        """One entry per prompt; raises a 400 for empty and for too many ones."""
        single = isinstance(self.prompt, str) or (
            bool(self.prompt) and isinstance(self.prompt[0], int)
        )
        prompts: list[str | list[int]] = [self.prompt] if single else [*self.prompt]  # type: ignore[list-item]
        if not prompts or not all(prompts):
            raise invalid("prompt", "a prompt must not be empty")
        if len(prompts) > MAX_PROMPTS:
            raise invalid("prompt", f"at most {MAX_PROMPTS} prompts are accepted")
        return prompts
