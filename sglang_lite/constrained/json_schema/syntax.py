"""How JSON is laid out: separators and the gaps where whitespace may stand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sglang_lite.constrained import ir
from sglang_lite.constrained.json_string import whitespace


@dataclass(frozen=True)
class Syntax:
    """The punctuation nodes, with the whitespace that may surround it."""

    open_object: ir.Node
    close_object: ir.Node
    open_array: ir.Node
    close_array: ir.Node
    colon: ir.Node
    comma: ir.Node


@lru_cache(maxsize=64)
def syntax(max_whitespace: int, separators: tuple[str, str] | None = None) -> Syntax:
    """Flexible layout with up to ``max_whitespace`` characters in each gap, or a fixed one.

    ``separators`` are the exact texts between items and between key and value, as in
    ``json.dumps``; there is no other whitespace then.
    """
    if separators is None:
        gap = ir.terminal(whitespace(max_whitespace)) if max_whitespace else ir.EMPTY
        comma = ir.sequence(gap, ir.literal(","), gap)
        colon = ir.sequence(gap, ir.literal(":"), gap)
    else:
        gap = ir.EMPTY
        comma, colon = map(ir.literal, separators)
    return Syntax(
        ir.sequence(ir.literal("{"), gap),
        ir.sequence(gap, ir.literal("}")),
        ir.sequence(ir.literal("["), gap),
        ir.sequence(gap, ir.literal("]")),
        colon,
        comma,
    )
