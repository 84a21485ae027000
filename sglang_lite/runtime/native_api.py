"""SGLang's dicts: from the arguments of ``Engine.generate`` to requests, and back from outputs.

A result is ``{text, output_ids, meta_info}``.  Log probabilities are lists of
``[logprob, token id, text or None]``; the logprob of a sequence's first token is None.
"""

from __future__ import annotations

import asyncio
import queue
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

from sglang_lite.errors import InvalidRequest
from sglang_lite.outputs import FinishReason, Logprobs, RequestOutput, TokenLogprob, Usage
from sglang_lite.runtime.messages import GenerateRequest
from sglang_lite.runtime.output_stream import OutputStream, call_in
from sglang_lite.runtime.tokenizer import Tokenizer
from sglang_lite.sampling_params import SamplingParams

Params = SamplingParams | Mapping[str, Any] | None


@dataclass
class Call:
    """The arguments of ``Engine.generate``, under SGLang's names.

    * ``prompt``: a text or several; or else ``input_ids``, one prompt's token ids or several.  A
      text may hold control tokens, and gets BOS where the tokenizer adds one.
    * ``sampling_params``, ``rid``: one for all prompts, or a list.
    * ``return_logprob``, what follows it, ``priority`` and ``cache_salt``: see
      :class:`~sglang_lite.runtime.messages.GenerateRequest`; with ``return_text_in_logprobs``
      each token's text is there too.
    * ``stream``: give an iterator of results as they grow.
    """

    prompt: str | Sequence[str] | None = None
    sampling_params: Params | Sequence[Params] = None
    _: KW_ONLY
    input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: Sequence[int] | None = None
    return_text_in_logprobs: bool = False
    stream: bool = False
    rid: str | Sequence[str] | None = None
    priority: int = 0
    cache_salt: str = ""


@dataclass
class Batch:
    """The requests of one call and their results.

    ``samples`` has those of each request.  ``is_list``: the result is a list of dicts.
    """

    requests: list[GenerateRequest]
    samples: list[list[Sample]]
    is_list: bool
    stream: bool

    @classmethod
    def of(cls, call: Call, tokenizer: Tokenizer) -> Batch:
        """Check and tokenise.  Raises :class:`InvalidRequest`."""
        for flag in ("stream", "return_text_in_logprobs"):
            if not isinstance(value := getattr(call, flag), bool):
                raise InvalidRequest(flag, value, "True or False")
        chosen = call.token_ids_logprob
        if chosen is not None:
            chosen = _listed("token_ids_logprob", chosen, "a list of token ids", empty=True)
        prompts, is_list = _prompts(tokenizer, call.prompt, call.input_ids)
        params = _per_prompt("sampling_params", call.sampling_params, len(prompts))
        rids = _per_prompt("rid", call.rid, len(prompts))
        if isinstance(call.rid, str) and len(prompts) > 1:
            raise InvalidRequest("rid", call.rid, f"a list of {len(prompts)} names")
        requests = [
            GenerateRequest(
                input_ids=tuple(ids),
                sampling_params=_params(given),
                rid=uuid.uuid4().hex if name in (None, "") else name,
                return_logprob=call.return_logprob,
                logprob_start_len=call.logprob_start_len,
                top_logprobs_num=call.top_logprobs_num,
                token_ids_logprob=tuple(chosen or ()),
                priority=call.priority,
                cache_salt=call.cache_salt,
            )
            for ids, given, name in zip(prompts, params, rids, strict=True)
        ]
        describe = tokenizer.token_text if call.return_text_in_logprobs else None
        samples = [
            [Sample(request, index, describe) for index in range(request.sampling_params.n)]
            for request in requests
        ]
        several = any(len(of_one) > 1 for of_one in samples)
        return cls(requests, samples, is_list or several, call.stream)

    def take(self, number: int, output: RequestOutput) -> dict[str, Any]:
        """Add an output of request ``number``; its sample so far if the call streams."""
        sample = self.samples[number][output.index]
        sample.add(output)
        if not self.stream:
            return {}
        result = sample.to_dict()
        if self.is_list:
            earlier = sum(len(several) for several in self.samples[:number])
            result["index"] = earlier + output.index
        return result

    def results(self) -> dict[str, Any] | list[dict[str, Any]]:
        """The dicts, one or a list."""
        dicts = [sample.to_dict() for several in self.samples for sample in several]
        return dicts if self.is_list else dicts[0]


def stream_results(batch: Batch, streams: Sequence[OutputStream]) -> Iterator[dict[str, Any]]:
    """What :meth:`Batch.take` makes of each output of any of the streams, as they come.

    Ending early, even before the first result, or failing, aborts the requests.
    """
    results = _results(batch, streams)
    # A generator that was never entered would skip its ``finally``.
    next(results)
    return results


def _results(batch: Batch, streams: Sequence[OutputStream]) -> Iterator[dict[str, Any]]:
    news: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number, stream in enumerate(streams):
        stream.subscribe(partial(news.put, number))
    open_streams = set(range(len(streams)))
    try:
        yield {}
        while open_streams:
            number = news.get()
            if number in open_streams:
                outputs, finished = streams[number].take()
                if finished:
                    open_streams.discard(number)
                for output in outputs:
                    yield batch.take(number, output)
    finally:
        for stream in streams:
            stream.abort()


