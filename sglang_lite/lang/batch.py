"""Running a program over many rows: lazily, a bounded number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sized
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from sglang_lite.errors import InvalidRequest
from sglang_lite.lang.backends.cassette import Cassette, Tape
from sglang_lite.lang.backends.registry import current_backend
from sglang_lite.lang.generation import derived_seed
from sglang_lite.lang.loop import BODIES
from sglang_lite.lang.run import CURRENT_RUN, Run
from sglang_lite.lang.state import ProgramState

if TYPE_CHECKING:
    from sglang_lite.lang.program import SglFunction

DEFAULT_CONCURRENCY = 64

Progress = bool | Callable[[int, "int | None"], None]
"""True for a bar; or a function of (rows that have finished, all rows or None)."""


def in_body_pool(run: Run, body: Callable[[Any], Any], state: Any) -> Future[Any]:
    """Run a plain body in the pool, with the run's context variables."""
    result: Future[Any] = Future()
    context = run.context.copy()

    def job() -> None:
        if not result.set_running_or_notify_cancel():
            return
        context.run(CURRENT_RUN.set, run)
        try:
            result.set_result(context.run(body, state))
        except BaseException as error:
            result.set_exception(error)

    BODIES.submit(job)
    return result


@dataclass(frozen=True)
class BatchSettings:
    """The options of ``run_batch`` that are not about one run."""

    max_concurrency: int = DEFAULT_CONCURRENCY
    on_error: str = "raise"
    ordered: bool = True
    journal: str | None = None
    progress: Progress = False

    @classmethod
    def split(cls, options: Mapping[str, Any]) -> tuple[BatchSettings, dict[str, Any]]:
        """(settings, the options that every run gets); raises :class:`InvalidRequest`."""
        rest = dict(options)
        threads = rest.pop("num_threads", "auto")
        limit = rest.pop("max_concurrency", None)
        if limit is None:
            limit = DEFAULT_CONCURRENCY if threads == "auto" else threads
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise InvalidRequest("max_concurrency", limit, "an integer, at least 1")
        on_error = rest.pop("on_error", "raise")
        if on_error not in ("raise", "return"):
            raise InvalidRequest("on_error", on_error, "raise or return")
        if rest.pop("stream", False):
            raise InvalidRequest("stream", True, "False in a batch; run() streams")
        ordered, journal = rest.pop("ordered", True), rest.pop("journal", None)
        progress = rest.pop("progress_bar", False) or rest.pop("progress", False)
        return cls(limit, on_error, ordered, journal, progress), rest


class Batch:
    """One batch; :meth:`results` runs on the background loop."""

    def __init__(
        self,
        program: SglFunction,
        rows: Iterable[Any],
        settings: BatchSettings,
        options: Mapping[str, Any],
    ) -> None:
        if isinstance(rows, (str, bytes, Mapping)):
            raise InvalidRequest("rows", rows, "an iterable of dicts or tuples")
        self._program = program
        self._rows = rows
        self._settings = settings
        self._options = dict(options)
        self._tape = None if settings.journal is None else Tape(settings.journal)
        if isinstance(rows, (list, tuple)):
            for number, row in enumerate(rows):  # a wrong row is found before any is run
                self._call(number, row)

    def _call(self, number: int, row: Any) -> Any:
        options = dict(self._options)
        if options.get("seed") is not None:
            options["seed"] = derived_seed(options["seed"], number)
        if isinstance(row, Mapping):
            for name in row:
                if name in self._program.parameters:
                    continue
                raise InvalidRequest(f"rows[{number}]", dict(row), f"no argument {name!r}")
            return self._program.call((), {**options, **row})
        if not isinstance(row, (list, tuple)):
            raise InvalidRequest(f"rows[{number}]", row, "a dict or a tuple of arguments")
        return self._program.call(tuple(row), options)

    async def results(self) -> AsyncIterator[tuple[int, ProgramState]]:
        """(row number, state), in order or as they finish."""
        progress = self._settings.progress
        total = len(self._rows) if isinstance(self._rows, Sized) else None
        with tqdm(total=total, disable=progress is not True, unit="row") as bar:
            finished = 0
            async for pair in self._results():
                finished += 1
                bar.update()
                if callable(progress):
                    progress(finished, total)
                yield pair

    async def _results(self) -> AsyncIterator[tuple[int, ProgramState]]:
        limit = self._settings.max_concurrency
        rows = enumerate(self._rows)
        running: dict[asyncio.Task[ProgramState], int] = {}
        finished: dict[int, ProgramState] = {}
        next_row, more = 0, True
        try:
            while more or running or finished:
                # Finished rows that wait for their turn count, or one slow row would let
                # the others pile up.
                while more and len(running) < limit and len(running) + len(finished) < 4 * limit:
                    pair = await self._next(rows)
                    more = pair is not None
                    if pair is not None:
                        running[asyncio.ensure_future(self._run_row(*pair))] = pair[0]
                if running and not (self._settings.ordered and next_row in finished):
                    done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        finished[running.pop(task)] = task.result()
                ready = [next_row] if self._settings.ordered else list(finished)
                while ready and ready[0] in finished:
                    number = ready.pop(0)
                    yield number, finished.pop(number)
                    next_row += 1
                    if self._settings.ordered:
                        ready = [next_row]
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _next(self, rows: Any) -> tuple[int, Any] | None:
        if isinstance(self._rows, (list, tuple)):
            return next(rows, None)
        # A generator of the caller's may block; the loop must not.
        return await asyncio.get_running_loop().run_in_executor(None, next, rows, None)

    async def _run_row(self, number: int, row: Any) -> ProgramState:
        call = self._call(number, row)
        if self._tape is not None:
            scope = f"row {number}: {call.args!r} {sorted(call.kwargs.items())!r}"
            call.backend = Cassette(self._tape, current_backend(call.backend), scope)
        run = call.make_run()
        try:
            await self._program.finish(call, run)
        except Exception:
            if self._settings.on_error == "raise":
                raise
        return ProgramState(run.root)
