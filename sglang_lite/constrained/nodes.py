"""The nodes of the intermediate representation; ``ir`` says what each of them stands for."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple
from typing import Literal as Choose

from sglang_lite.constrained.dfa import ByteDFA
from sglang_lite.constrained.presence import Presence

PropertyOrder = Choose["schema", "any"]


class Node:
    """Base of all nodes: a value whose identity is ``(type, fields)``."""

    __slots__ = ("_hash", "_key")
    _key: Hashable
    _hash: int
    never = False
    """True for ``NEVER`` only; the functions of ``build`` remove it where they can."""

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

    With ``needed`` exactly one key is of this kind, and no other key is equal to it.
    """

    key: ByteDFA
    value: Node
    needed: bool = False


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
        "_presence",
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
        self._presence: Presence | None = None
        self._key = (
            *(members, extras, order, minimum, maximum, clauses),
            *(open, colon, comma, close, distinct),
        )
        # The rest is the same in most objects of a grammar, and its hash takes time.
        self._hash = hash((members, extras, minimum, maximum, clauses))

    @property
    def presence(self) -> Presence:
        """Which sets of members there may be; made when first asked for."""
        if self._presence is None:
            self._presence = Presence(
                self.members, self.extras, self.minimum, self.maximum, self.clauses
            )
        return self._presence


class Ref(Node):
    """The rule ``name`` of the language; how recursion is written."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name
        self._seal((name,))
