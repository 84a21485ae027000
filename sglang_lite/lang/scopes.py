"""Blocks of a program whose text does not stay: ``scratch`` and ``attempt``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sglang_lite.errors import CheckFailed, Incomplete, InvalidRequest
from sglang_lite.lang.executor import Executor
from sglang_lite.lang.loop import await_on, block_on
from sglang_lite.lang.transcript import Mark, Message
from sglang_lite.lang.work_queue import Operation

if TYPE_CHECKING:
    from sglang_lite.lang.state import ProgramState


class Checkpoint:
    """A place in a state to come back to, taken in order with the queued nodes."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._variables: dict[str, int] = {}
        self._mark: Mark | None = None

    def take(self) -> None:
        """Remember this place (any thread)."""
        self._variables = {name: len(v) for name, v in self._executor.variables.items()}
        self._executor.submit_operation(Operation("checkpoint", self._take))

    def _take(self) -> None:
        self._mark = self._executor.transcript.mark()

    @property
    def taken(self) -> Mark:
        """The place in the transcript."""
        if self._mark is None:
            raise RuntimeError("the checkpoint was not reached")
        return self._mark

    def restore_text(self) -> None:
        """Take text and roles back; variables stay (loop thread)."""
        self._executor.rollback(self.taken)

    async def rollback(self) -> None:
        """Take everything back, after what is queued has been worked off (loop thread)."""
        executor = self._executor
        executor.submit_operation(Operation("rollback", self.restore_text))
        await asyncio.wrap_future(executor.barrier())
        for name, variables in list(executor.variables.items()):
            del variables[self._variables.get(name, 0) :]
            if not variables:
                del executor.variables[name]


class Scratch:
    """``with s.scratch():`` the text appended inside vanishes at the end, the values stay."""

    def __init__(self, state: ProgramState) -> None:
        self._executor = state._executor
        self._checkpoint = Checkpoint(self._executor)

    def __enter__(self) -> None:
        self._checkpoint.take()

    def __exit__(self, *exc_info: object) -> None:
        if self._executor.error is None:
            operation = Operation("scratch", lambda: self._checkpoint.restore_text())
            self._executor.submit_operation(operation)


class Attempts:
    """``for attempt in s.attempt(retries=3): with attempt: ...``, see ``ProgramState.attempt``."""

    def __init__(self, state: ProgramState, retries: int, keep_feedback: bool) -> None:
        if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
            raise InvalidRequest("retries", retries, "an integer, at least 0")
        self._state = state
        self._retries = retries
        self._keep_feedback = keep_feedback

    def __iter__(self) -> Iterator[Attempt]:
        feedback: str | None = None
        for number in range(self._retries + 1):
            last = number == self._retries
            attempt = Attempt(self._state, number, last, feedback, self._keep_feedback)
            yield attempt
            if attempt.succeeded:
                return
            feedback = attempt.feedback


class Attempt:
    """One try: a context manager, blocking or ``async with``."""

    def __init__(
        self,
        state: ProgramState,
        number: int,
        last: bool,
        feedback: str | None,
        keep_feedback: bool,
    ) -> None:
        self.number = number
        self.succeeded = False
        self.feedback: str | None = None
        self._given = feedback
        self._keep_feedback = keep_feedback
        self._last = last
        self._executor = state._executor
        self._state = state
        self._checkpoint = Checkpoint(self._executor)
        self._after_feedback = Checkpoint(self._executor)

    def check(self, condition: Any, feedback: str | None = None) -> None:
        """Go on if ``condition`` holds; otherwise end this attempt.

        The next one begins with ``feedback`` appended, if there is any.
        """
        if not condition:
            raise CheckFailed(feedback)

    def __enter__(self) -> Attempt:
        self._checkpoint.take()
        if self._given:
            self._state += self._given
        self._after_feedback.take()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        retry = self._leave(error)
        if error is not None and self._executor.error is None:
            block_on(self._checkpoint.rollback)
        return retry

    async def __aenter__(self) -> Attempt:
        return self.__enter__()

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        retry = self._leave(error)
        if error is not None and self._executor.error is None:
            await await_on(self._checkpoint.rollback)
        return retry

    def _leave(self, error: BaseException | None) -> bool:
        """True where the error means another try."""
        if error is None:
            self.succeeded = True
            if self._given and not self._keep_feedback:
                self._executor.submit_operation(Operation("attempt", self._drop_feedback))
            return False
        if isinstance(error, CheckFailed):
            self.feedback = error.feedback
        return not self._last and isinstance(error, (CheckFailed, Incomplete))

    async def _drop_feedback(self) -> None:
        """Say the same again without the feedback: its text changes, so its ids do too."""
        transcript = self._executor.transcript
        before, after = self._checkpoint.taken, self._after_feedback.taken
        said = transcript.copy()
        self._checkpoint.restore_text()
        await self._executor.extend(said.pieces[after.pieces :])
        transcript.messages = said.messages
        if before.open_role is not None and len(said.messages) > before.messages:
            # The message in which the feedback stood was closed since.
            begun = len("".join(p.text for p in said.pieces[before.role_from : before.pieces]))
            given = len("".join(p.text for p in said.pieces[before.pieces : after.pieces]))
            message = said.messages[before.messages]
            content = message.content[:begun] + message.content[begun + given :]
            transcript.messages[before.messages] = Message(message.role, content)
        transcript.open_role, transcript.opening = said.open_role, said.opening
        moved = after.pieces - before.pieces if said.role_from >= after.pieces else 0
        transcript.role_from = said.role_from - moved
