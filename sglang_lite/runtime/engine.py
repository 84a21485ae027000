"""The engine's public face: load a model, submit requests, read outputs.

Everything that can be refused is refused here, in the caller's thread, before a request is queued;
the work itself happens in :mod:`sglang_lite.runtime.loop`, on the engine's own thread.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_lite.constraint import Constraint
from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime import native_api
from sglang_lite.runtime.config import EngineConfig, kv_slots
from sglang_lite.runtime.loop import EngineLoop
from sglang_lite.runtime.messages import GenerateRequest
from sglang_lite.runtime.output_stream import OutputStream
from sglang_lite.runtime.tokenizer import Tokenizer
from sglang_lite.runtime.validation import check_request

if TYPE_CHECKING:
    from sglang_lite.constrained import CompiledGrammar, GrammarCompiler
    from sglang_lite.runtime.models.base import Model
    from sglang_lite.runtime.models.config import ModelConfig

log = logging.getLogger("sglang_lite")

Params = native_api.Params


class Engine:
    """A model with its scheduler, radix tree and KV pool; the names are those of SGLang's Engine.

    * ``model_path``: a local Hugging Face folder or a hub id; None is the default model.
    * ``tokenizer_path``: where the tokenizer is, if not with the model.
    * ``dtype``: "auto", "bfloat16", "float16" or "float32".  ``device``: "auto", "cpu", "cuda".
    * ``quantization``: the linear layers' format, for example "int4"; None keeps the checkpoint's.
    * ``deterministic``: bit-identical results for a request alone, in any batch, cached or
      preempted.  Each sequence is computed by itself, so a batch is no faster than its parts.
    * ``context_length``: most tokens of a sequence, at most the model's own.
    * ``max_running_requests``: most samples that run at once.
    * ``max_total_tokens``: number of KV slots, shared by running requests and the prefix cache;
      None takes ``mem_fraction_static`` of the free memory, within reason.
    * ``chunked_prefill_size``: most tokens computed in one step.
    * ``schedule_policy``: "fcfs", "lpm" (longest cached prefix first) or "dfs-weight".
    * ``max_queued_requests``: more waiting requests are refused with :class:`QueueFull`.
    * ``disable_radix_cache``: compute every prompt from its start.
    * ``enable_hierarchical_cache``: keep evicted prefixes in host memory (pinned on CUDA) and copy
      them back where that is faster than to compute them, as measured.  ``hicache_ratio``: so many
      times the device's slots; ``hicache_size``: gigabytes instead, if not 0.
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
        enable_hierarchical_cache: bool = False,
        hicache_ratio: float = 2.0,
        hicache_size: float = 0.0,
        random_seed: int | None = 0,
        chat_template: str | None = None,
        served_model_name: str | None = None,
        log_level: str = "warning",
        decode_log_interval: int = 40,
    ) -> None:
        # Torch and the kernels are imported when an engine is made, not with the package.
        from sglang_lite.runtime.default_model import resolve_model_path
        from sglang_lite.runtime.models.config import ModelConfig
        from sglang_lite.runtime.models.loader import load_model, resolve_device, resolve_dtype

        if not isinstance(logging.getLevelName(log_level.upper()), int):
            raise InvalidRequest("log_level", log_level, "debug, info, warning, error or critical")
        log.setLevel(log_level.upper())
        folder = resolve_model_path(model_path)
        model_config = ModelConfig.from_folder(folder)
        where = resolve_device(device)
        slots = kv_slots(
            model_config,
            resolve_dtype(dtype, model_config, where),
            where,
            weight_bytes=sum(file.stat().st_size for file in folder.glob("*.safetensors")),
            max_total_tokens=max_total_tokens,
            mem_fraction_static=mem_fraction_static,
        )
        # Checked before the weights are loaded, which takes a while.
        config = EngineConfig.of(
            model_config,
            slots,
            where,
            context_length=context_length,
            max_running_requests=max_running_requests,
            chunked_prefill_size=chunked_prefill_size,
            schedule_policy=schedule_policy,
            max_queued_requests=max_queued_requests,
            disable_radix_cache=disable_radix_cache,
            enable_hierarchical_cache=enable_hierarchical_cache,
            hicache_ratio=hicache_ratio,
            hicache_size=hicache_size,
            deterministic=deterministic,
            random_seed=random_seed,
            decode_log_interval=decode_log_interval,
        )
        tokenizer = Tokenizer.from_pretrained(tokenizer_path or folder, chat_template)
        model = load_model(
            folder,
            dtype=dtype,
            device=device,
            quantization=quantization,
            deterministic=deterministic,
            kv_slots=slots,
        )
        self._start(model, tokenizer, config, served_model_name or folder.name)

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
        config = EngineConfig.of(model.config, model.kv_cache.slots, model.device, **options)
        engine._start(model, tokenizer, config, served_model_name)
        return engine

    def _start(
        self, model: Model, tokenizer: Tokenizer, config: EngineConfig, served_model_name: str
    ) -> None:
        tokenizer.extend(model.config.vocab_size, model.config.eos_token_ids)
        # Made here rather than by the first two threads that need it.
        _ = tokenizer.vocabulary
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
        submitted_at = time.perf_counter()
        check_request(request, self.model_config.vocab_size, self.config)
        constraint = request.sampling_params.constraint
        grammar = None if constraint is None else self.compile(constraint)
        stream = self._loop.submit(request, grammar, submitted_at)
        # Whoever reads the stream needs the engine, even if no one else refers to it.
        stream.owner = self
        return stream

    async def asubmit(self, request: GenerateRequest) -> OutputStream:
        """:meth:`submit` for an event loop: a constraint is compiled in another thread."""
        if request.sampling_params.constraint is None:
            return self.submit(request)
        loop = asyncio.get_running_loop()
        submitted = loop.run_in_executor(None, self.submit, request)
        try:
            return await asyncio.shield(submitted)
        except asyncio.CancelledError:
            # The thread goes on, and nobody will read what it queues.
            submitted.add_done_callback(_abort_orphan)
            raise

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
        ``text`` is cumulative; where a list is due, each has an ``index`` into it.
        Raises like :meth:`submit`, and :class:`EngineError` where the engine fails on a request.
        """
        batch = native_api.Batch.of(
            self.tokenizer,
            prompt,
            input_ids,
            sampling_params,
            rid,
            return_logprob=return_logprob,
            logprob_start_len=logprob_start_len,
            top_logprobs_num=top_logprobs_num,
            token_ids_logprob=tuple(token_ids_logprob or ()),
        )
        samples = batch.samples(self.tokenizer.token_text if return_text_in_logprobs else None)
        streams = self._submit_all(batch.requests)
        if stream:
            return native_api.stream_results(batch, samples, streams)
        for number, outputs in enumerate(streams):
            for output in outputs:
                samples[number][output.index].add(output)
        return batch.results(samples)

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
        batch = native_api.Batch.of(
            self.tokenizer,
            prompt,
            input_ids,
            sampling_params,
            rid,
            return_logprob=return_logprob,
            logprob_start_len=logprob_start_len,
            top_logprobs_num=top_logprobs_num,
            token_ids_logprob=tuple(token_ids_logprob or ()),
        )
        samples = batch.samples(self.tokenizer.token_text if return_text_in_logprobs else None)
        streams = await asyncio.to_thread(self._submit_all, batch.requests)
        results = native_api.astream_results(batch, samples, streams)
        if stream:
            return results
        async for _ in results:
            pass
        return batch.results(samples)

    def _submit_all(self, requests: Sequence[GenerateRequest]) -> list[OutputStream]:
        """Submit all or none."""
        streams: list[OutputStream] = []
        try:
            # One by one, so that those before a refused one are known and can be aborted.
            for request in requests:
                streams.append(self.submit(request))  # noqa: PERF401
        except BaseException:
            for stream in streams:
                stream.abort()
            raise
        return streams

    # Operations

    def flush_cache(self) -> bool:
        """Forget every cached prefix that no running request uses; True if the cache is empty."""
        return self._loop.call(self._loop.core.flush_cache)

    def stats(self) -> dict[str, Any]:
        """Numbers of now (running, waiting, slots) and counters since the start; never waits."""
        return self._loop.stats()

    def snapshot(self, max_nodes: int = 200) -> dict[str, Any]:
        """The radix tree's top, the slots, the running and waiting requests, as JSON values."""
        shot = self._loop.call(lambda: self._loop.core.snapshot(max_nodes))
        for node in shot["tree"]:
            node["text"] = self.tokenizer.decode(node["tokens"], skip_special_tokens=False)[:60]
            node["tokens"] = node.pop("length")
        return shot

    def check(self) -> None:
        """Verify the invariants of scheduler, radix tree and KV pool between two steps.

        Raises :class:`AssertionError` that names the broken one.
        """
        self._loop.call(self._loop.core.check)

    def shutdown(self) -> None:
        """Stop the engine's thread; unfinished streams raise :class:`EngineError`.  Idempotent."""
        self._finalizer()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()


def _abort_orphan(submitted: asyncio.Future[OutputStream]) -> None:
    if not submitted.cancelled() and submitted.exception() is None:
        submitted.result().abort()
