"""What a new token means for its request: text, stops, grammar, and the news for its reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sglang_lite.errors import EngineError
from sglang_lite.outputs import FinishReason, Logprobs, RequestOutput, Usage
from sglang_lite.runtime.request import LogprobLog, Request

if TYPE_CHECKING:
    from sglang_lite.constrained import CompiledGrammar


def start(request: Request, grammar: CompiledGrammar) -> None:
    """Give the request its matcher and first mask.

    What the grammar forces before the first token becomes part of the first prefill.
    """
    from sglang_lite.constrained import GrammarMatcher

    request.matcher = GrammarMatcher(grammar)
    if request.remaining:
        _follow_grammar(request)


def accept(request: Request, token: int) -> None:
    """Take a sampled token and whatever the grammar then forces.

    Sets ``request.finish_reason`` where the sample ends.  Raises where this request alone fails.
    """
    if request.leaves(token):
        _leave(request, token)
        return
    _take(request, token)
    if request.matcher is not None and request.finish_reason is None:
        _follow_grammar(request)


def _follow_grammar(request: Request) -> None:
    """Append the tokens that the grammar leaves no choice about, and prepare the next mask.

    A request for log probabilities samples them instead, each from a mask of one: the model's
    opinion on the very same tokens is wanted.
    """
    assert request.matcher is not None
    if not request.forced:
        request.forced = request.matcher.find_forced_tokens(request.remaining)
    while request.forced and request.logprobs is None:
        _take(request, request.forced.pop(0))
        request.usage.forced_tokens += 1
        if request.finish_reason is not None:
            return
    if not request.fill_mask():
        # Only an end is possible, so there is nothing to ask the model.
        request.finish_reason = FinishReason("stop")
    elif request.forced:
        request.allowed = np.array([request.forced.pop(0)])


def _take(request: Request, token: int) -> None:
    """Append one token and look for an end: ids, then texts, then the length."""
    may_stop = request.output_len >= request.params.min_new_tokens
    request.append(token)
    if token in request.stop_ids and (may_stop or request.matcher is not None):
        request.finish_reason = FinishReason("stop", matched=token)
        if request.params.no_stop_trim:
            request.unsent_text += request.detokenizer.push(token)
        return
    if request.matcher is not None:
        if not request.matcher.accept_token(token):
            raise EngineError(f"the grammar refuses token {token}, which its own mask allowed")
        request.prefix_left -= len(request.matcher.compiled.vocabulary.token_bytes[token])
    may_stop = request.output_len >= request.params.min_new_tokens
    text, stop = request.stops.push(request.detokenizer.push(token), may_stop)
    request.unsent_text += text
    if stop is not None:
        request.finish_reason = FinishReason("stop", matched=stop)
    elif not request.remaining:
        request.finish_reason = FinishReason("length")


def _leave(request: Request, token: int) -> None:
    """The model went on with what is outside the constraint, so the sample ends.

    Tokens may reach over the end of a value (``."``): what still belongs to it is kept, as before
    a stop text.  A token that is outside altogether is not appended.
    """
    assert request.matcher is not None
    request.finish_reason = FinishReason("stop")
    kept = request.matcher.complete_prefix(token)
    if kept:
        request.append(token)
        text, stop = request.stops.push(request.detokenizer.push_bytes(kept))
        request.unsent_text += text
        if stop is not None:
            request.finish_reason = FinishReason("stop", matched=stop)


def flush_text(request: Request) -> None:
    """At the end: send what was held back in case it became a stop or a whole character."""
    reason = request.finish_reason
    if reason is not None and reason.type == "stop" and isinstance(reason.matched, str):
        return
    request.unsent_text += request.stops.flush() + request.detokenizer.flush()


def news(request: Request) -> RequestOutput | None:
    """The request's deltas since the last call, or None if there are none."""
    first, last = request.prompt_len + request.sent_tokens, len(request.tokens)
    if first == last and not request.unsent_text and request.finish_reason is None:
        return None
    log = request.logprobs
    text, request.unsent_text = request.unsent_text, ""
    request.sent_tokens += last - first
    request.usage.completion_tokens = request.output_len
    prompt_logprobs = None
    if log is not None and not request.prompt_logprobs_sent:
        prompt_logprobs = _entries(log, log.start, request.prompt_len)
        request.prompt_logprobs_sent = True
    return RequestOutput(
        rid=request.rid,
        index=request.index,
        text=text,
        token_ids=tuple(request.tokens[first:last]),
        logprobs=None if log is None else _entries(log, first, last),
        prompt_logprobs=prompt_logprobs,
        finish_reason=request.finish_reason,
        usage=Usage(**vars(request.usage)),
    )


def _entries(log: LogprobLog, first: int, last: int) -> Logprobs:
    part = slice(max(first - log.start, 0), max(last - log.start, 0))
    return Logprobs(tuple(log.tokens[part]), tuple(log.top[part]), tuple(log.chosen[part]))
