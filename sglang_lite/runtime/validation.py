"""The checks of a request that need the model: ids inside the vocabulary, lengths inside limits."""

from __future__ import annotations

from collections.abc import Iterable

from sglang_lite.errors import InvalidRequest, PromptTooLong
from sglang_lite.runtime.config import EngineConfig
from sglang_lite.runtime.detokenizer import compile_stop_pattern
from sglang_lite.runtime.messages import GenerateRequest

MAX_TOP_LOGPROBS = 64
MAX_CHOSEN_LOGPROBS = 1024


def check_request(request: GenerateRequest, vocab_size: int, config: EngineConfig) -> None:
    """Refuse what cannot work.  Raises :class:`InvalidRequest`, :class:`PromptTooLong`."""
    _check_types(request)
    params = request.sampling_params
    prompt_len = len(request.input_ids)
    if prompt_len == 0:
        raise InvalidRequest("input_ids", request.input_ids, "at least one token")
    _check_ids("input_ids", request.input_ids, vocab_size)
    _check_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    _check_ids("logit_bias", (token for token, _ in params.logit_bias), vocab_size)
    _check_ids("token_ids_logprob", request.token_ids_logprob, vocab_size)
    for pattern in params.stop_regex:
        compile_stop_pattern(pattern)
    _check_logprobs(request, prompt_len)
    # Every generated token needs a place in the context, and all but the last one a KV slot.
    wanted = params.max_new_tokens
    limit = min(config.context_length, config.max_total_tokens)
    if prompt_len + (0 if wanted == 0 else 1) > limit:
        raise PromptTooLong(prompt_len, 1 if wanted is None else wanted, limit)


def _check_types(request: GenerateRequest) -> None:
    """A float that passes for a count would only fail inside a step, which others share."""
    for name in ("logprob_start_len", "top_logprobs_num", "priority"):
        value = getattr(request, name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidRequest(name, value, "an integer")
    for name in ("rid", "cache_salt"):
        if not isinstance(value := getattr(request, name), str):
            raise InvalidRequest(name, value, "a str")
    if not isinstance(request.return_logprob, bool):
        raise InvalidRequest("return_logprob", request.return_logprob, "True or False")


def _check_logprobs(request: GenerateRequest, prompt_len: int) -> None:
    start, top = request.logprob_start_len, request.top_logprobs_num
    if not -1 <= start <= prompt_len:
        accepted = f"-1 or a position from 0 to {prompt_len}, the prompt's length"
        raise InvalidRequest("logprob_start_len", start, accepted)
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise InvalidRequest("top_logprobs_num", top, f"from 0 to {MAX_TOP_LOGPROBS}")
    if len(request.token_ids_logprob) > MAX_CHOSEN_LOGPROBS:
        accepted = f"at most {MAX_CHOSEN_LOGPROBS} ids"
        raise InvalidRequest("token_ids_logprob", request.token_ids_logprob, accepted)
    if not request.return_logprob and (start >= 0 or top or request.token_ids_logprob):
        accepted = "True where logprob_start_len, top_logprobs_num or token_ids_logprob is given"
        raise InvalidRequest("return_logprob", False, accepted)


def _check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
            raise InvalidRequest(name, token, f"ids from 0 to {vocab_size - 1}")
