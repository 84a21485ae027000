"""``@function``: a Python function over a state, and the ways to run it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import types
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from sglang_lite.errors import InvalidRequest
from sglang_lite.lang import batch, checking, tracing
from sglang_lite.lang.backends.fuzz import Fuzz
from sglang_lite.lang.backends.registry import as_backend
from sglang_lite.lang.batch import Progress
from sglang_lite.lang.call import Call, own_parameters
from sglang_lite.lang.events import Event
from sglang_lite.lang.expressions import gen
from sglang_lite.lang.loop import (
    BODIES,
    aiterate,
    await_on,
    block_on,
    forbid_blocking,
    iterate,
    on_background_loop,
    spawn,
)
from sglang_lite.lang.run import CURRENT_RUN, Run
from sglang_lite.lang.state import AsyncProgramState, ProgramState


def function(func: Callable[..., Any] | None = None, num_api_spec_tokens: int | None = None) -> Any:
    """Make a prompt program of a function whose first parameter is the state.

    The function may be a method (then the state is its second parameter) and may be ``async``.

    ``num_api_spec_tokens``: on an API that is paid by the prompt (:class:`OpenAI`), have at least
    so many tokens written at once and cut the following gens out of them, while the program's
    literals agree.  Backends that keep prompts cached have no use for it.
    """
    count = num_api_spec_tokens
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        raise InvalidRequest("num_api_spec_tokens", count, "an integer, at least 1")
    make = functools.partial(SglFunction, num_api_spec_tokens=count)
    return make if func is None else make(func)


class SglFunction:
    """A prompt program.

    Keyword arguments of ``run`` that are parameters of the program go to the program; the others
    are sampling parameters (SGLang's names and defaults), which may also be given together as
    ``sampling=SamplingParams(...)`` or a dict.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        bound: Mapping[str, Any] | None = None,
        num_api_spec_tokens: int | None = None,
    ) -> None:
        if not callable(func):
            raise InvalidRequest("func", func, "a function")
        self.func = func
        self.bound = dict(bound or {})
        self.num_api_spec_tokens = num_api_spec_tokens
        self.warned: set[str] = set()
        functools.update_wrapper(self, func)
        self.is_async = inspect.iscoroutinefunction(func)
        self.parameters = own_parameters(func)
        self.signature = inspect.signature(func)

    def __get__(self, instance: Any, owner: Any = None) -> SglFunction:
        if instance is None:
            return self
        method = types.MethodType(self.func, instance)
        return SglFunction(method, self.bound, self.num_api_spec_tokens)

    def bind(self, **arguments: Any) -> SglFunction:
        """The same program with some arguments fixed; a call may override them."""
        for name in arguments:
            if name not in self.parameters:
                accepted = f"a parameter of the program: {', '.join(self.parameters)}"
                raise InvalidRequest(name, arguments[name], accepted)
        program = SglFunction(self.func, {**self.bound, **arguments}, self.num_api_spec_tokens)
        program.parameters = self.parameters
        program.is_async = self.is_async
        return program

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """``run``; for an ``async def`` program an awaitable of its state."""
        if self.is_async:
            return self.arun(*args, **kwargs)
        return self.run(*args, **kwargs)

    # One run

    def run(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run the program and return its state, when all of it has finished.

        With ``stream=True`` the state comes back at once, to be read while it grows
        (:meth:`ProgramState.text_iter`).  Raises what the body raises, or :class:`ProgramError`.
        """
        forbid_blocking()
        call = self.call(args, kwargs)
        run = call.make_run()
        state = ProgramState(run.root)
        if call.stream:
            self._start(call, run)
            return state
        if self.is_async:
            block_on(lambda: self.finish(call, run))
            return state
        token = CURRENT_RUN.set(run)
        try:
            run.ret_value = call.body(state)
        except BaseException as error:
            run.body_ended(error)
            spawn(run.finish).exception()
            raise
        finally:
            CURRENT_RUN.reset(token)
        run.body_ended()
        block_on(run.finish)
        return state

    async def arun(self, *args: Any, **kwargs: Any) -> ProgramState:
        """:meth:`run` for coroutines; cancelling it aborts the requests in flight.

        An ``async def`` body runs in the caller's event loop, a plain one in a thread.
        """
        call = self.call(args, kwargs)
        run = call.make_run()
        if call.stream:
            self._start(call, run)
            return AsyncProgramState(run.root)
        await self.finish(call, run)
        return ProgramState(run.root)

    async def stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Event]:
        """Run the program and iterate over its events; leaving the iteration cancels the run."""
        state = await self.arun(*args, **kwargs, stream=True)
        try:
            async for event in state.events():
                yield event
        finally:
            state.cancel()

    async def finish(self, call: Call, run: Run) -> None:
        """Run the body where it belongs, then wait for the model; cancel it all if cancelled."""
        try:
            await self._run_body(call, run)
        except BaseException as error:
            run.body_ended(error)
            await asyncio.shield(_quietly(run))
            raise
        run.body_ended()
        try:
            await await_on(run.finish)
        except asyncio.CancelledError:
            run.request_cancel()
            raise

    async def _run_body(self, call: Call, run: Run) -> None:
        if not self.is_async:
            state = ProgramState(run.root)
            run.ret_value = await asyncio.wrap_future(batch.in_body_pool(run, call.body, state))
            return
        token = CURRENT_RUN.set(run)
        try:
            body = asyncio.ensure_future(call.body(AsyncProgramState(run.root)))
        finally:
            CURRENT_RUN.reset(token)
        if on_background_loop():
            run.body_task = body
        run.ret_value = await body

    def _start(self, call: Call, run: Run) -> None:
        """Run in the background; failures are read from the state."""

        async def whole() -> None:
            with contextlib.suppress(Exception):  # the state's readers raise it
                await self.finish(call, run)

        spawn(whole)

    # Many runs

    def run_batch(
        self,
        rows: Iterable[Any],
        *,
        num_threads: int | Literal["auto"] = "auto",
        max_concurrency: int | None = None,
        progress: Progress = False,
        progress_bar: bool = False,
        generator_style: bool = False,
        on_error: Literal["raise", "return"] = "raise",
        ordered: bool = True,
        journal: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the program once per row, several at a time, and return the states.

        * ``rows``: dicts of arguments, or tuples of positional ones; taken lazily.
        * ``max_concurrency`` (SGLang's ``num_threads``): most rows in flight; "auto" is 64.
        * ``generator_style``: an iterator of states instead of a list, bounded in memory;
          ``ordered=False`` yields them as they finish (see :meth:`imap` for the row numbers).
        * ``progress`` (SGLang's ``progress_bar``): True shows a bar; a function is called with
          (rows that have finished, all rows or None) after each.
        * ``on_error``: "raise" stops at the first failed row; "return" goes on, and that row's
          state raises when it is read (``state.error()`` tells).
        * ``journal``: a JSONL file to which every answer of the model is appended; a batch that
          was killed goes on from it: answers in it are not generated again.

        Everything else is as in :meth:`run`; with a ``seed`` every row has its own.
        """
        results = self.imap(
            rows,
            num_threads=num_threads,
            max_concurrency=max_concurrency,
            progress=progress or progress_bar,
            on_error=on_error,
            ordered=ordered,
            journal=journal,
            **kwargs,
        )
        if generator_style:
            return (state for _, state in results)
        found = sorted(results, key=lambda pair: pair[0]) if not ordered else list(results)
        return [state for _, state in found]

    def imap(self, rows: Iterable[Any], **options: Any) -> Iterator[tuple[int, ProgramState]]:
        """(row number, state) of every row; the options are those of :meth:`run_batch`."""
        plan = self._plan(rows, options)

        def results() -> Iterator[tuple[int, ProgramState]]:
            with BODIES.waiting():
                yield from iterate(plan.results)

        return results()

    async def aimap(
        self, rows: Iterable[Any], **options: Any
    ) -> AsyncIterator[tuple[int, ProgramState]]:
        """:meth:`imap` for coroutines."""
        async for pair in aiterate(self._plan(rows, options).results):
            yield pair

    async def arun_batch(self, rows: Iterable[Any], **options: Any) -> list[ProgramState]:
        """:meth:`run_batch` for coroutines."""
        pairs = [pair async for pair in self.aimap(rows, **options)]
        return [state for _, state in sorted(pairs, key=lambda pair: pair[0])]

    def _plan(self, rows: Iterable[Any], options: dict[str, Any]) -> batch.Batch:
        settings, options = batch.BatchSettings.split(options)
        return batch.Batch(self, rows, settings, options)

    # Without a model

    def trace(self, *, backend: Any = None, **arguments: Any) -> tracing.Trace:
        """Run the body once on dummies and return what it appended.

        ``backend`` is SGLang's argument; tracing needs none, so it must be None or a backend.
        """
        if backend is not None:
            as_backend(backend)
        return tracing.trace(self, arguments)

    def check(self, *, backend: Any = None, **arguments: Any) -> list[checking.Problem]:
        """What is wrong with this program, found without a model (the body runs on dummies).

        Finds undefined variables, wrong expressions (such as empty choices), roles that do not
        fit, constraints that cannot be enforced (by ``backend``; by ours if None), and stops that a
        constraint never lets appear.
        """
        asked = Fuzz() if backend is None else as_backend(backend)
        return checking.check(self, arguments, asked.refuses)

    def cache(self, backend: Any = None) -> None:
        """Compute the program's constant beginning now, so that every run finds it cached."""
        constant = tracing.constant_beginning(self)
        if not constant:
            return

        def prefix(s: ProgramState) -> None:
            for node in constant:
                s += node
            s += gen(max_tokens=0)

        SglFunction(prefix).run(backend=backend)

    # Arguments

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """Sort and check the arguments of one call."""
        return Call(self, args, kwargs)


async def _quietly(run: Run) -> None:
    """Finish a run whose body has failed; its error is the body's, which is raised already."""
    with contextlib.suppress(Exception):
        await await_on(run.finish)
