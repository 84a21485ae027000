"""The nodes that a program's expressions consist of; all frozen.

They remember their source line, so that an error can name it.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from sglang_lite.constraint import Constraint
from sglang_lite.errors import InvalidRequest
from sglang_lite.lang.choices import ChoicesSamplingMethod
from sglang_lite.lang.typed import TypedValue


class Expression:
    """Base class of everything that can be appended; ``+`` makes a sequence."""

    def __add__(self, other: Any) -> Expression:
        return Concat(parts(self) + parts(as_expression(other)))

    def __radd__(self, other: Any) -> Expression:
        return Concat(parts(as_expression(other)) + parts(self))


def as_expression(value: Any) -> Expression:
    """``value`` as an expression; only a str becomes one by itself."""
    if isinstance(value, Expression):
        return value
    if isinstance(value, str):
        return Text(value)
    raise InvalidRequest("expression", value, "a str or an expression such as gen(...)")


def parts(expression: Expression) -> tuple[Expression, ...]:
    """The expressions that a sequence consists of; any other one is its only part."""
    return expression.items if isinstance(expression, Concat) else (expression,)


def source_line() -> str:
    """``file.py:12`` of the nearest caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


_PACKAGE = "sglang_lite.lang"


@dataclass(frozen=True)
class Text(Expression):
    """A literal."""

    text: str


@dataclass(frozen=True)
class Concat(Expression):
    """Several expressions, flat, in order."""

    items: tuple[Expression, ...]


@dataclass(frozen=True)
class Argument(Expression):
    """Stands for a program's argument while the program is traced."""

    name: str

    def __format__(self, spec: str) -> NoReturn:
        raise TypeError(f"argument {self.name!r} has no value while the program is traced")

    def __repr__(self) -> str:
        return f"<argument {self.name}>"


@dataclass(frozen=True)
class LogprobOptions:
    """Which log probabilities a ``gen`` wants back; see ``GenerateRequest`` for the meanings."""

    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    return_text_in_logprobs: bool = False


@dataclass(frozen=True)
class Gen(Expression):
    """Generate a text; ``given`` holds the sampling fields that this call sets itself.

    ``reasoning``: the tags of the reasoning to be split off.
    """

    name: str | None
    given: Mapping[str, Any]
    constraint: Constraint | None
    value_type: TypedValue | None
    logprobs: Mapping[str, Any]
    heal: bool | None
    where: str
    reasoning: tuple[str, str] | None = None

    @property
    def label(self) -> str:
        """How messages call this node."""
        return "gen" if self.name is None else f"gen({self.name!r})"


@dataclass(frozen=True)
class Select(Expression):
    """Choose one of ``choices`` by its log probability; ``follow`` is the literal after it."""

    name: str | None
    choices: tuple[str, ...]
    temperature: float
    method: ChoicesSamplingMethod
    terminator: str | None
    where: str
    follow: str = ""

    @property
    def label(self) -> str:
        """How messages call this node."""
        return "select" if self.name is None else f"select({self.name!r})"


@dataclass(frozen=True)
class RoleBegin(Expression):
    """Opens a message of ``role``; ``answer``: a ``gen`` follows at once."""

    role: str
    where: str = field(default="", compare=False)
    answer: bool = False


@dataclass(frozen=True)
class RoleEnd(Expression):
    """Closes the message of ``role``."""

    role: str
    where: str = field(default="", compare=False)


@dataclass(frozen=True)
class ScopeBegin(Expression):
    """From here on, the text is captured as variable ``name``."""

    name: str


@dataclass(frozen=True)
class ScopeEnd(Expression):
    """The end of the span that ``ScopeBegin`` opened."""

    name: str


@dataclass(frozen=True)
class SeparateReasoning(Expression):
    """Run ``expression`` and split what its gens produced into reasoning and answer."""

    expression: Expression
    open_tag: str
    close_tag: str


def pretty(expression: Expression, depth: int = 0) -> str:
    """The expression as an indented listing, one node a line."""
    pad = "  " * depth
    if isinstance(expression, Concat):
        return "\n".join(pretty(item, depth) for item in expression.items)
    if isinstance(expression, SeparateReasoning):
        return f"{pad}separate_reasoning\n{pretty(expression.expression, depth + 1)}"
    if isinstance(expression, Text):
        return f"{pad}{json.dumps(expression.text, ensure_ascii=False)}"
    if isinstance(expression, Gen):
        return f"{pad}{expression.label}"
    if isinstance(expression, Select):
        return f"{pad}{expression.label} of {list(expression.choices)}"
    if isinstance(expression, (RoleBegin, RoleEnd)):
        edge = "begin" if isinstance(expression, RoleBegin) else "end"
        return f"{pad}{expression.role}_{edge}"
    return f"{pad}{expression!r}"


def flatten(expression: Expression) -> list[Any]:
    """The nodes in order; some learn what follows them."""
    nodes = list(_nodes(expression))
    for index, (node, following) in enumerate(itertools.pairwise(nodes)):
        if isinstance(node, Select) and isinstance(following, Text):
            nodes[index] = dataclasses.replace(node, follow=following.text)
        elif isinstance(node, RoleBegin) and isinstance(following, Gen):
            nodes[index] = dataclasses.replace(node, answer=node.role == "assistant")
    return nodes


def _nodes(expression: Expression) -> Iterator[Any]:
    if isinstance(expression, Concat):
        for item in expression.items:
            yield from _nodes(item)
    elif isinstance(expression, SeparateReasoning):
        tags = (expression.open_tag, expression.close_tag)
        for node in _nodes(expression.expression):
            yield dataclasses.replace(node, reasoning=tags) if isinstance(node, Gen) else node
    else:
        yield expression
