"""The engine's public face: load a model, submit requests, read outputs.

Everything that can be refused is refused here, in the caller's thread, before a request is queued;
the work itself happens in :mod:`sglang_lite.runtime.loop`, on the engine's own thread.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_lite.constraint import Constraint
from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime import native_api
from sglang_lite.runtime.config import EngineConfig
from sglang_lite.runtime.loop import EngineLoop
from sglang_lite.runtime.messages import GenerateRequest
from sglang_lite.runtime.output_stream import OutputStream
from sglang_lite.runtime.tokenizer import Tokenizer
from sglang_lite.runtime.validation import check_request
from sglang_lite.sampling_params import SamplingParams

if TYPE_CHECKING:
    from sglang_lite.constrained import CompiledGrammar, GrammarCompiler
    from sglang_lite.runtime.models.base import Model
    from sglang_lite.runtime.models.config import ModelConfig

log = logging.getLogger("sglang_lite")

Params = SamplingParams | dict[str, Any] | None


class Engine:
    """A model with its scheduler, radix tree and KV pool; the names are those of SGLang's Engine.

    * ``model_path``: a local Hugging Face folder or a hub id; None is the default model.
    * ``tokenizer_path``: where the tokenizer is, if not with the model.
    * ``dtype``: "auto", "bfloat16", "float16" or "float32".  ``device``: "auto", "cpu", "cuda".
    * ``quantization``: the linear layers' format, for example "int4"; None keeps the checkpoint's.
    * ``deterministic``: the same text for a request alone and in any batch, somewhat slower.
    * ``context_length``: most tokens of a sequence, at most the model's own.
    * ``max_running_requests``: most samples that run at once.
    * ``max_total_tokens``: number of KV slots, shared by running requests and the prefix cache;
      None takes ``mem_fraction_static`` of the free memory, within reason.
    * ``chunked_prefill_size``: most tokens computed in one step.
    * ``schedule_policy``: "fcfs", "lpm" (longest cached prefix first) or "dfs-weight".
    * ``max_queued_requests``: more waiting requests are refused with :class:`QueueFull`.
    * ``disable_radix_cache``: compute every prompt from its start.
    * ``random_seed``: what the seeds of requests without one derive from; None draws it.
    * ``chat_template``: a Jinja template, or the path of one, instead of the tokenizer's own.
    * ``log_level``: level of the logger "sglang_lite".  ``decode_log_interval``: one line each so
      many steps.

    Raises :class:`ModelNotFound`, :class:`UnsupportedModel`, :class:`InvalidRequest`.
    """

    def __init__(
        self,
        model_path: str | Path | None = None,
        *,
        tokenizer_path: str | Path | None = None,
        dtype: str = "auto",
        device: str = "auto",
        quantization: str | None = None,
        deterministic: bool = False,
        context_length: int | None = None,
        max_running_requests: int | None = None,
        max_total_tokens: int | None = None,
        mem_fraction_static: float | None = None,
        chunked_prefill_size: int | None = None,
        schedule_policy: str = "fcfs",
        max_queued_requests: int | None = None,
        disable_radix_cache: bool = False,
        random_seed: int | None = 0,
        chat_template: str | None = None,
        served_model_name: str | None = None,
        log_level: str = "warning",
        decode_log_interval: int = 40,
    ) -> None:
        raise SystemExit("the loader lands next")

    @classmethod
    def from_model(
        cls,
        model: Model,
        tokenizer: Tokenizer,
        *,
        served_model_name: str = "model",
        **options: Any,
    ) -> Engine:
        """An engine around a model that is already loaded; ``options`` as in the constructor."""
        engine = cls.__new__(cls)
        engine._start(model, tokenizer, EngineConfig.of(model, **options), served_model_name)
        return engine

    def _start(
        self, model: Model, tokenizer: Tokenizer, config: EngineConfig, served_model_name: str
    ) -> None:
        self.tokenizer = tokenizer
        self.model_config: ModelConfig = model.config
        self.context_length = config.context_length
        self.served_model_name = served_model_name
        self.config = config
        self._compiler: GrammarCompiler | None = None
        self._compiler_lock = threading.Lock()
        self._loop = EngineLoop(model, tokenizer, config)
        # The weights and modules live as long as the process: the collector need not walk them.
        gc.collect()
        gc.freeze()
        self._finalizer = weakref.finalize(self, self._loop.shutdown)

    # Requests

    @property
    def compiler(self) -> GrammarCompiler:
        """The compiler of constraints for this model's vocabulary, made on first use."""
        from sglang_lite.constrained import GrammarCompiler

        with self._compiler_lock:
            if self._compiler is None:
                self._compiler = GrammarCompiler(self.tokenizer.vocabulary)
            return self._compiler

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        """Compile a constraint, or take it from the cache; thread-safe.

        Raises :class:`ConstraintError`.
        """
        return self.compiler.compile(constraint)

    def submit(self, request: GenerateRequest) -> OutputStream:
        """Check, compile and queue a request; its outputs arrive in the stream.

        Never waits for the model.  Raises :class:`InvalidRequest` (:class:`PromptTooLong` with the
        numbers), :class:`ConstraintError`, :class:`QueueFull`, or :class:`EngineError` after a
        shutdown or a fatal failure.
        """
        check_request(request, self.model_config.vocab_size, self.config)
        constraint = request.sampling_params.constraint
        grammar = None if constraint is None else self.compile(constraint)
        return self._loop.submit(request, grammar)

    async def asubmit(self, request: GenerateRequest) -> OutputStream:
        """:meth:`submit` for an event loop: a constraint is compiled in another thread."""
        if request.sampling_params.constraint is None:
            return self.submit(request)
        return await asyncio.to_thread(self.submit, request)

    def abort(self, rid: str | None = None, *, abort_all: bool = False) -> None:
        """End the request ``rid``, or all; unknown and finished ones are left alone."""
        if (rid is None) == (not abort_all):
            raise InvalidRequest("rid", rid, "a request's name, or abort_all=True without one")
        self._loop.abort(rid)

    # SGLang's dicts

    def generate(
        self,
        prompt: str | Sequence[str] | None = None,
        sampling_params: Params | Sequence[Params] = None,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        return_logprob: bool = False,
        logprob_start_len: int = -1,
        top_logprobs_num: int = 0,
        token_ids_logprob: Sequence[int] | None = None,
        return_text_in_logprobs: bool = False,
        stream: bool = False,
        rid: str | Sequence[str] | None = None,
    ) -> dict[str, Any] | list[dict[str, Any]] | Iterator[dict[str, Any]]:
        """Generate for one prompt or a list; SGLang's dict(s) ``{text, output_ids, meta_info}``.

        A list gives a list, and so does ``n`` > 1.  With ``stream`` an iterator of dicts whose
        ``text`` is cumulative; for several samples each dict has an ``index``.
        """
        raise SystemExit("the loop lands next")

    async def async_generate(
        self,
        prompt: str | Sequence[str] | None = None,
        sampling_params: Params | Sequence[Params] = None,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        return_logprob: bool = False,
        logprob_start_len: int = -1,
        top_logprobs_num: int = 0,
        token_ids_logprob: Sequence[int] | None = None,
        return_text_in_logprobs: bool = False,
        stream: bool = False,
        rid: str | Sequence[str] | None = None,
    ) -> dict[str, Any] | list[dict[str, Any]] | AsyncIterator[dict[str, Any]]:
        """:meth:`generate` for an event loop; with ``stream`` it returns an async iterator."""
        raise SystemExit("the loop lands next")

    # Operations

    def flush_cache(self) -> bool:
        """Forget every cached prefix that no running request uses; True if the cache is empty."""
        return self._loop.call(self._loop.flush_cache)

    def stats(self) -> dict[str, Any]:
        """Numbers of now (running, waiting, slots) and counters since the start; never waits."""
        return self._loop.stats()

    def check(self) -> None:
        """Verify the invariants of scheduler, radix tree and KV pool between two steps.

        Raises :class:`AssertionError` that names the broken one.
        """
        self._loop.call(self._loop.check)

    def shutdown(self) -> None:
        """Stop the engine's thread; unfinished streams raise :class:`EngineError`.  Idempotent."""
        self._finalizer()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()
