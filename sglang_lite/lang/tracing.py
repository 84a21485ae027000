"""Running a program's body without a model: ``trace`` for its nodes, ``check`` for its mistakes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sglang_lite.constraint import Choice, Constraint, Regex
from sglang_lite.errors import ConstraintError, InvalidRequest, SglangLiteError
from sglang_lite.lang import nodes
from sglang_lite.lang.expressions import role_message, source_line

if TYPE_CHECKING:
    from sglang_lite.lang.program import SglFunction

MOST_NODES = 10_000
"""A body that appends more without a model is taken for one that waits for an answer."""


@dataclass(frozen=True)
class Fork(nodes.Expression):
    """The state was forked into ``size`` children."""

    size: int
    where: str = ""


@dataclass(frozen=True)
class Reference(nodes.Expression):
    """Stands for the value of a variable while the program is traced."""

    name: str

    def __str__(self) -> str:
        raise TypeError(f"variable {self.name!r} has no value while the program is traced")

    def __format__(self, spec: str) -> str:
        return str(self)


class Placeholder(str):
    """A text that stands for a value while a program is checked."""


@dataclass
class Trace:
    """What a body appended: ``nodes`` of all states in order, ``variables`` by name.

    ``children`` are the traces of its forks.
    """

    path: tuple[int, ...] = ()
    nodes: list[Any] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)
    children: list[Trace] = field(default_factory=list)
    ret_value: Any = None

    @property
    def last_node(self) -> Trace:
        """SGLang's way to the printable graph."""
        return self

    def print_graph_dfs(self) -> None:
        """Print all nodes, forks indented."""
        print(self)

    def __str__(self) -> str:
        pad = "  " * len(self.path)
        lines = [pad + nodes.pretty(node) for node in self.nodes]
        return "\n".join([*lines, *(f"{pad}fork {c.path[-1]}:\n{c}" for c in self.children)])


class TraceState:
    """The ``s`` of a traced program: it records instead of generating."""

    def __init__(self, trace: Trace, value_of: Callable[[str], Any], counter: list[int]) -> None:
        self._trace = trace
        self._value_of = value_of
        self._counter = counter
        self.ret_value: Any = None

    def __iadd__(self, other: Any) -> TraceState:
        for node in nodes.flatten(nodes.as_expression(other)):
            self._record(node)
        return self

    def _record(self, node: Any) -> None:
        self._counter[0] += 1
        if self._counter[0] > MOST_NODES:
            raise RecursionError(f"more than {MOST_NODES} nodes without an answer of a model")
        self._trace.nodes.append(node)
        name = getattr(node, "name", None)
        if isinstance(node, (nodes.Gen, nodes.Select, nodes.ScopeBegin)) and name is not None:
            self._trace.variables[name] = self._value_of(name)
            if isinstance(node, nodes.Gen) and node.reasoning is not None:
                thoughts = f"{name}_reasoning_content"
                self._trace.variables[thoughts] = self._value_of(thoughts)

    def __getitem__(self, name: str) -> Any:
        if name not in self._trace.variables:
            known = ", ".join(map(repr, self._trace.variables)) or "none"
            raise KeyError(f"{name!r} (variables of this state: {known})")
        return self._trace.variables[name]

    get_var = raw = __getitem__

    def __contains__(self, name: str) -> bool:
        return name in self._trace.variables

    def set_var(self, name: str, value: Any) -> None:
        """See ``ProgramState.set_var``."""
        self._trace.variables[name] = value

    __setitem__ = set_var

    def system(self, expr: Any = None) -> Any:
        """See ``ProgramState.system``."""
        return self._role("system", expr)

    def user(self, expr: Any = None) -> Any:
        """See ``ProgramState.user``."""
        return self._role("user", expr)

    def assistant(self, expr: Any = None) -> Any:
        """See ``ProgramState.assistant``."""
        return self._role("assistant", expr)

    def _role(self, role: str, expr: Any) -> Any:
        if expr is not None:
            self += role_message(role, expr)
            return None
        return self._scope(nodes.RoleBegin(role, source_line()), nodes.RoleEnd(role))

    def var_scope(self, name: str) -> Any:
        """See ``ProgramState.var_scope``."""
        return self._scope(nodes.ScopeBegin(name), nodes.ScopeEnd(name))

    @contextmanager
    def _scope(self, begin: Any, end: Any) -> Iterator[None]:
        self._record(begin)
        try:
            yield
        finally:
            self._record(end)

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """See ``ProgramState.scratch``."""
        yield

    def sync(self) -> None:
        """Nothing to wait for."""

    def fork(self, size: int = 1, position_ids_offset: Any = None) -> TraceGroup:
        """See ``ProgramState.fork``."""
        self._record(Fork(size, source_line()))
        first = len(self._trace.children)
        children = []
        for index in range(size):
            path = (*self._trace.path, first + index)
            child = Trace(path, variables=dict(self._trace.variables))
            self._trace.children.append(child)
            children.append(TraceState(child, self._value_of, self._counter))
        return TraceGroup(self, children)

    @contextmanager
    def copy(self) -> Iterator[TraceState]:
        """See ``ProgramState.copy``."""
        group = self.fork(1)
        yield group[0]
        self._trace.variables.update(group[0]._trace.variables)


