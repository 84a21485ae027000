"""The intermediate representation: a small language of bytes that every constraint lowers to.

A :class:`Language` is a root node and named rules.  Nodes are immutable values: structural
equality, a hash computed once, picklable.  Build them with the lower-case functions at the end
(:func:`sequence`, :func:`union`, ...): they normalise, so that equal languages are more often equal
nodes, and they remove what is empty.  The matcher interns nodes when it first visits them; nothing
here knows about tokens or states.

| node            | language                                                                    |
|-----------------|-----------------------------------------------------------------------------|
| ``EMPTY``       | the empty text only                                                         |
| ``NEVER``       | nothing                                                                     |
| Literal         | one text                                                                    |
| LiteralSet      | one of many texts (an enum); a trie in the engine                           |
| Terminal        | what a byte DFA accepts                                                     |
| Counted         | open, from ``minimum`` to ``maximum`` characters of one DFA, close          |
| Sequence        | its items, one after another                                                |
| Union           | any of its items                                                            |
| Repeat          | from ``minimum`` to ``maximum`` items with separators, counted by class     |
| Object          | a JSON object: declared members, other keys, presence clauses, a count      |
| Ref             | the rule of that name                                                       |
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from typing import Literal as Choose

from sglang_lite.constrained.dfa import Bound as Bound
from sglang_lite.constrained.dfa import ByteDFA as ByteDFA
from sglang_lite.constrained.presence import Presence

PropertyOrder = Choose["schema", "any"]


class Node:
    """Base of all nodes: a value whose identity is ``(type, fields)``."""

    __slots__ = ("_hash", "_key")
    _key: Hashable
    _hash: int
    never = False
    """True for ``NEVER`` only; the constructors below remove it where they can."""

    def _seal(self, key: Hashable) -> None:
        self._key = key
        self._hash = hash((self.__class__, key))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if self.__class__ is not other.__class__:
            return False
        return self._hash == other._hash and self._key == other._key

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self._key!r}"

    def __reduce__(self) -> tuple[Any, ...]:
        key = self._key
        return (type(self), key if isinstance(key, tuple) else (key,))


class Empty(Node):
    """The empty text; use the constant ``EMPTY``."""

    __slots__ = ()

    def __init__(self) -> None:
        self._seal(())


class Never(Node):
    """No text at all; use the constant ``NEVER``."""

    __slots__ = ()
    never = True

    def __init__(self) -> None:
        self._seal(())


EMPTY = Empty()
NEVER = Never()


class Literal(Node):
    """Exactly the bytes ``text`` (at least one)."""

    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._seal((text,))


class LiteralSet(Node):
    """One of ``texts``: sorted, distinct, at least two, none empty; tens of thousands are fine."""

    __slots__ = ("texts",)

    def __init__(self, texts: tuple[bytes, ...]) -> None:
        self.texts = texts
        self._seal((texts,))


class Terminal(Node):
    """The language of a byte DFA."""

    __slots__ = ("dfa",)

    def __init__(self, dfa: ByteDFA) -> None:
        self.dfa = dfa
        self._seal((dfa,))


class Counted(Node):
    """``open``, then ``minimum`` to ``maximum`` characters, then ``close``.

    ``char`` is the DFA of one character: prefix-free (an accepting state has no way on) and its
    first bytes differ from the first byte of ``close``.  ``maximum`` None is unbounded.  The count
    is a number in the state, so a bound of 100,000 costs no more than one of 10.
    """

    __slots__ = ("char", "close", "maximum", "minimum", "open")

    def __init__(
        self, char: ByteDFA, minimum: int, maximum: int | None, open: bytes, close: bytes
    ) -> None:
        self.char, self.minimum, self.maximum = char, minimum, maximum
        self.open, self.close = open, close
        self._seal((char, minimum, maximum, open, close))


class Sequence(Node):
    """``items`` one after another: at least two, none of them a Sequence or ``EMPTY``."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Node, ...]) -> None:
        self.items = items
        self._seal((items,))


