"""Running a program's body without a model, to see what it appends: ``SglFunction.trace``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sglang_lite.errors import InvalidRequest
from sglang_lite.lang import nodes
from sglang_lite.lang.nodes import source_line
from sglang_lite.lang.roles import Appending

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


class TraceState(Appending):
    """The ``s`` of a traced program: it records instead of generating."""

    def __init__(self, trace: Trace, value_of: Callable[[str], Any], counter: list[int]) -> None:
        self._trace = trace
        self._value_of = value_of
        self._counter = counter
        self.ret_value: Any = None

    def __iadd__(self, other: Any) -> TraceState:
        self._append(nodes.as_expression(other))
        return self

    def _append(self, expression: nodes.Expression) -> None:
        for node in nodes.flatten(expression):
            self._record(node)

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
    return follow(program, arguments, nodes.Argument, Reference, Trace())


def constant_beginning(program: SglFunction) -> list[nodes.Expression]:
    """The nodes that every run of ``program`` begins with, if there is any text among them."""
    constant: list[nodes.Expression] = []
    for node in trace(program, {}).nodes:
        if not isinstance(node, (nodes.Text, nodes.RoleBegin, nodes.RoleEnd)):
            break
        constant.append(node)
    return constant if any(isinstance(node, nodes.Text) for node in constant) else []


def follow(
    program: SglFunction,
    arguments: dict[str, Any],
    argument: Callable[[str], Any],
    value: Callable[[str], Any],
    traced: Trace,
) -> Trace:
    """Run the body and fill ``traced``, which keeps what came before an exception."""
    if program.is_async:
        raise InvalidRequest("program", program.__name__, "a program that is not async")  # type: ignore[attr-defined]
    given = {**program.bound, **arguments}
    for name, parameter in program.parameters.items():
        if name not in given and parameter.default is parameter.empty:
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            given[name] = argument(name)
    traced.ret_value = program.func(TraceState(traced, value, [0]), **given)
    return traced
