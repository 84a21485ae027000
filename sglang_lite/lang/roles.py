"""Messages: roles as expressions, as methods of a state, and as ``with`` blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sglang_lite.errors import InvalidRequest
from sglang_lite.lang.nodes import (
    Concat,
    Expression,
    RoleBegin,
    RoleEnd,
    ScopeBegin,
    ScopeEnd,
    as_expression,
    parts,
    source_line,
)

ROLES = ("system", "user", "assistant", "tool")


def role_message(role: str, expression: Any = None) -> Expression:
    """A whole message of ``role``; None makes an empty one."""
    if role not in ROLES:
        raise InvalidRequest("role", role, f"one of {', '.join(ROLES)}")
    where = source_line()
    inner = () if expression is None else parts(as_expression(expression))
    return Concat((RoleBegin(role, where), *inner, RoleEnd(role, where)))


def system(expr: Any = None) -> Expression:
    """A system message."""
    return role_message("system", expr)


def user(expr: Any = None) -> Expression:
    """A user message."""
    return role_message("user", expr)


def assistant(expr: Any = None) -> Expression:
    """An assistant message."""
    return role_message("assistant", expr)


def _role_edge(make: Callable[..., Expression], role: str, name: str) -> Callable[[], Expression]:
    def edge() -> Expression:
        return make(role, source_line())

    edge.__name__ = edge.__qualname__ = name
    edge.__doc__ = f"{'Opens' if make is RoleBegin else 'Closes'} a message of the {role} role."
    return edge


system_begin = _role_edge(RoleBegin, "system", "system_begin")
system_end = _role_edge(RoleEnd, "system", "system_end")
user_begin = _role_edge(RoleBegin, "user", "user_begin")
user_end = _role_edge(RoleEnd, "user", "user_end")
assistant_begin = _role_edge(RoleBegin, "assistant", "assistant_begin")
assistant_end = _role_edge(RoleEnd, "assistant", "assistant_end")


class Appending(ABC):
    """Roles and scopes of a state, whether it runs or is only traced."""

    @abstractmethod
    def _append(self, expression: Expression) -> None:
        """Add an expression."""

    def _close(self, end: Expression) -> None:
        """Add the end of a block; also where an exception leaves it."""
        self._append(end)

    def system(self, expr: Any = None) -> Any:
        """Append a system message; without ``expr`` a context manager around its content."""
        return self._role("system", expr)

    def user(self, expr: Any = None) -> Any:
        """Append a user message; without ``expr`` a context manager around its content."""
        return self._role("user", expr)

    def assistant(self, expr: Any = None) -> Any:
        """Append an assistant message; without ``expr`` a context manager around its content."""
        return self._role("assistant", expr)

    def _role(self, role: str, expr: Any) -> Any:
        if expr is not None:
            self._append(role_message(role, expr))
            return None
        where = source_line()
        return self._scope(RoleBegin(role, where), RoleEnd(role, where))

    def var_scope(self, name: str) -> Any:
        """Context manager: the text appended inside becomes variable ``name``."""
        return self._scope(ScopeBegin(name), ScopeEnd(name))

    @contextmanager
    def _scope(self, begin: Expression, end: Expression) -> Iterator[None]:
        self._append(begin)
        try:
            yield
        finally:
            self._close(end)
