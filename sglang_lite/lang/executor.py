"""The interpreter: one executor per state, a queue of nodes and a task that works it off.

A program only queues nodes (it runs ahead of the model); the task lives on the background loop
while there is something to do, so a state costs no thread.  Once a node fails, the state has
failed: everything queued and every later access raises the same :class:`ProgramError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang_lite.errors import InvalidRequest, ProgramCancelled, ProgramError
from sglang_lite.lang import nodes
from sglang_lite.lang.events import (
    ErrorEvent,
    Event,
    ForkEvent,
    Path,
    RetractEvent,
    RoleEvent,
    TextEvent,
    VariableBegin,
    VariableEnd,
)
from sglang_lite.lang.generation import run_gen, run_select
from sglang_lite.lang.loop import background_loop
from sglang_lite.lang.speculation import Speculation
from sglang_lite.lang.transcript import Mark, Piece, Transcript
from sglang_lite.lang.variable import Variable

if TYPE_CHECKING:
    from sglang_lite.lang.run import Run


@dataclass(frozen=True)
class Operation:
    """Something that the language itself queues between nodes; ``label`` is for messages."""

    label: str
    work: Callable[[], Awaitable[None] | None]
    fail: Callable[[BaseException], None] | None = None
    where: str = "-"


Queued = tuple["nodes.Expression | Operation", tuple[Variable, ...]]


class Executor:
    """One state of a run; ``path`` says which fork it is.

    ``variables`` maps a name to every variable of that name, in the order of submission.
    """

    def __init__(self, run: Run, path: Path = ()) -> None:
        self.run = run
        self.path = path
        self.transcript = Transcript()
        self.variables: dict[str, list[Variable]] = {}
        self.error: BaseException | None = None
        self.handled = False
        self.children = 0
        self.forked_at = 0
        self.gens = 0
        self.speculation = None if run.ahead is None else Speculation(run.backend, run.ahead)
        self._scopes: list[tuple[Variable, int]] = []
        self._open_scopes: list[Variable] = []
        self._queue: deque[Queued] = deque()
        self._lock = threading.Lock()
        self._draining = False
        self._task: asyncio.Task[None] | None = None
        self._watchers: list[asyncio.Future[None]] = []
        run.executors.append(self)

    # Submitting: from any thread.

    def submit(self, expression: nodes.Expression) -> None:
        """Queue an expression; its variables exist from now on."""
        self._enqueue([(node, self._declare(node)) for node in nodes.flatten(expression)])

    def submit_operation(self, operation: Operation) -> None:
        """Queue an operation in order with the nodes."""
        self._enqueue([(operation, ())])

    def _enqueue(self, items: list[Queued]) -> None:
        with self._lock:
            if self.error is None:
                self._queue.extend(items)
                start = not self._draining
                self._draining = True
        if self.error is not None:
            self._fail_items(items)
            raise self.failure()
        if start:
            background_loop().call_soon_threadsafe(self._start)

    def _declare(self, node: Any) -> tuple[Variable, ...]:
        """Make the variables that ``node`` will fill."""
        if isinstance(node, nodes.ScopeEnd):
            if not self._open_scopes:
                raise InvalidRequest("var_scope_end", node.name, "a scope that is open")
            return (self._open_scopes.pop(),)
        if not isinstance(node, (nodes.Gen, nodes.Select, nodes.ScopeBegin)):
            return ()
        variable = Variable(node.name, getattr(node, "value_type", None))
        if isinstance(node, nodes.ScopeBegin):
            self._open_scopes.append(variable)
        if node.name is not None:
            self.publish(variable)
        if isinstance(node, nodes.Gen) and node.reasoning is not None:
            thoughts = Variable(f"{node.name}_reasoning_content")
            if node.name is not None:
                self.publish(thoughts)
            return (variable, thoughts)
        return (variable,)

    def publish(self, variable: Variable) -> None:
        """Make ``variable`` the latest of its name."""
        self.variables.setdefault(variable.name or "", []).append(variable)

    def barrier(self) -> Future[None]:
        """Done when everything queued so far is done; raises what failed."""
        done: Future[None] = Future()

        def fail(error: BaseException) -> None:
            if not done.done():
                done.set_exception(error)

        def succeed() -> None:
            if not done.done():
                done.set_result(None)

        operation = Operation("sync", succeed, fail)
        try:
            self.submit_operation(operation)
        except (ProgramError, ProgramCancelled) as error:
            fail(error)
        return done

    async def settled(self) -> None:
        """Wait until everything queued is done or has failed; the error is in ``error``."""
        with contextlib.suppress(ProgramError, ProgramCancelled):
            await asyncio.wrap_future(self.barrier())

    def fork(self, where: str) -> Executor:
        """A child that goes on from here; it starts when this state has come so far."""
        path = (*self.path, self.children)
        self.children += 1
        child = Executor(self.run, path)
        child.variables = {name: list(values) for name, values in self.variables.items()}
        ready: Future[Transcript] = Future()

        def hand_over() -> None:
            self.emit(ForkEvent(self.path, (path,)))
            ready.set_result(self.transcript.copy())

        async def take() -> None:
            child.transcript = await asyncio.wrap_future(ready)
            child.forked_at = len(child.transcript.pieces)

        self.submit_operation(Operation("fork", hand_over, ready.set_exception, where))
        child.submit_operation(Operation("fork", take, where=where))
        return child

    # Working: on the background loop.

    def _start(self) -> None:
        loop = background_loop()
        self._task = self.run.context.copy().run(loop.create_task, self._drain())
        self.wake_watchers()

    async def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._draining = False
                    return
                item = self._queue.popleft()
            node, variables = item
            try:
                pending = self._execute(node, variables)
                if pending is not None:
                    await pending
            except asyncio.CancelledError:
                self.fail(self.run.stop_reason(), item)
                raise
            except Exception as error:
                self.fail(self._program_error(node, error), item)
                return

    def _execute(self, node: Any, variables: tuple[Variable, ...]) -> Awaitable[None] | None:
        if isinstance(node, nodes.Text):
            self.append(node.text)
        elif isinstance(node, nodes.Gen):
            self.emit(VariableBegin(self.path, node.name))
            return run_gen(self, node, variables)
        elif isinstance(node, nodes.Select):
            self.emit(VariableBegin(self.path, node.name))
            return run_select(self, node, variables[0])
        elif isinstance(node, nodes.RoleBegin):
            self._open_role(node.role, node.answer)
        elif isinstance(node, nodes.RoleEnd):
            self._close_role(node.role)
        elif isinstance(node, nodes.ScopeBegin):
            self._scopes.append((variables[0], len(self.transcript.pieces)))
        elif isinstance(node, nodes.ScopeEnd):
            self._end_scope(variables[0])
        elif isinstance(node, Operation):
            return node.work()
        else:
            raise InvalidRequest("expression", node, "an expression that this state can run")
        return None

    def append(self, text: str, *, trusted: bool = False) -> None:
        """Add literal text and tell the readers."""
        if text:
            self.transcript.append(text, trusted=trusted)
            self.emit(TextEvent(self.path, text))
            if self.speculation is not None:
                self.speculation.literal(text)

    async def extend(self, pieces: Sequence[Piece]) -> None:
        """Append what another state has said, generated token ids included."""
        self._drop_speculation()
        for piece in pieces:
            if piece.token_ids is None:
                self.append(piece.text, trusted=piece.trusted)
            else:
                ids = (await self.transcript.prompt(self.run.backend)).input_ids or ()
                self.transcript.append_generated(piece.text, piece.token_ids, ids)
                self.emit(TextEvent(self.path, piece.text))

    def _open_role(self, role: str, answer: bool) -> None:
        transcript = self.transcript
        self._drop_speculation()
        if transcript.open_role is not None:
            accepted = f"no role inside another one, and {transcript.open_role} is open"
            raise InvalidRequest("role", role, accepted)
        history = [message.role for message in transcript.messages]
        template = self.run.template()
        prefix = template.generation_prefix(history) if answer else template.prefix(history, role)
        transcript.open(role, prefix)
        self.emit(RoleEvent(self.path, role, begin=True))
        if prefix:
            self.emit(TextEvent(self.path, prefix))

    def begin_answer(self) -> None:
        """Before a model writes: an answer that has not begun takes the generation prompt."""
        transcript = self.transcript
        if transcript.open_role != "assistant" or transcript.role_from != len(transcript.pieces):
            return
        history = [message.role for message in transcript.messages]
        template = self.run.template()
        prefix = template.generation_prefix(history)
        if prefix != transcript.opening:
            transcript.reopen(prefix)
            self.emit(RetractEvent(self.path, len(transcript.text()) - len(prefix)))
            self.emit(TextEvent(self.path, prefix))

    def _close_role(self, role: str) -> None:
        transcript = self.transcript
        if transcript.open_role != role:
            opened = (
                f"{transcript.open_role} is open" if transcript.open_role else "no role is open"
            )
            accepted = f"the end of the open role, and {opened}"
            raise InvalidRequest("role", role, accepted)
        roles = [message.role for message in transcript.messages] + [role]
        suffix = self.run.template().suffix(roles)
        transcript.close(suffix)
        self._drop_speculation()
        if suffix:
            self.emit(TextEvent(self.path, suffix))
        self.emit(RoleEvent(self.path, role, begin=False))

    def _end_scope(self, variable: Variable) -> None:
        index = next(i for i, (opened, _) in enumerate(self._scopes) if opened is variable)
        _, start = self._scopes.pop(index)
        variable.resolve_text(self.transcript.text(start))
        self.emit(VariableEnd(self.path, variable.name, variable.text))

    def rollback(self, mark: Mark) -> None:
        """Take the text and roles back to ``mark``."""
        self.transcript.rollback(mark)
        self._drop_speculation()
        self.emit(RetractEvent(self.path, len(self.transcript.text())))

    def _drop_speculation(self) -> None:
        if self.speculation is not None:
            self.speculation.drop()

    def emit(self, event: Event) -> None:
        """Tell the readers of the run's stream, if there is one."""
        if self.run.log is not None:
            self.run.log.append(event)

    # Failing and ending.

    def _program_error(self, node: Any, error: Exception) -> BaseException:
        if isinstance(error, (ProgramError, ProgramCancelled)):
            return error
        label = getattr(node, "label", None) or nodes.pretty(node).strip()
        name = getattr(node, "name", None)
        return ProgramError(
            self.run.program, label, name, getattr(node, "where", "-") or "-", error
        )

    def fail(self, error: BaseException, current: Queued | None = None) -> None:
        """Mark the state as failed; everything queued fails with it.  The first error stays."""
        with self._lock:
            if self.error is None:
                self.error = error
            queue = [*([current] if current else []), *self._queue]
            self._queue.clear()
            self._draining = False
        self.emit(ErrorEvent(self.path, self.error))
        self._fail_items(queue)
        for variable, _ in self._scopes:
            variable.fail(self.error)
        self.wake_watchers()

    def _fail_items(self, items: list[Queued]) -> None:
        error = self.error
        assert error is not None  # the callers have just seen it
        for node, variables in items:
            for variable in variables:
                variable.fail(error)
            if isinstance(node, Operation) and node.fail is not None:
                node.fail(error)

    def failure(self) -> BaseException:
        """A fresh exception for one waiter, so that tracebacks do not pile up in one object."""
        return fresh(self.error)

    def cancel(self) -> None:
        """Stop working (loop thread); the request in flight is aborted."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
        elif self.error is None:
            self.fail(self.run.stop_reason())

    def cancel_work(self) -> None:
        """:meth:`cancel`, but a state that has worked off its queue stays as it is."""
        if self._draining:
            self.cancel()

    def wake_watchers(self) -> None:
        """Wake those who wait for a variable to be submitted (loop thread)."""
        watchers, self._watchers = self._watchers, []
        for future in watchers:
            if not future.done():
                future.set_result(None)

    async def changed(self) -> None:
        """Wait until more was submitted, or the state or the body ended (loop thread)."""
        future = asyncio.get_running_loop().create_future()
        self._watchers.append(future)
        await future


def fresh(error: BaseException | None) -> BaseException:
    """A copy of a :class:`ProgramError` with the same cause; other errors as they are."""
    if isinstance(error, ProgramError) and error.__cause__ is not None:
        return ProgramError(error.program, error.node, error.variable, error.where, error.__cause__)
    if isinstance(error, ProgramCancelled):
        return ProgramCancelled(*error.args)
    return error if error is not None else RuntimeError("the state has not failed")
