"""Methods that have the parameters of a dataclass, without writing them twice."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, get_type_hints

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


def takes(
    make: Callable[P, A],
) -> Callable[[Callable[[S, A], R]], Callable[Concatenate[S, P], R]]:
    """Give a method the parameters of the dataclass ``make``, of which it gets an instance.

    Type checkers and editors see them, and so does ``inspect.signature``.
    """

    def wrap(method: Callable[[S, A], R]) -> Callable[Concatenate[S, P], R]:
        @functools.wraps(method)
        def wrapped(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
            return method(self, make(*args, **kwargs))

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        types = get_type_hints(make)
        known = [
            each.replace(annotation=types[each.name])
            for each in inspect.signature(make).parameters.values()
        ]
        wrapped.__signature__ = inspect.Signature([own, *known])  # type: ignore[attr-defined]
        return wrapped

    return wrap
