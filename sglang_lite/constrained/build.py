"""Functions that build the nodes of ``ir``: they normalise, and remove what is empty."""

from __future__ import annotations

from collections.abc import Iterable

from sglang_lite.constrained.dfa import ByteDFA
from sglang_lite.constrained.nodes import (
    EMPTY,
    NEVER,
    Clause,
    Counted,
    Empty,
    Extra,
    Kind,
    Literal,
    LiteralSet,
    Member,
    Never,
    Node,
    Object,
    PropertyOrder,
    Repeat,
    Sequence,
    Terminal,
    Union,
)


def literal(text: bytes | str) -> Node:
    """Exactly ``text`` (a str in UTF-8)."""
    data = text.encode() if isinstance(text, str) else text
    return Literal(data) if data else EMPTY


def literals(texts: Iterable[bytes | str]) -> Node:
    """One of ``texts``."""
    data = sorted({text.encode() if isinstance(text, str) else text for text in texts})
    if data and not data[0]:
        return union(EMPTY, literals(data[1:]))
    if len(data) < 2:
        return Literal(data[0]) if data else NEVER
    return LiteralSet(tuple(data))


def terminal(dfa: ByteDFA) -> Node:
    """The language of ``dfa``; a start state of -1 is ``NEVER``."""
    return Terminal(dfa) if dfa.start >= 0 else NEVER


def counted(
    char: ByteDFA,
    minimum: int = 0,
    maximum: int | None = None,
    *,
    open: bytes = b'"',
    close: bytes = b'"',
) -> Node:
    """``open``, so many characters of ``char``, ``close``; the defaults make a JSON string."""
    if maximum is not None and (maximum < minimum or maximum < 0):
        return NEVER
    if maximum == 0:
        return literal(open + close)
    return Counted(char, max(minimum, 0), maximum, open, close)


def sequence(*nodes: Node) -> Node:
    """``nodes`` one after another: flat, neighbouring literals joined."""
    items: list[Node] = []
    for node in nodes:
        for part in node.items if isinstance(node, Sequence) else (node,):
            if part is NEVER or isinstance(part, Never):
                return NEVER
            if isinstance(part, Empty):
                continue
            if items and isinstance(part, Literal) and isinstance(items[-1], Literal):
                items[-1] = Literal(items[-1].text + part.text)
            else:
                items.append(part)
    if len(items) < 2:
        return items[0] if items else EMPTY
    return Sequence(tuple(items))


def union(*nodes: Node) -> Node:
    """Any of ``nodes``: flat, distinct, literals gathered into one set."""
    items: dict[Node, None] = {}
    texts: dict[bytes, None] = {}
    for node in nodes:
        for part in node.items if isinstance(node, Union) else (node,):
            if isinstance(part, Literal):
                texts[part.text] = None
            elif isinstance(part, LiteralSet):
                texts.update(dict.fromkeys(part.texts))
            elif not isinstance(part, Never):
                items[part] = None
    if texts:
        items[literals(texts)] = None
    if len(items) < 2:
        return next(iter(items), NEVER)
    return Union(tuple(items))


def optional(node: Node) -> Node:
    """``node`` or nothing."""
    return union(EMPTY, node)


def repeat(
    item: Node,
    minimum: int = 0,
    maximum: int | None = None,
    separator: Node = EMPTY,
    head: Iterable[Node] = (),
) -> Node:
    """``minimum`` to ``maximum`` items with ``separator`` between two of them.

    ``head`` are the nodes of the first positions, ``item`` that of all later ones; the text may
    stop within the head where ``minimum`` allows.
    """
    rows = tuple((node,) for node in head)
    return repeat_kinds((Kind(item),), minimum, maximum, separator, rows)


def repeat_kinds(
    kinds: Iterable[Kind],
    minimum: int = 0,
    maximum: int | None = None,
    separator: Node = EMPTY,
    head: Iterable[tuple[Node, ...]] = (),
) -> Node:
    """The general :class:`Repeat`: every item is of one of ``kinds``, each with its own bounds."""
    kinds, head = tuple(kinds), tuple(head)
    if all(isinstance(kind.item, Never) for kind in kinds):
        maximum = len(head) if maximum is None else min(maximum, len(head))
    for place, row in enumerate(head):
        if all(isinstance(node, Never) for node in row):
            maximum = place if maximum is None else min(maximum, place)
            break
    if maximum is not None:
        if maximum < max(minimum, 0):
            return NEVER
        head = head[:maximum]
    for place, kind in enumerate(kinds):
        slots = sum(not isinstance(row[place], Never) for row in head)
        if isinstance(kind.item, Never) and kind.minimum > slots:
            return NEVER
    if maximum is not None and sum(max(kind.minimum, 0) for kind in kinds) > maximum:
        return NEVER
    plain = all(kind.minimum <= 0 and kind.maximum is None for kind in kinds)
    if maximum == 0:
        return EMPTY if all(kind.minimum <= 0 for kind in kinds) else NEVER
    if plain and len(kinds) == 1 and not head and isinstance(separator, Empty):
        item = kinds[0].item
        if isinstance(item, Union) and EMPTY in item.items:
            # Empty items add nothing, and chains of them would cost time.
            kinds, minimum = (Kind(union(*(i for i in item.items if i is not EMPTY))),), 0
    if plain and minimum == 1 and maximum == 1:
        return union(*(head[0] if head else (kind.item for kind in kinds)))
    return Repeat(kinds, max(minimum, 0), maximum, separator, head)


def object_(
    members: Iterable[Member] = (),
    extras: Iterable[Extra] = (),
    *,
    order: PropertyOrder = "schema",
    minimum: int = 0,
    maximum: int | None = None,
    clauses: Iterable[Clause] = (),
    open: Node = Literal(b"{"),  # noqa: B008  (immutable)
    colon: Node = Literal(b":"),  # noqa: B008
    comma: Node = Literal(b","),  # noqa: B008
    close: Node = Literal(b"}"),  # noqa: B008
    distinct: bool = False,
) -> Node:
    """A JSON object; ``open``, ``colon``, ``comma`` and ``close`` carry the whitespace policy.

    ``NEVER`` where a required member has no value or the counts cannot meet.
    """
    members, extras = tuple(members), tuple(extras)
    dead = [extra for extra in extras if extra.key.start < 0 or extra.value.never]
    if dead:
        if any(extra.needed for extra in dead):
            return NEVER
        extras = tuple([extra for extra in extras if extra not in dead])
    clauses = tuple(clauses)
    node = Object(
        members, extras, order, minimum, maximum, clauses, open, colon, comma, close, distinct
    )
    needed = sum([extra.needed for extra in extras])
    return node if node.presence.completable(0, (1 << len(members)) - 1, needed) else NEVER
