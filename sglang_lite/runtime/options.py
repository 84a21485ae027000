"""What is to be known of an option: the base of the engine's and the HTTP server's.

A frozen dataclass whose fields are annotated with :class:`Option` is the one place where names,
defaults and ranges are written: constructors, the command line and the environment follow from it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from sglang_lite.errors import InvalidRequest


@dataclass(frozen=True)
class Option:
    """What is to be known of one option besides its name, type and default.

    * ``group``: its heading in the command line's help.  ``flags``: its names there, where they
      are not just the option's own.  ``unit``: "tokens" may be written ``32k`` there.
    * ``low``: the smallest number; ``above``, ``below``: bounds that it must not reach.
    * ``choices``: the only values.  ``numbers``: integers, as a list or "1,2,4".  ``names``: texts,
      as a list or "a,b".  ``loads``: it concerns the loading of the model.
    """

    help: str
    group: str = "Model"
    flags: tuple[str, ...] = ()
    unit: str = ""
    low: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    numbers: bool = False
    names: bool = False
    loads: bool = False

    def check(self, name: str, value: Any, default: Any, kind: type) -> None:
        """Raise :class:`InvalidRequest` for a value that cannot be."""
        if value is None and default is None:
            return
        if self.numbers:
            good = bool(integers(value))
        elif self.names:
            good = texts(value) is not None
        elif kind is bool:
            good = isinstance(value, bool)
        elif kind in (int, float):
            numbers = int if kind is int else (int, float)
            good = isinstance(value, numbers) and not isinstance(value, bool)
            good = good and math.isfinite(value) and self._in_range(value)
        else:
            good = isinstance(value, (str, Path)) and (not self.choices or value in self.choices)
        if not good:
            raise InvalidRequest(name, value, self._accepted(kind))

    def _in_range(self, value: float) -> bool:
        return (
            (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def _accepted(self, kind: type) -> str:
        if self.numbers:
            return "positive integers: a list of them or a text such as '1,2,4'"
        if self.names:
            return "texts: a list of them or one such as 'a,b'"
        if self.choices:
            return f"one of {', '.join(map(repr, self.choices))}"
        names = {bool: "True or False", int: "an integer", float: "a number"}
        bounds = [
            f"{word} {bound:g}"
            for word, bound in (("from", self.low), ("above", self.above), ("below", self.below))
            if bound is not None
        ]
        return " ".join([names.get(kind, "a text"), *bounds])


def integers(values: Any) -> tuple[int, ...]:
    """The positive integers of a list or of a text such as "1,2,4"; none if it isn't one."""
    if isinstance(values, str):
        values = [int(word) if word.strip().isdigit() else 0 for word in values.split(",")]
    if not isinstance(values, Iterable):
        return ()
    found = tuple(values)
    good = all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in found)
    return found if good else ()


def texts(values: Any) -> tuple[str, ...] | None:
    """The texts of a list or of one such as "a,b"; None if it is neither."""
    if isinstance(values, str):
        return tuple(word.strip() for word in values.split(",") if word.strip())
    if not isinstance(values, Iterable):
        return None
    found = tuple(values)
    return found if all(isinstance(each, str) for each in found) else None


Described = tuple[Option, type, Any]
"""An option, the type of its values (bool, int, float or str), and its default."""


@functools.cache
def described(options: type) -> dict[str, Described]:
    """The options of a dataclass by name."""
    found: dict[str, Described] = {}
    hints = get_type_hints(options, include_extras=True)
    for each in fields(options):
        values, option = get_args(hints[each.name])
        kind = next(k for k in (bool, int, float, str) if k in (values, *get_args(values)))
        found[each.name] = (option, kind, each.default)
    return found


def check_options(values: object, options: dict[str, Described]) -> None:
    """Raise :class:`InvalidRequest` for the first of an object's ``options`` that cannot be."""
    for name, (option, kind, default) in options.items():
        option.check(name, getattr(values, name), default, kind)
