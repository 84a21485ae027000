"""One step on the model: a flat batch forward, log probabilities, sampling."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from sglang_lite.errors import EngineError
from sglang_lite.runtime.batch import Batch, Row
from sglang_lite.runtime.logprobs import SCORE_ROWS, log_tokens
from sglang_lite.runtime.models.base import Model
from sglang_lite.runtime.request import Request
from sglang_lite.runtime.sampler import SamplingRow, sample


def run_step(model: Model, step: Mapping[Request, int]) -> dict[Request, int | Exception]:
    """Compute the step's tokens and sample where a request has no more to compute.

    Returns the new token of each request that got one, or why this request alone failed.
    """
    rows, pieces, ends, offset = [], [], [], 0
    for request, count in step.items():
        end = request.computed + count
        rows.append(Row(request.slots[:end], request.computed))
        pieces.append(np.frombuffer(request.tokens[request.computed : end], dtype=np.int32))
        offset += count
        if end == len(request.tokens) and request.remaining:
            ends.append((request, offset - 1))
    token_ids = np.concatenate(pieces).astype(np.int64)
    logit_rows = np.array([at for _, at in ends], dtype=np.int64)
    batch = Batch.build(rows, token_ids, logit_rows, model.device)
    hidden = model.forward(batch)
    _score_known_tokens(model, hidden, step)
    for request, count in step.items():
        request.computed += count
    if not ends:
        return {}
    logits = model.logits(hidden[batch.logit_rows])
    return _sample(logits, [request for request, _ in ends])


def _score_known_tokens(model: Model, hidden: torch.Tensor, step: Mapping[Request, int]) -> None:
    """Log probabilities of tokens that are there already: those of the prompt."""
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
    for start in range(0, len(at), SCORE_ROWS):
        block = slice(start, start + SCORE_ROWS)
        logits = model.logits(hidden[torch.tensor(at[block], device=hidden.device)])
        log_tokens(logits, tokens[block], logs[block])


def _sample(logits: torch.Tensor, requests: list[Request]) -> dict[Request, int | Exception]:
    results: dict[Request, int | Exception] = {}
    rows = []
    for request in requests:
        try:
            rows.append(request.sampling_row())
        except Exception as error:
            results[request] = error
            rows.append(SamplingRow())
    for request, token in zip(requests, sample(logits, rows), strict=True):
        if token >= 0:
            results.setdefault(request, token)
        else:
            reason = "no token can be chosen: the model's logits are not finite"
            results.setdefault(request, EngineError(reason))
    logged = [i for i, request in enumerate(requests) if _has_log(request, results)]
    if logged:
        tokens = [results[requests[i]] for i in logged]
        logs = [requests[i].logprobs for i in logged]
        picked = logits if len(logged) == len(requests) else logits[logged]
        log_tokens(picked, tokens, logs)  # type: ignore[arg-type]
    return results


def _has_log(request: Request, results: Mapping[Request, int | Exception]) -> bool:
    return request.logprobs is not None and isinstance(results[request], int)