class Union(Node):
    """Any of ``items``: at least two, distinct, none of them a Union or ``NEVER``."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Node, ...]) -> None:
        self.items = items
        self._seal((items,))


class Kind(NamedTuple):
    """One class of items of a :class:`Repeat`: so many of them are wanted."""

    item: Node
    minimum: int = 0
    maximum: int | None = None


class Repeat(Node):
    """Items separated by ``separator``, ``minimum`` to ``maximum`` of them in all.

    Each item belongs to one of ``kinds``, whose own counts must hold too (``contains`` with its
    bounds is two kinds).  ``head`` gives the first positions: one node for each kind there
    (``NEVER`` where that kind cannot stand), in place of the kind's own item.  Counts are numbers
    in the state, clipped where they no longer matter.
    """

    __slots__ = ("head", "kinds", "maximum", "minimum", "separator")

    def __init__(
        self,
        kinds: tuple[Kind, ...],
        minimum: int,
        maximum: int | None,
        separator: Node,
        head: tuple[tuple[Node, ...], ...],
    ) -> None:
        self.kinds, self.minimum, self.maximum = kinds, minimum, maximum
        self.separator, self.head = separator, head
        self._seal((kinds, minimum, maximum, separator, head))


class Member(NamedTuple):
    """A declared member: ``key`` is its JSON text with the quotes.

    ``value`` ``NEVER`` forbids the name, as a member and as another key.
    """

    key: bytes
    value: Node
    required: bool = False


class Extra(NamedTuple):
    """Other keys: ``key`` accepts the JSON text with quotes, each name in *one* spelling.

    Declared keys are excluded by the engine; ``key`` need not do it.  Where the ``key``s of several
    extras overlap, either may be taken, so an intersection of values needs disjoint keys.
    """

    key: ByteDFA
    value: Node


class Clause(NamedTuple):
    """A condition on which members are present, by index into ``Object.members``.

    True if one of ``present`` is there or one of ``absent`` is missing.  "a implies b" is
    ``Clause(present=(b,), absent=(a,))``; "not both" is ``Clause((), (a, b))``; "at least one" is
    ``Clause((a, b), ())``.
    """

    present: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()


class Object(Node):
    """A JSON object.

    Text: ``open``, then key ``colon`` value pairs joined by ``comma``, then ``close``.  With
    ``order`` "schema" the members come in their order and extras after them; with "any" in any
    order.  A declared key stands at most once, with ``distinct`` every other key too (an array of
    distinct strings is such an object without values).  ``minimum`` and ``maximum`` bound the
    number of distinct keys.  ``clauses`` hold in every text that is let through, and no prefix of
    an object that could not satisfy them is let through.
    """

    __slots__ = (
        "clauses",
        "close",
        "colon",
        "comma",
        "distinct",
        "extras",
        "maximum",
        "members",
        "minimum",
        "open",
        "order",
    )

    def __init__(
        self,
        members: tuple[Member, ...],
        extras: tuple[Extra, ...],
        order: PropertyOrder,
        minimum: int,
        maximum: int | None,
        clauses: tuple[Clause, ...],
        open: Node,
        colon: Node,
        comma: Node,
        close: Node,
        distinct: bool = False,
    ) -> None:
        self.members, self.extras, self.order = members, extras, order
        self.minimum, self.maximum, self.clauses = minimum, maximum, clauses
        self.open, self.colon, self.comma, self.close = open, colon, comma, close
        self.distinct = distinct
        layout = (open, colon, comma, close)
        self._seal((members, extras, order, minimum, maximum, clauses, *layout, distinct))


class Ref(Node):
    """The rule ``name`` of the language; how recursion is written."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name
        self._seal((name,))


@dataclass(frozen=True)
class Language:
    """A root node and the rules that its :class:`Ref` nodes name.

    ``warnings`` are what a front end was asked to ignore, for the caller to show.
    """

    root: Node
    rules: Mapping[str, Node] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


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
    members = tuple(members)
    extras = tuple(
        extra for extra in extras if extra.key.start >= 0 and not isinstance(extra.value, Never)
    )
    clauses = tuple(clauses)
    presence = Presence(members, extras, minimum, maximum, clauses)
    if not presence.completable(0, (1 << len(members)) - 1, 0):
        return NEVER
    layout = (open, colon, comma, close)
    return Object(members, extras, order, minimum, maximum, clauses, *layout, distinct)
