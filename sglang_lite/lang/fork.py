"""Groups of forked states, and how they come together again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from sglang_lite.errors import InvalidRequest
from sglang_lite.lang.loop import await_on, background_loop, block_on
from sglang_lite.lang.nodes import Expression
from sglang_lite.lang.state import ProgramState
from sglang_lite.lang.variable import MISSING, Failure, Variable
from sglang_lite.lang.work_queue import Operation, fresh

JoinMode = Literal["gather_variable", "concate_and_append"]


class ProgramStateGroup:
    """The children of one ``fork``: ``g[i]`` is a state, ``g["x"]`` the list of their values."""

    def __init__(self, parent: ProgramState, states: Sequence[ProgramState]) -> None:
        self._parent = parent
        self._states = list(states)
        self._before = {name: len(v) for name, v in states[0]._executor.variables.items()}

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self._states)

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return self._parent._wait(lambda: self._values(key))
        return self._states[key]

    def __setitem__(self, index: int, state: ProgramState) -> None:
        """Only what ``g[i] += expression`` does: put the same state back."""
        if self._states[index] is not state:
            raise InvalidRequest("state", state, "the state that is there; forks are not replaced")

    async def _values(self, name: str) -> list[Any]:
        return [await state.aio[name] for state in self._states]

    def __iadd__(self, other: Any) -> ProgramStateGroup:
        """Append to every child: one expression, ``callable(i)``, or a list with one per child."""
        if isinstance(other, (list, tuple)):
            if len(other) != len(self._states):
                raise InvalidRequest("expressions", other, f"{len(self._states)} of them")
            expressions = list(other)
        elif callable(other) and not isinstance(other, Expression):
            expressions = [other(index) for index in range(len(self._states))]
        else:
            expressions = [other] * len(self._states)
        for state, expression in zip(self._states, expressions, strict=True):
            state += expression
        return self

    def join(
        self,
        mode: JoinMode = "gather_variable",
        *,
        errors: Literal["raise", "keep"] = "raise",
    ) -> Any:
        """Wait for all children and bring their results into the parent.

        "gather_variable": every variable that a child has made since the fork becomes a list in
        the parent, with the place of child i at i (:data:`MISSING` where it has none); the lists
        are returned too.  "concate_and_append": the texts are appended to the parent in order.

        A failed child raises; with ``errors="keep"`` its place holds a :class:`Failure`.
        """
        if mode not in ("gather_variable", "concate_and_append"):
            raise InvalidRequest("mode", mode, "gather_variable or concate_and_append")
        if errors not in ("raise", "keep"):
            raise InvalidRequest("errors", errors, "raise or keep")
        return self._parent._wait(lambda: self._join(mode, errors))

    async def _join(self, mode: JoinMode, errors: str) -> Mapping[str, list[Any]]:
        failures = await self._settle()
        if errors == "raise":
            for error in failures:
                if error is not None:
                    raise fresh(error) from error.__cause__
        if mode == "gather_variable":
            return self._gather(failures)
        parent = self._parent._executor
        for state, error in zip(self._states, failures, strict=True):
            if error is None:
                transcript, start = state._executor.transcript, state._executor.forked_at
                pieces = transcript.pieces[start:]
                parent.submit_operation(Operation("join", partial(parent.extend, pieces)))
        return {}

    def as_completed(self) -> Any:
        """The children in the order in which they finish (an async iterator for async programs).

        A failed child is yielded too; reading from it raises.
        """
        return self._parent._iterate(self._completed)

    async def _completed(self) -> AsyncIterator[ProgramState]:
        tasks = {asyncio.ensure_future(state._executor.settled()): state for state in self._states}
        try:
            while tasks:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    state = tasks.pop(task)
                    state._executor.handled = True
                    yield state
        finally:
            for task in tasks:
                task.cancel()

    def first(self, count: int = 1) -> Any:
        """Wait for the first ``count`` children that succeed, stop the others, and return them.

        The requests of those that are stopped are aborted.  Raises if so many cannot succeed.
        """
        if not isinstance(count, int) or not 1 <= count <= len(self._states):
            raise InvalidRequest("count", count, f"an integer from 1 to {len(self._states)}")
        return self._parent._wait(lambda: self._first(count))

    async def _first(self, count: int) -> list[ProgramState]:
        winners: list[ProgramState] = []
        failure: BaseException | None = None
        completed = self._completed()
        async for state in completed:
            if state._executor.error is None:
                winners.append(state)
            else:
                failure = failure or state._executor.error
            if len(winners) == count:
                break
        await completed.aclose()  # type: ignore[attr-defined]
        for state in self._states:
            if state not in winners:
                state._executor.handled = True
                state._executor.cancel()
        if failure is not None and len(winners) < count:
            raise fresh(failure) from failure.__cause__
        return winners

    def vote(self, name: str) -> Any:
        """The value of ``name`` that most children agree on, the earliest of several.

        It becomes the parent's ``name``.  Values are compared by their text.
        """
        return self._parent._wait(lambda: self._vote(name))

    async def _vote(self, name: str) -> Any:
        for error in await self._settle():
            if error is not None:
                raise fresh(error) from error.__cause__
        variables = []
        for state in self._states:
            known = state._known(name)
            assert known is not None  # the state has settled, so it is there or has raised
            variables.append(known)
        counts = Counter(variable.text for variable in variables)
        winner = max(variables, key=lambda variable: counts[variable.text])
        self._parent._executor.publish(winner)
        return winner.value

    def cancel(self) -> None:
        """Stop the children that are still at work; their requests are aborted."""
        for state in self._states:
            state._executor.handled = True
            background_loop().call_soon_threadsafe(state._executor.cancel_work)

    def __enter__(self) -> ProgramStateGroup:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Leaving a ``with`` block stops the children that are still at work."""
        self.cancel()

    async def _settle(self) -> list[BaseException | None]:
        """Wait for all children; their errors are handled from now on."""
        failures: list[BaseException | None] = []
        for state in self._states:
            executor = state._executor
            await executor.settled()
            executor.handled = True
            failures.append(executor.error)
        return failures

    def _gather(self, failures: Sequence[BaseException | None]) -> Mapping[str, list[Any]]:
        names = dict.fromkeys(
            name
            for state in self._states
            for name, variables in state._executor.variables.items()
            if name and len(variables) > self._before.get(name, 0)
        )
        joined: dict[str, list[Any]] = {}
        for name in names:
            parts = [
                Failure(error) if error is not None else self._made(state, name)
                for state, error in zip(self._states, failures, strict=True)
            ]
            variable = JoinedVariable(name, parts)
            self._parent._executor.publish(variable)
            joined[name] = variable.text_or_value
        return joined

    def _made(self, state: ProgramState, name: str) -> Any:
        variables = state._executor.variables.get(name, [])
        return variables[-1] if len(variables) > self._before.get(name, 0) else MISSING


