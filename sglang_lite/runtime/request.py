"""One sample of a request while the engine works on it.

A sequence's life in three lengths: ``slots[:protected]`` belong to the radix tree,
``slots[:computed]`` hold valid keys and values, ``slots[:allocated]`` are reserved.  A sampled
token may be *in flight*: it exists on the device only, until the host has received it.
"""

from __future__ import annotations

import enum
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sglang_lite.constraint import Prefixed
from sglang_lite.errors import EngineError
from sglang_lite.outputs import FinishReason, TokenLogprob, Usage
from sglang_lite.runtime.messages import GenerateRequest
from sglang_lite.runtime.noise import uniform_noise
from sglang_lite.runtime.sampler import SamplingRow, allowed_ids

if TYPE_CHECKING:
    from sglang_lite.constrained import GrammarMatcher
    from sglang_lite.runtime.detokenizer import IncrementalDetokenizer, StopScanner
    from sglang_lite.runtime.output_stream import OutputStream
    from sglang_lite.runtime.radix_node import Node


class Status(enum.Enum):
    """Where a request is; it can be aborted in any state."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass
class LogprobLog:
    """Log probabilities of consecutive tokens, from position ``start`` of the sequence on."""

    start: int
    top_num: int
    chosen_ids: tuple[int, ...]
    tokens: list[TokenLogprob] = field(default_factory=list)
    top: list[list[TokenLogprob]] = field(default_factory=list)
    chosen: list[list[TokenLogprob]] = field(default_factory=list)

    @property
    def next_position(self) -> int:
        """Position of the first token whose log probability is not known yet."""
        return self.start + len(self.tokens)

    def append(
        self, token: TokenLogprob, top: list[TokenLogprob], chosen: list[TokenLogprob]
    ) -> None:
        """Add the next position's entry."""
        self.tokens.append(token)
        if self.top_num:
            self.top.append(top)
        if self.chosen_ids:
            self.chosen.append(chosen)