async def astream_results(
    batch: Batch, streams: Sequence[OutputStream]
) -> AsyncIterator[dict[str, Any]]:
    """:func:`stream_results` for an event loop."""
    results = _aresults(batch, streams)
    await anext(results)
    return results


async def _aresults(batch: Batch, streams: Sequence[OutputStream]) -> AsyncIterator[dict[str, Any]]:
    loop = asyncio.get_running_loop()
    news: asyncio.Queue[int] = asyncio.Queue()
    for number, stream in enumerate(streams):
        stream.subscribe(partial(call_in, loop, partial(news.put_nowait, number)))
    open_streams = set(range(len(streams)))
    try:
        yield {}
        while open_streams:
            number = await news.get()
            if number in open_streams:
                outputs, finished = streams[number].take()
                if finished:
                    open_streams.discard(number)
                for output in outputs:
                    yield batch.take(number, output)
    finally:
        for stream in streams:
            stream.abort()


@dataclass
class Sample:
    """One sample's outputs put together.  ``describe`` gives a token's text for logprobs."""

    request: GenerateRequest
    index: int
    describe: Callable[[int], str] | None = None
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    prompt_logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None
    usage: Usage = field(default_factory=Usage)

    def add(self, output: RequestOutput) -> None:
        """Append the deltas of one output."""
        self.text += output.text
        self.token_ids += output.token_ids
        if output.logprobs is not None:
            self.logprobs.append(output.logprobs)
        self.prompt_logprobs = output.prompt_logprobs or self.prompt_logprobs
        self.finish_reason = output.finish_reason
        self.usage = output.usage

    def to_dict(self) -> dict[str, Any]:
        """SGLang's dict of everything so far."""
        usage, several = self.usage, self.request.sampling_params.n > 1
        reason = self.finish_reason.to_dict() if self.finish_reason else None
        if reason is not None and reason["type"] == "length":
            reason["length"] = usage.completion_tokens
        meta: dict[str, Any] = {
            "id": f"{self.request.rid}-{self.index}" if several else self.request.rid,
            "finish_reason": reason,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "forced_tokens": usage.forced_tokens,
            "compile_time": usage.compile_s,
            "queue_time": usage.queue_s,
            "ttft": usage.ttft_s,
            "e2e_latency": usage.e2e_s,
        }
        if self.request.return_logprob:
            meta |= self._logprob_fields()
        return {"text": self.text, "output_ids": list(self.token_ids), "meta_info": meta}

    def _logprob_fields(self) -> dict[str, Any]:
        prompt = self.prompt_logprobs or Logprobs()
        fields: dict[str, Any] = {
            "input_token_logprobs": self._entries(prompt.tokens),
            "output_token_logprobs": [
                entry for part in self.logprobs for entry in self._entries(part.tokens)
            ],
        }
        if self.request.top_logprobs_num:
            fields["input_top_logprobs"] = self._lists(prompt.top)
            fields["output_top_logprobs"] = [
                entry for part in self.logprobs for entry in self._lists(part.top)
            ]
        if self.request.token_ids_logprob:
            fields["input_token_ids_logprobs"] = self._lists(prompt.chosen_ids)
            fields["output_token_ids_logprobs"] = [
                entry for part in self.logprobs for entry in self._lists(part.chosen_ids)
            ]
        return fields

    def _entries(self, entries: Sequence[TokenLogprob]) -> list[list[Any]]:
        name = self.describe
        return [[value, token, name and name(token)] for value, token in entries]

    def _lists(self, positions: Sequence[Sequence[TokenLogprob]]) -> list[list[list[Any]] | None]:
        return [self._entries(entries) if entries else None for entries in positions]


def _prompts(
    tokenizer: Tokenizer,
    prompt: str | Sequence[str] | None,
    input_ids: Sequence[int] | Sequence[Sequence[int]] | None,
) -> tuple[list[Sequence[int]], bool]:
    if (prompt is None) == (input_ids is None):
        raise InvalidRequest("prompt", prompt, "a text or a list of texts, or else input_ids")
    if input_ids is not None:
        accepted = "a list of token ids, or several such lists"
        ids = _listed("input_ids", input_ids, accepted)
        if isinstance(ids[0], int):
            return [ids], False
        return [_listed("input_ids", each, accepted, empty=True) for each in ids], True
    accepted = "a text or a list of texts"
    texts = [prompt] if isinstance(prompt, str) else _listed("prompt", prompt, accepted)
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("prompt", prompt, accepted)
    encoded = [
        tokenizer.encode(text, add_special_tokens=True, parse_special=True) for text in texts
    ]
    return list(encoded), not isinstance(prompt, str)


def _listed(name: str, value: Any, accepted: str, *, empty: bool = False) -> list[Any]:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or not (value or empty):
        raise InvalidRequest(name, value, accepted)
    return list(value)


def _per_prompt(name: str, value: Any, count: int) -> list[Any]:
    """One value for each prompt; a single one counts for all."""
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise InvalidRequest(name, value, f"one for each of the {count} prompts")
    return list(value)


def _params(given: Params) -> SamplingParams:
    if isinstance(given, SamplingParams):
        return given
    if given is None or isinstance(given, Mapping):
        return SamplingParams.from_dict(given)
    raise InvalidRequest("sampling_params", given, "SamplingParams, a dict, or a list of them")
