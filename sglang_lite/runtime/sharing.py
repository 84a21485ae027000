"""What a waiting request can get from running ones beside it, before it is in the tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_lite.runtime.request import Request

DEFER_TOKENS = 32
"""A request waits for one that is computing a prefix of which it would reuse so many tokens."""


def prefix_is_coming(request: Request, cached: int, running: Sequence[Request]) -> bool:
    """Whether a running request is about to compute a prefix that this one can reuse.

    ``cached``: so many tokens of it are in the tree already.
    """
    limit = request.match_limit

    def is_ahead(other: Request) -> bool:
        # Where the match ends because the other one is between two of its chunks, every
        # further token counts: the prefix is to be computed once.
        between_chunks = other.computed == cached > other.usage.cached_tokens
        shared = cached + (1 if between_chunks else DEFER_TOKENS)
        return (
            shared <= min(limit, other.prefill_end)
            and other.namespace == request.namespace
            and other.tokens[cached:shared] == request.tokens[cached:shared]
            and other.tokens[:cached] == request.tokens[:cached]
        )

    return any(other.prefilling and is_ahead(other) for other in running)


def parents(request: Request, running: Sequence[Request]) -> Iterator[Request]:
    """The running requests whose generated text a prompt continues: it is a fork of theirs."""
    limit = request.match_limit
    for other in running:
        known = other.protected
        if (
            known < min(other.computed, limit)
            and other.tokens[known] == request.tokens[known]
            and other.namespace == request.namespace
            and other.tokens[:known] == request.tokens[:known]
        ):
            yield other