class JoinedVariable(Variable):
    """A list over forks; ``parts`` are their variables, or MISSING, or a Failure."""

    __slots__ = ("parts",)

    def __init__(self, name: str, parts: list[Any]) -> None:
        super().__init__(name)
        self.parts = parts
        self.done.set_result(None)

    def _each(self, read: Callable[[Variable], Any]) -> list[Any]:
        return [read(part) if isinstance(part, Variable) else part for part in self.parts]

    @property
    def text(self) -> Any:
        return self._each(lambda part: part.text)

    @property
    def value(self) -> Any:
        return self._each(lambda part: part.value)

    @property
    def text_or_value(self) -> list[Any]:
        """The values; the text where a value is incomplete (reading it from the parent raises)."""
        return self._each(_value_or_text)

    def per_sample(self, read: Any) -> Any:
        return self._each(lambda part: part.per_sample(read))


def _value_or_text(variable: Variable) -> Any:
    try:
        return variable.value
    except ValueError:
        return variable.text


class Copy:
    """``with s.copy() as c``: a fork of one; what it generated comes back, not in lists."""

    def __init__(self, parent: ProgramState) -> None:
        self._parent = parent
        self._group = parent.fork(1)

    def __enter__(self) -> ProgramState:
        return self._group[0]

    def __exit__(self, kind: Any, *exc_info: object) -> None:
        if kind is None:
            block_on(self._publish)

    async def __aenter__(self) -> ProgramState:
        return self._group[0]

    async def __aexit__(self, kind: Any, *exc_info: object) -> None:
        if kind is None:
            await await_on(self._publish)

    async def _publish(self) -> None:
        child = self._group[0]
        failure = (await self._group._settle())[0]
        if failure is not None:
            raise fresh(failure) from failure.__cause__
        for name, variables in child._executor.variables.items():
            for variable in variables[self._group._before.get(name, 0) :]:
                self._parent._executor.publish(variable)
