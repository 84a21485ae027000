"""Finding the mistakes of a program without a model: ``SglFunction.check``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang_lite.constraint import Choice, Constraint, Regex
from sglang_lite.errors import ConstraintError, SglangLiteError
from sglang_lite.lang import nodes
from sglang_lite.lang.tracing import Placeholder, Trace, follow

if TYPE_CHECKING:
    from sglang_lite.lang.program import SglFunction


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
        follow(program, arguments, _stand_in, _stand_in, traced)
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


def _stand_in(name: str) -> Placeholder:
    return Placeholder(f"⟨{name}⟩")


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
