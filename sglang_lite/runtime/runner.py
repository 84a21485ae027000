"""Steps on the model: launch a flat forward, sample from its logits, collect the tokens.

The three parts are apart so that a GPU need not wait for the host: a forward needs the tokens of
the step before on the device only, where they are, and just its sampling needs what the host makes
of them (penalties, masks).  On a CPU every part is done when it returns.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sglang_lite.errors import EngineError
from sglang_lite.runtime.batch import Batch, Relay, Row
from sglang_lite.runtime.device import send
from sglang_lite.runtime.logprobs import SCORE_ROWS, Scores, score, to_host
from sglang_lite.runtime.models.base import Model
from sglang_lite.runtime.request import LogprobLog, Request
from sglang_lite.runtime.sampler import SamplingRow, sample

# The longest that a request has masks made for it while the others of its batch wait, in seconds.
PREFETCH_SECONDS = 5e-4

Step = Mapping[Request, int]
Sampler = Callable[[torch.Tensor, Sequence[SamplingRow]], torch.Tensor]


@dataclass
class Launched:
    """A forward under way.  ``logits``: float32[R, V], a row for each of the ``requests``."""

    requests: list[Request]
    logits: torch.Tensor


@dataclass
class Flight:
    """Sampled tokens on their way to the host.

    ``requests`` has their rows.  ``tokens``: int64[R] on the device, ``arriving`` the same on the
    host once ``ready``.  ``scored``: the rows that ``scores`` are of.
    """

    requests: dict[Request, int]
    tokens: torch.Tensor
    arriving: torch.Tensor
    errors: dict[Request, Exception]
    scores: Scores | None
    scored: list[int]
    ready: torch.cuda.Event | None


class StepRunner:
    """Runs steps one after another; at most one step's tokens are in flight.

    ``sampler`` chooses tokens (see :func:`~sglang_lite.runtime.sampler.sample`).  With
    ``one_by_one`` each request is a forward of its own, so that its results do not depend on how
    many others there are.
    """

    def __init__(
        self, model: Model, *, sampler: Sampler = sample, one_by_one: bool = False
    ) -> None:
        self._model = model
        self._choose = sampler
        self._one_by_one = one_by_one
        self._flight: Flight | None = None

    @property
    def flying(self) -> bool:
        """Whether there are tokens to collect."""
        return self._flight is not None

    def launch(self, step: Step) -> Launched:
        """Compute the step's tokens, of which those in flight are read on the device."""
        parts: list[Step] = [step]
        if self._one_by_one:
            parts = [{request: count} for request, count in step.items()]
        done = [part for each in parts if (part := self._forward(each)).requests]
        if len(done) == 1:
            return done[0]
        logits = torch.cat([part.logits for part in done]) if done else torch.empty(0)
        return Launched([request for part in done for request in part.requests], logits)

    def _forward(self, step: Step) -> Launched:
        rows: list[Row] = []
        ids = array("i")
        ends: dict[Request, int] = {}
        flying: dict[Request, int] = {}
        for request, count in step.items():
            start, end = request.computed, request.computed + count
            rows.append(Row(request.slots[:end], start))
            ids += request.tokens[start:end]
            if end > len(request.tokens):
                flying[request] = len(ids)
                ids.append(0)
            if end == request.length and request.remaining:
                ends[request] = len(ids) - 1
        at, tokens, logs = _known_tokens(step)
        batch = Batch.build(
            rows,
            np.frombuffer(ids, dtype=np.int32),
            np.fromiter(ends.values(), np.int64, len(ends)),
            self._model.device,
            relay=self._relay(flying) if flying else None,
        )
        hidden = self._model.forward(batch)
        logits = self._model.logits(hidden[batch.logit_rows]) if ends else torch.empty(0)
        if at:
            self._score(hidden, at, tokens, logs)
        for request, count in step.items():
            request.computed += count
        return Launched(list(ends), logits)

    def _relay(self, flying: dict[Request, int]) -> Relay:
        """Have the ids of these requests' new tokens at these places read on the device."""
        assert self._flight is not None, "requests wait for tokens that nobody sampled"
        at = np.fromiter(flying.values(), np.int64, len(flying))
        source = [self._flight.requests[request] for request in flying]
        return Relay(at, np.array(source, dtype=np.int64), self._flight.tokens)

    def _score(
        self, hidden: torch.Tensor, at: list[int], tokens: list[int], logs: list[LogprobLog]
    ) -> None:
        """Log the probabilities of tokens that follow the hidden states ``at``."""
        for start in range(0, len(at), SCORE_ROWS):
            block = slice(start, start + SCORE_ROWS)
            logits = self._model.logits(hidden[_index(at[block], hidden)])
            wanted = _index(tokens[block], hidden)
            scores = score(logits, wanted, logs[block])
            if hidden.is_cuda:
                torch.cuda.current_stream().synchronize()
            scores.append(tokens[block])

    def sample(self, launched: Launched, requests: Sequence[Request]) -> None:
        """Choose the next token of some of the launched requests, in their order."""
        logits = launched.logits
        if len(requests) < len(launched.requests):
            place = {request: row for row, request in enumerate(launched.requests)}
            logits = logits[_index([place[request] for request in requests], logits)]
        rows, errors = [], {}
        for request in requests:
            try:
                rows.append(request.sampling_row())
            except Exception as error:
                errors[request] = error
                rows.append(SamplingRow())
        tokens = self._choose(logits, rows)
        scores = None
        scored = [row for row, request in enumerate(requests) if request.logprobs is not None]
        if scored:
            logs = [log for request in requests if (log := request.logprobs) is not None]
            if len(scored) == len(requests):
                scores = score(logits, tokens, logs)
            else:
                at = _index(scored, logits)
                scores = score(logits[at], tokens[at], logs)
        arriving, ready = to_host(tokens), None
        if tokens.is_cuda:
            ready = torch.cuda.Event()
            ready.record()
        places = {request: row for row, request in enumerate(requests)}
        self._flight = Flight(places, tokens, arriving, errors, scores, scored, ready)
        for request in requests:
            request.in_flight = 1

    def collect(self) -> Iterator[tuple[Request, int | Exception]]:
        """The tokens in flight, or why a request alone has none; waits for them."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        for request in flight.requests:
            request.in_flight = 0
        if flight.ready is not None:
            _prefetch_masks(flight.requests, flight.ready.query)
            flight.ready.synchronize()
        tokens = flight.arriving.tolist()
        if flight.scores is not None:
            flight.scores.append([tokens[row] for row in flight.scored])
        for request, token in zip(flight.requests, tokens, strict=True):
            if request in flight.errors:
                yield request, flight.errors[request]
            elif token < 0:
                reason = "no token can be chosen: the model's logits are not finite"
                yield request, EngineError(reason)
            else:
                yield request, token

    def forget(self) -> None:
        """Drop what is in flight."""
        flight, self._flight = self._flight, None
        for request in flight.requests if flight else ():
            request.in_flight = 0


def _prefetch_masks(requests: Iterable[Request], arrived: Callable[[], bool]) -> None:
    """While the tokens have not arrived, make masks that are likely to be needed after them."""
    for request in requests:
        if arrived():
            return
        if request.matcher is not None:
            try:
                request.matcher.prefetch(PREFETCH_SECONDS)
            except Exception:
                # It comes up again, and ends this request, if that mask is really needed.
                continue


def _index(numbers: Sequence[int], beside: torch.Tensor) -> torch.Tensor:
    """Integers on the device of another tensor."""
    return send(np.array(numbers, dtype=np.int64), beside.device)


def _known_tokens(step: Step) -> tuple[list[int], list[int], list[LogprobLog]]:
    """The tokens of prompts whose log probabilities are due.

    For each the flat place of the hidden state that predicts it, its id and its log.
    """
    at, tokens, logs, offset = [], [], [], 0
    for request, count in step.items():
        if request.logprobs is not None:
            # The logits at position i are those of the token at i + 1.
            first = max(request.computed, request.logprobs.next_position - 1)
            last = min(request.computed + count, len(request.tokens) - 1)
            for position in range(first, last):
                at.append(offset + position - request.computed)
                tokens.append(request.tokens[position + 1])
                logs.append(request.logprobs)
        offset += count
    return at, tokens, logs
