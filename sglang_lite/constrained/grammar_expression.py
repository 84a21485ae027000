"""Parts of a grammar that call no rule are regular: they become byte DFAs, not IR structure.

An :class:`Expression` knows its language twice: as a regex, while it is regular and small, and as
IR structure.  ``node()`` takes the better form.  Plain literals stay literals (the engine walks
them as tries and can jump over them), everything else that is regular becomes one minimal
terminal, and the rest is structure around such parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sglang_lite.constrained import ir
from sglang_lite.constrained.byte_dfa import text_dfa
from sglang_lite.constrained.regex import full_match
from sglang_lite.errors import GrammarTooComplex, InvalidGrammar

MAX_POSITIONS = 400
"""Largest regex, with counted repeats written out, that is fused into one terminal."""

MAX_REPEAT = 1_000_000
MAX_NESTING = 50
"""Deepest nesting of groups in one rule."""
MAX_TOKENS = 250_000
"""Longest grammar text, in names, literals and signs."""

_SIGN = re.compile(r"\w+|\S")


@dataclass(frozen=True)
class Expression:
    """A part of a grammar.

    ``regex`` is None where the part calls a rule or is too large, ``positions`` the length of the
    regex with repeats written out, ``plain`` True for sequences and alternatives of literals.
    ``whole`` is True where only the regex of the whole part has the right meaning.
    """

    regex: str | None
    positions: int
    plain: bool
    structure: Callable[[], ir.Node]
    whole: bool = False

    def node(self) -> ir.Node:
        """The IR node of this part."""
        if self.regex is None and self.whole:
            raise GrammarTooComplex(
                "a terminal with look-around or a lazy quantifier is larger than "
                f"{MAX_POSITIONS} characters"
            )
        return self.structure() if self.regex is None or self.plain else regex_node(self.regex)


def regex_node(pattern: str) -> ir.Node:
    """A terminal that accepts what ``pattern`` matches in full."""
    return ir.terminal(text_dfa(full_match(pattern)))


def repeat_node(node: ir.Node, minimum: int, maximum: int | None) -> ir.Node:
    """``minimum`` to ``maximum`` times ``node``, without a counter where it says "or nothing"."""
    return ir.optional(node) if (minimum, maximum) == (0, 1) else ir.repeat(node, minimum, maximum)


def check_size(text: str, opaque: re.Pattern[str]) -> None:
    """Raise GrammarTooComplex before ``text`` is parsed, where that would take long.

    ``opaque`` matches literals, classes and comments, whose brackets do not count.
    """
    depth = 0
    for tokens, match in enumerate(_SIGN.finditer(opaque.sub(" x ", text))):
        depth += (match[0] in "([") - (match[0] in ")]")
        if depth > MAX_NESTING:
            raise GrammarTooComplex(f"groups are nested deeper than {MAX_NESTING}")
        if tokens > MAX_TOKENS:
            raise GrammarTooComplex(f"the grammar has more than {MAX_TOKENS} names and signs")


def check_bounds(minimum: int, maximum: int | None, where: tuple[int, int] | None) -> None:
    """Raise where a counted repeat has no count at all or too high a one."""
    if minimum < 0 or (maximum is not None and maximum < minimum):
        shown = f"{minimum} to {maximum}"
        raise InvalidGrammar(f"a repetition of {shown} times is impossible", where)
    if max(minimum, maximum or 0) > MAX_REPEAT:
        raise GrammarTooComplex(f"a repetition of more than {MAX_REPEAT} times")


def text(value: str) -> Expression:
    """Exactly ``value``."""
    return Expression(re.escape(value), len(value), True, lambda: ir.literal(value))


def pattern(regex: str, positions: int = 1, *, whole: bool = False) -> Expression:
    """A character class, or any other regex that is about ``positions`` characters long."""
    return Expression(regex, positions, False, lambda: regex_node(regex), whole)


def call(name: str) -> Expression:
    """The rule ``name``."""
    return Expression(None, 0, False, lambda: ir.Ref(name))


def sequence(parts: Sequence[Expression]) -> Expression:
    """``parts`` one after another; neighbours that are regular are fused."""
    if len(parts) == 1:
        return parts[0]
    return _compound(parts, "", lambda: ir.sequence(*_runs(parts)))


def union(parts: Sequence[Expression]) -> Expression:
    """Any of ``parts``."""
    if len(parts) == 1:
        return parts[0]
    return _compound(parts, "|", lambda: ir.union(*(part.node() for part in parts)))


def repeat(part: Expression, minimum: int, maximum: int | None) -> Expression:
    """``minimum`` to ``maximum`` (None: any number) times ``part``."""
    positions = part.positions * (max(minimum, 1) if maximum is None else maximum)

    def structure() -> ir.Node:
        return repeat_node(part.node(), minimum, maximum)

    if part.regex is None or positions > MAX_POSITIONS:
        return Expression(None, positions, False, structure, part.whole)
    bounds = f"{{{minimum},{'' if maximum is None else maximum}}}"
    return Expression(f"(?:{part.regex}){bounds}", positions + 1, False, structure, part.whole)


def _compound(
    parts: Sequence[Expression], operator: str, structure: Callable[[], ir.Node]
) -> Expression:
    regex = None
    if _fit(parts):
        regex = operator.join(f"(?:{part.regex})" for part in parts)
    positions = sum(part.positions for part in parts)
    plain = all(part.plain for part in parts)
    return Expression(regex, positions, plain, structure, any(part.whole for part in parts))


def _fit(parts: Sequence[Expression]) -> bool:
    """True where ``parts`` together are regular and small."""
    if any(part.regex is None for part in parts):
        return False
    return sum(part.positions for part in parts) <= MAX_POSITIONS


def _runs(parts: Sequence[Expression]) -> list[ir.Node]:
    """The nodes of ``parts``, each run of regular neighbours but plain literals as one terminal."""
    nodes: list[ir.Node] = []
    run: list[Expression] = []
    for part in parts:
        if run and (part.plain or not _fit([*run, part])):
            nodes.append(sequence(run).node())
            run = []
        if part.plain or part.regex is None:
            nodes.append(part.node())
        else:
            run.append(part)
    if run:
        nodes.append(sequence(run).node())
    return nodes