class TraceGroup:
    """The children of a fork while a program is traced."""

    def __init__(self, parent: TraceState, states: Sequence[TraceState]) -> None:
        self._parent = parent
        self._states = list(states)

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return [state[key] for state in self._states]
        return self._states[key]

    def __setitem__(self, index: int, state: TraceState) -> None:
        """Only what ``g[i] += expression`` does."""

    def __iadd__(self, other: Any) -> TraceGroup:
        for index, state in enumerate(self._states):
            if isinstance(other, (list, tuple)):
                state += other[index]
            elif callable(other) and not isinstance(other, nodes.Expression):
                state += other(index)
            else:
                state += other
        return self

    def join(self, mode: str = "gather_variable", *, errors: str = "raise") -> None:
        """See ``ProgramStateGroup.join``."""
        if mode == "gather_variable":
            for name in {name for state in self._states for name in state._trace.variables}:
                values = [state._trace.variables.get(name) for state in self._states]
                if name not in self._parent._trace.variables:
                    self._parent._trace.variables[name] = values


def trace(program: SglFunction, arguments: dict[str, Any]) -> Trace:
    """Run the body once with dummies for the arguments that are not given.

    A dummy has no value: using one in an f-string raises TypeError.
    """
    return _follow(program, arguments, nodes.Argument, Reference)


def _follow(
    program: SglFunction,
    arguments: dict[str, Any],
    argument: Callable[[str], Any],
    value: Callable[[str], Any],
) -> Trace:
    if program.is_async:
        raise InvalidRequest("program", program.__name__, "a program that is not async")  # type: ignore[attr-defined]
    given = {**program.bound, **arguments}
    for name, parameter in program.parameters.items():
        if name not in given and parameter.default is parameter.empty:
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            given[name] = argument(name)
    traced = Trace()
    traced.ret_value = program.func(TraceState(traced, value, [0]), **given)
    return traced


@dataclass(frozen=True)
class Problem:
    """Something that ``check`` has found; ``where`` is "file.py:12"."""

    kind: str
    message: str
    where: str = "-"

    def __str__(self) -> str:
        return f"{self.where}: {self.kind}: {self.message}"


def check(
    program: SglFunction,
    arguments: dict[str, Any],
    refuses: Callable[[Constraint], str | None],
) -> list[Problem]:
    """What is wrong with a program, as far as one can tell without a model.

    ``refuses`` says why a backend would not take a constraint.
    """
    problems: list[Problem] = []
    traced = Trace()
    try:
        traced = _follow(
            program,
            arguments,
            lambda name: Placeholder(f"⟨{name}⟩"),
            lambda name: Placeholder(f"⟨{name}⟩"),
        )
    except KeyError as error:
        problems.append(Problem("undefined variable", str(error.args[0]), _line(error)))
    except ConstraintError as error:
        problems.append(Problem("constraint", str(error), _line(error)))
    except SglangLiteError as error:
        problems.append(Problem("wrong expression", str(error), _line(error)))
    except Exception as error:
        told = f"cannot follow the body beyond this: {type(error).__name__}: {error}"
        problems.append(Problem("not checked", told, _line(error)))
    for part in _all(traced):
        problems += _roles(part)
        for node in part.nodes:
            if isinstance(node, nodes.Gen):
                problems += _gen_problems(node, refuses)
    return problems


def _all(traced: Trace) -> Iterator[Trace]:
    yield traced
    for child in traced.children:
        yield from _all(child)


def _roles(traced: Trace) -> Iterator[Problem]:
    role: str | None = None
    for node in traced.nodes:
        if isinstance(node, nodes.RoleBegin):
            if role is not None:
                yield Problem("role", f"{node.role} begins inside {role}", node.where)
            role = node.role
        elif isinstance(node, nodes.RoleEnd):
            role = None
        elif isinstance(node, nodes.Gen) and role in ("system", "user"):
            yield Problem("role", f"{node.label} inside a message of the {role}", node.where)


def _gen_problems(
    node: nodes.Gen, refuses: Callable[[Constraint], str | None]
) -> Iterator[Problem]:
    constraint = node.constraint
    if constraint is None:
        return
    reason = refuses(constraint)
    if reason is not None:
        yield Problem("constraint", f"{node.label}: {reason}", node.where)
        return
    for stop in node.given.get("stop", ()):
        if _never_contains(constraint, stop):
            told = f"{node.label}: the constraint never lets stop={stop!r} appear"
            yield Problem("unreachable stop", told, node.where)


def _never_contains(constraint: Constraint, text: str) -> bool:
    """True where no text that satisfies the constraint contains ``text``."""
    if isinstance(constraint, Choice):
        return not any(text in choice for choice in constraint.choices)
    if not isinstance(constraint, Regex):
        return False
    import interegular

    try:
        own = interegular.parse_pattern(constraint.pattern).to_fsm()
        around = interegular.parse_pattern(rf"[\s\S]*{re.escape(text)}[\s\S]*").to_fsm()
        return bool((own & around).empty())
    except Exception:  # beyond what the library reads: nothing is claimed
        return False


def _line(error: BaseException) -> str:
    where = "-"
    frame = error.__traceback__
    while frame is not None:
        if not frame.tb_frame.f_globals.get("__name__", "").startswith("sglang_lite."):
            where = f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}"
        frame = frame.tb_next
    return where
