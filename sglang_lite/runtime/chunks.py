"""How a request's tokens are cut into rows, and which of them others may reuse."""

from __future__ import annotations

from sglang_lite.runtime.request import Request


class Chunks:
    """Rows as large as the step's budget allows; every computed token is reusable."""

    def __init__(self, size: int) -> None:
        self.size = size

    def next_row(self, request: Request, budget: int) -> int:
        """How many tokens of the request to compute in this step; 0 < ... <= budget."""
        return min(request.pending, budget)

    def decode_row(self, request: Request) -> int:
        """The same for a request that is past its prompt, whatever the budget."""
        return request.pending

    def reusable(self, request: Request) -> int:
        """How many of its computed tokens go into the tree."""
        return min(request.computed, len(request.tokens))

    def usable(self, cached: int) -> int:
        """How many of ``cached`` tokens a request may take from the tree."""
        return cached


class FixedChunks(Chunks):
    """Rows that depend on the request alone, for bit-identical results in any company.

    A prompt is cut at multiples of the chunk size, and generated tokens are computed one by one,
    also when they are computed again after a preemption.  Only whole chunks of prompts are shared:
    the same token computed in a row of another length has slightly different keys and values.
    """

    def next_row(self, request: Request, budget: int) -> int:
        """Up to the next multiple of the chunk size, beyond the budget if need be."""
        if request.computed >= request.prompt_len:
            return 1
        return min(self.size - request.computed % self.size, request.prompt_len - request.computed)

    def decode_row(self, request: Request) -> int:
        """One token."""
        return 1

    def reusable(self, request: Request) -> int:
        """The whole chunks of its prompt."""
        return self.usable(min(request.computed, request.prompt_len))

    def usable(self, cached: int) -> int:
        """Whole chunks."""
        return cached - cached % self.size
