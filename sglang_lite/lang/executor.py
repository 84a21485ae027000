"""The interpreter: one executor per state, which knows what each node does to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from sglang_lite.errors import InvalidRequest
from sglang_lite.lang import nodes
from sglang_lite.lang.events import (
    ForkEvent,
    Path,
    RetractEvent,
    RoleEvent,
    TextEvent,
    VariableBegin,
    VariableEnd,
)
from sglang_lite.lang.generation import run_gen, run_select
from sglang_lite.lang.speculation import Speculation
from sglang_lite.lang.transcript import Mark, Piece, Transcript
from sglang_lite.lang.variable import Variable
from sglang_lite.lang.work_queue import Operation, WorkQueue

if TYPE_CHECKING:
    from sglang_lite.lang.run import Run


class Executor(WorkQueue):
    """One state of a run.

    ``variables`` maps a name to every variable of that name, in the order of submission.
    """

    def __init__(self, run: Run, path: Path = ()) -> None:
        super().__init__(run, path)
        self.transcript = Transcript()
        self.variables: dict[str, list[Variable]] = {}
        self.handled = False
        self.children = 0
        self.forked_at = 0
        self.gens = 0
        self.speculation = None if run.ahead is None else Speculation(run.backend, run.ahead)
        self._scopes: list[tuple[Variable, int]] = []
        self._open_scopes: list[Variable] = []
        run.executors.append(self)

    # Submitting: from any thread.

    def submit(self, expression: nodes.Expression) -> None:
        """Queue an expression; its variables exist from now on."""
        self._enqueue([(node, self._declare(node)) for node in nodes.flatten(expression)])

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

    def _unfinished(self) -> list[Variable]:
        return [variable for variable, _ in self._scopes]