@dataclass(eq=False)
class Request:
    """One sample.  ``length_limit``: most tokens of the sequence, prompt included."""

    source: GenerateRequest
    rid: str
    index: int
    stream: OutputStream
    seed: int
    arrival: int
    length_limit: int
    stop_ids: frozenset[int]
    eos_ids: frozenset[int]
    detokenizer: IncrementalDetokenizer
    stops: StopScanner
    matcher: GrammarMatcher | None = None
    mask: np.ndarray | None = None

    def __post_init__(self) -> None:
        source, params = self.source, self.source.sampling_params
        self.params = params
        self.prompt_len = len(source.input_ids)
        self.priority = source.priority
        self.namespace = source.cache_salt
        self.tokens: array[int] = array("i", source.input_ids)
        self.status = Status.WAITING
        self.siblings: list[Request] = [self]
        self.overtaken = 0
        self.started = False
        self.aborted = False
        self.finish_reason: FinishReason | None = None

        self.in_flight = 0
        self.slots = np.empty(0, dtype=np.int64)
        self.computed = self.allocated = self.protected = 0
        self.prefill_end = self.prompt_len
        self.node: Node | None = None

        penalised = params.frequency_penalty or params.presence_penalty
        self.output_counts: Counter[int] | None = Counter() if penalised else None
        self.seen_ids = set(source.input_ids) if params.repetition_penalty != 1.0 else None
        self.allowed: np.ndarray | None = None
        # Bytes of the constraint's prefix that are to be written yet; below 0: the value has begun.
        constraint = params.constraint
        self.prefix_left = 0
        while isinstance(constraint, Prefixed):
            self.prefix_left += len(constraint.prefix.encode())
            constraint = constraint.constraint
        # What is left of a run of tokens that the grammar leaves no choice about.
        self.forced: list[int] = []

        self.logprobs: LogprobLog | None = None
        if source.return_logprob:
            start = source.logprob_start_len
            start = self.prompt_len if start < 0 else start
            self.logprobs = LogprobLog(start, source.top_logprobs_num, source.token_ids_logprob)
            if start == 0:
                # Nothing predicts the first token.
                self.logprobs.append((None, self.tokens[0]), [], [])
        self.submitted_at = 0.0
        self.started_at: float | None = None
        self.first_token_at: float | None = None
        self.usage = Usage(prompt_tokens=self.prompt_len)
        self.unsent_text = ""
        self.sent_tokens = 0
        self.prompt_logprobs_sent = self.logprobs is None or self.logprobs.start >= self.prompt_len

    @property
    def output_len(self) -> int:
        """Number of generated tokens."""
        return len(self.tokens) - self.prompt_len

    @property
    def length(self) -> int:
        """Number of tokens of the sequence, with the one in flight."""
        return len(self.tokens) + self.in_flight

    @property
    def pending(self) -> int:
        """Number of tokens whose keys and values are still to be computed."""
        return self.length - self.computed

    @property
    def prefilling(self) -> bool:
        """Whether it is still catching up with the tokens that it was admitted with."""
        return self.computed < self.prefill_end

    @property
    def match_limit(self) -> int:
        """How long a cached prefix is of use: one token must be computed, and so must every
        position that a wanted log probability is read from."""
        limit = self.length - 1
        if self.logprobs is not None:
            limit = min(limit, max(self.logprobs.next_position - 1, 0))
        return limit

    @property
    def remaining(self) -> int:
        """Most tokens that may still be generated."""
        return max(self.length_limit - self.length, 0)

    def append(self, token: int) -> None:
        """Add a generated token to the sequence and to what the penalties count."""
        self.tokens.append(token)
        if self.output_counts is not None:
            self.output_counts[token] += 1
        if self.seen_ids is not None:
            self.seen_ids.add(token)

    def fill_mask(self) -> bool:
        """Ask the grammar which tokens may come next; False if only an end is possible.

        Raises :class:`EngineError` for a dead end, which no constraint may have.
        """
        assert self.matcher is not None
        self.mask = self.matcher.next_token_mask
        self.allowed = allowed_ids(self.mask)
        if self.allowed is None or len(self.allowed) > len(self.eos_ids):
            return True
        if not len(self.allowed):
            raise EngineError("the constraint leaves no token that could come next")
        return not self.eos_ids.issuperset(self.allowed.tolist())

    @property
    def may_leave(self) -> bool:
        """Whether the next token is chosen freely, because outside the constraint is the end."""
        return (
            bool(self.params.stop_outside)
            and self.matcher is not None
            and self.prefix_left < 0
            and self.output_len >= self.params.min_new_tokens
            and self.matcher.is_completed()
        )

    def leaves(self, token: int) -> bool:
        """Whether this choice is the end, being no stop and nothing that the constraint allows."""
        if not self.may_leave or token in self.stop_ids:
            return False
        assert self.mask is not None
        word = token // 32
        return word >= len(self.mask) or not self.mask[word] >> (token % 32) & 1

    def sampling_row(self) -> SamplingRow:
        """How the next token is to be chosen."""
        params = self.params
        row = SamplingRow(
            # Beyond the bound all tokens are equally likely; single precision holds no more.
            temperature=0.0 if params.greedy else min(params.temperature, 1e30),
            top_k=params.top_k if params.top_k > 0 else -1,
            top_p=params.top_p,
            min_p=params.min_p,
            add=self._added(),
        )
        if not params.greedy:
            row.uniform = uniform_noise(self.seed, len(self.tokens), self.index)
        if self.seen_ids:
            ids = np.fromiter(self.seen_ids, np.int64, len(self.seen_ids))
            row.repetition = (ids, params.repetition_penalty)
        if self.mask is not None and not self.may_leave:
            row.allowed = self.allowed
            row.mask = None if row.allowed is not None else self.mask
        if self.output_len < params.min_new_tokens:
            self._ban_ends(row)
        return row

    def _added(self) -> tuple[np.ndarray, np.ndarray] | None:
        added: dict[int, float] = dict(self.params.logit_bias)
        for token, count in (self.output_counts or {}).items():
            penalty = count * self.params.frequency_penalty + self.params.presence_penalty
            added[token] = added.get(token, 0.0) - penalty
        if not added:
            return None
        ids = np.fromiter(added.keys(), np.int64, len(added))
        return ids, np.fromiter(added.values(), np.float64, len(added))

    def _ban_ends(self, row: SamplingRow) -> None:
        """No end before ``min_new_tokens``, except where the grammar allows nothing else."""
        ends = np.array(sorted(self.stop_ids | self.eos_ids), dtype=np.int64)
        if row.allowed is not None:
            others = row.allowed[~np.isin(row.allowed, ends)]
            row.allowed = others if len(others) else row.allowed
        else:
            row.banned = ends
