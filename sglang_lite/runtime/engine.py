"""The engine's public face: load a model, submit requests, read outputs.

Everything that can be refused is refused here, in the caller's thread, before a request is queued;
the work itself happens in :mod:`sglang_lite.runtime.loop`, on the engine's own thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sglang_lite.constraint import Constraint
from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime import native_api
from sglang_lite.runtime.config import EngineConfig, kv_slots
from sglang_lite.runtime.engine_args import EngineArgs, refuse_loading_options
from sglang_lite.runtime.late_compiler import LateCompiler
from sglang_lite.runtime.messages import GenerateRequest
from sglang_lite.runtime.output_stream import OutputStream
from sglang_lite.runtime.signatures import takes
from sglang_lite.runtime.tokenizer import Tokenizer
from sglang_lite.runtime.validation import check_request

if TYPE_CHECKING:
    from sglang_lite.constrained import CompiledGrammar, GrammarCompiler
    from sglang_lite.runtime.loop import EngineLoop
    from sglang_lite.runtime.models.base import Model

log = logging.getLogger("sglang_lite")


class Engine:
    """A model with its scheduler, radix tree and KV pool; the names are those of SGLang's Engine.

    ``Engine(model_path, dtype="float32", ...)``: the options are those of
    :class:`~sglang_lite.runtime.engine_args.EngineArgs`, where each is explained.

    Raises :class:`ModelNotFound`, :class:`UnsupportedModel`, :class:`InvalidRequest`.
    """

    @takes(EngineArgs)
    def __init__(self, args: EngineArgs) -> None:
        # Torch and the kernels are imported when an engine is made, not with the package.
        with _uncollected():
            import sglang_lite.runtime.loop  # noqa: F401
            from sglang_lite.runtime.default_model import resolve_model_path
            from sglang_lite.runtime.models.config import ModelConfig
            from sglang_lite.runtime.models.loader import load_model, resolve_device, resolve_dtype

        log.setLevel(args.log_level.upper())
        folder = resolve_model_path(args.model_path)
        model_config = ModelConfig.from_folder(folder)
        device = resolve_device(args.device)
        dtype = resolve_dtype(args.dtype, model_config, device, args.quantization)
        weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        slots = kv_slots(args, model_config, dtype, device, weight_bytes=weights)
        # Checked before the weights are loaded, which takes a while.
        config = EngineConfig.of(args, model_config, slots, device)
        tokenizer = Tokenizer.from_pretrained(args.tokenizer_path or folder, args.chat_template)
        load = functools.partial(
            load_model,
            folder,
            dtype=args.dtype,
            device=args.device,
            quantization=args.quantization,
            deterministic=args.deterministic,
            kv_slots=slots,
        )
        self._start(load, tokenizer, config, args.served_model_name or folder.name)

    @classmethod
    def from_model(cls, model: Model, tokenizer: Tokenizer, **options: Any) -> Engine:
        """An engine around a model that is already loaded.

        ``options`` as in the constructor; those that concern the loading are refused.
        """
        refuse_loading_options(options)
        engine = cls.__new__(cls)
        args = EngineArgs(**options)
        log.setLevel(args.log_level.upper())
        config = EngineConfig.of(args, model.config, model.kv_cache.slots, model.device)
        engine._start(lambda: model, tokenizer, config, args.served_model_name or "model")
        return engine

    def _start(
        self,
        load: Callable[[], Model],
        tokenizer: Tokenizer,
        config: EngineConfig,
        served_model_name: str,
    ) -> None:
        from sglang_lite.runtime.loop import EngineLoop

        self._loop = EngineLoop(load, tokenizer, config)
        model_config = self._loop.core.model.config
        tokenizer.extend(model_config.vocab_size, model_config.eos_token_ids)
        self.tokenizer, self.model_config = tokenizer, model_config
        self.context_length = config.context_length
        self.served_model_name = served_model_name
        self.config = config
        self._late = LateCompiler(tokenizer)
        # The weights live as long as the process too.
        gc.collect()
        gc.freeze()
        self._finalizer = weakref.finalize(self, _shut_down, self._loop, self._late)
        self._late.start()

    # Requests

    @property
    def compiler(self) -> GrammarCompiler:
        """The compiler of constraints for this model's vocabulary; waits until there is one."""
        return self._late.get()

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
        grammar = None
        if (constraint := request.sampling_params.constraint) is not None:
            with self._loop.compiling():
                grammar = self.compile(constraint)
        stream = self._loop.submit(request, grammar, submitted_at)
        # Whoever reads the stream needs the engine, even if no one else refers to it.
        stream.owner = self
        return stream

    async def asubmit(self, request: GenerateRequest) -> OutputStream:
        """:meth:`submit` for an event loop: a constraint is compiled in another thread."""
        if request.sampling_params.constraint is None:
            return self.submit(request)
        (stream,) = await self._submit_in_thread([request])
        return stream

    def abort(self, rid: str | None = None, *, abort_all: bool = False) -> None:
        """End the request ``rid``, or all; unknown and finished ones are left alone."""
        if (rid is None) == (not abort_all):
            raise InvalidRequest("rid", rid, "a request's name, or abort_all=True without one")
        self._loop.abort(rid)

    # SGLang's dicts

    @takes(native_api.Call)
    def generate(
        self, call: native_api.Call
    ) -> dict[str, Any] | list[dict[str, Any]] | Iterator[dict[str, Any]]:
        """Generate for one prompt or a list; SGLang's dict(s) ``{text, output_ids, meta_info}``.

        The parameters are those of :class:`~sglang_lite.runtime.native_api.Call`.  A list gives a
        list, and so does ``n`` > 1.  With ``stream`` an iterator of dicts whose ``text`` is
        cumulative; where a list is due, each has an ``index`` into it.
        Raises like :meth:`submit`, and :class:`EngineError` where the engine fails on a request.
        """
        batch = native_api.Batch.of(call, self.tokenizer)
        results = native_api.stream_results(batch, self._submit_all(batch.requests))
        if call.stream:
            return results
        for _ in results:
            pass
        return batch.results()

    @takes(native_api.Call)
    async def async_generate(
        self, call: native_api.Call
    ) -> dict[str, Any] | list[dict[str, Any]] | AsyncIterator[dict[str, Any]]:
        """:meth:`generate` for an event loop; with ``stream`` it returns an async iterator."""
        batch = native_api.Batch.of(call, self.tokenizer)
        streams = await self._submit_in_thread(batch.requests)
        results = await native_api.astream_results(batch, streams)
        if call.stream:
            return results
        async for _ in results:
            pass
        return batch.results()

    def _submit_all(self, requests: Sequence[GenerateRequest]) -> list[OutputStream]:
        """Submit all or none."""
        streams: list[OutputStream] = []
        try:
            # One by one, so that those before a refused one are known and can be aborted.
            for request in requests:
                streams.append(self.submit(request))  # noqa: PERF401
        except BaseException:
            _abort(streams)
            raise
        return streams

    async def _submit_in_thread(self, requests: Sequence[GenerateRequest]) -> list[OutputStream]:
        """:meth:`_submit_all` beside the event loop; whoever stops waiting leaves nothing behind.

        The thread goes on, even when the event loop is closed, and nobody would read what it
        queues.
        """
        left, made = threading.Event(), list[OutputStream]()

        def submit() -> list[OutputStream]:
            made.extend(self._submit_all(requests))
            if left.is_set():
                _abort(made)
            return made

        try:
            return await asyncio.to_thread(submit)
        except asyncio.CancelledError:
            left.set()
            _abort(made)
            raise

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
        """Stop the engine's thread and free its memory; unfinished streams raise
        :class:`EngineError`.  Idempotent.
        """
        self._finalizer()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()


def _abort(streams: Sequence[OutputStream]) -> None:
    for stream in streams:
        stream.abort()


def _shut_down(loop: EngineLoop, compiler: LateCompiler) -> None:
    compiler.stop()
    loop.shutdown()
    # What was frozen when it started would be kept for ever.
    gc.unfreeze()


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """What is made within lives as long as the process: the collector need not walk it.

    Torch makes so many objects while it is imported that walking them takes a tenth of a second,
    and as long whenever all of them are walked again.
    """
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
