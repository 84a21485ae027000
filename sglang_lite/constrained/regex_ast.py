"""The tree of a regular expression, and the rewriting that makes it small.

Groups, lazy quantifiers and flags are gone by here: what is left denotes a language.  Anchors and
word boundaries are :class:`Look` nodes; ``^`` is "no character behind", ``$`` "no character ahead".
Nodes compare by identity.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from sglang_lite.constrained.charset import ANYTHING, CharSet


class Facts(NamedTuple):
    """What is known of a node: computed once, for trees share their branches.

    ``least`` is the length of its shortest text, look-around aside, and ``farthest`` a bound of how
    far the end can be from anywhere inside; ``size`` is how many positions it has with every repeat
    written out; ``nullable``: the empty text matches, whatever surrounds it; ``look``: there is
    look-around in it.
    """

    least: int
    farthest: int
    size: int
    nullable: bool
    look: bool


ONE_CHARACTER = Facts(least=1, farthest=1, size=1, nullable=False, look=False)


class Chars:
    """One character out of ``members``."""

    __slots__ = ("facts", "members")

    def __init__(self, members: CharSet) -> None:
        self.members = members
        self.facts: Facts = ONE_CHARACTER


class Seq:
    """All ``items``, one after the other."""

    __slots__ = ("facts", "items")

    def __init__(self, items: tuple[Node, ...]) -> None:
        self.items = items
        least = farthest = size = 0
        nullable, look = True, False
        for item in items:
            facts = item.facts
            least += facts.least
            farthest += facts.farthest
            size += facts.size
            nullable &= facts.nullable
            look |= facts.look
        self.facts: Facts = Facts(least, farthest, size, nullable, look)


class Alt:
    """One of ``items``."""

    __slots__ = ("facts", "items")

    def __init__(self, items: tuple[Node, ...]) -> None:
        self.items = items
        parts = [item.facts for item in items]
        self.facts: Facts = Facts(
            min((f.least for f in parts), default=0),
            max((f.farthest for f in parts), default=0),
            sum(f.size for f in parts),
            any(f.nullable for f in parts),
            any(f.look for f in parts),
        )


class Repeat:
    """From ``minimum`` to ``maximum`` (None = no limit) times ``item``, which is never empty."""

    __slots__ = ("facts", "item", "maximum", "minimum")

    def __init__(self, item: Node, minimum: int, maximum: int | None) -> None:
        self.item = item
        self.minimum = minimum
        self.maximum = maximum
        least, farthest, size, nullable, look = item.facts
        rounds = max(1, minimum if maximum is None else maximum)
        self.facts: Facts = Facts(
            minimum * least,
            minimum * least + farthest,
            rounds * size,
            minimum == 0 or nullable,
            look,
        )


class Look:
    """True of a place where ``item`` matches (or not) the text ahead, or the text behind it."""

    __slots__ = ("ahead", "facts", "item", "negative")

    def __init__(self, item: Node, ahead: bool, negative: bool) -> None:
        self.item = item
        self.ahead = ahead
        self.negative = negative
        self.facts: Facts = Facts(
            least=0, farthest=0, size=item.facts.size, nullable=False, look=True
        )


Node: TypeAlias = Chars | Seq | Alt | Repeat | Look

MANY = 8
"""So many branches are worth to be looked at for common beginnings."""

EMPTY = Seq(())
NEVER = Alt(())
ANY = Chars(ANYTHING)
ANY_TEXT = Repeat(ANY, 0, None)
AT_START = Look(ANY, ahead=False, negative=True)
AT_END = Look(ANY, ahead=True, negative=True)
_NEWLINE = Chars(CharSet((10, 11)))
AT_LINE_START = Look(Alt((AT_START, _NEWLINE)), ahead=False, negative=False)
AT_LINE_END = Look(Alt((AT_END, _NEWLINE)), ahead=True, negative=False)
AT_LAST_LINE_END = Look(Alt((AT_END, Seq((_NEWLINE, AT_END)))), ahead=True, negative=False)
"""Python's ``$``: at the end, or before a line feed that ends the text."""

_START_ANCHORS = (AT_START, AT_LINE_START)
_END_ANCHORS = (AT_END, AT_LINE_END, AT_LAST_LINE_END)


def chars(members: CharSet) -> Node:
    """One character out of ``members``; NEVER if there is none."""
    return Chars(members) if members else NEVER


def seq(items: Iterable[Node]) -> Node:
    """All items in a row, flattened; repeats of one set side by side, as in ``a?a+``, are one."""
    flat: list[Node] = []
    for item in items:
        for part in item.items if isinstance(item, Seq) else (item,):
            joined = None
            if flat and (isinstance(part, Repeat) or isinstance(flat[-1], Repeat)):
                joined = _joined(flat[-1], part)
            if joined is None:
                flat.append(part)
            else:
                flat[-1] = joined
    if NEVER in flat:
        return NEVER
    return flat[0] if len(flat) == 1 else Seq(tuple(flat)) if flat else EMPTY


def _joined(left: Node, right: Node) -> Node | None:
    """One repeat in place of two of the same character set, None if they are not that."""
    (one, low, high), (other, more_low, more_high) = _as_repeat(left), _as_repeat(right)
    if not isinstance(one, Chars) or not isinstance(other, Chars) or one.members != other.members:
        return None
    both = None if high is None or more_high is None else high + more_high
    return repeat(one, low + more_low, both)


def _as_repeat(node: Node) -> tuple[Node, int, int | None]:
    return (node.item, node.minimum, node.maximum) if isinstance(node, Repeat) else (node, 1, 1)


def alt(items: Iterable[Node]) -> Node:
    """Any of the items, flattened; single characters become one set."""
    flat: list[Node] = []
    for item in items:
        flat += item.items if isinstance(item, Alt) else (item,)
    sets = [item.members for item in flat if isinstance(item, Chars)]
    if len(sets) > 1:
        members = sets[0]
        for other in sets[1:]:
            members = members | other
        flat = [Chars(members), *(item for item in flat if not isinstance(item, Chars))]
    if len(flat) >= MANY:
        flat = _factored(flat)
    return flat[0] if len(flat) == 1 else Alt(tuple(flat)) if flat else NEVER


def _factored(branches: list[Node]) -> list[Node]:
    """Branches that begin with the same character as one: a list of words becomes a trie."""
    groups: dict[CharSet | int, list[Node]] = {}
    for i, branch in enumerate(branches):
        first = branch.items[0] if isinstance(branch, Seq) and branch.items else branch
        groups.setdefault(first.members if isinstance(first, Chars) else i, []).append(branch)
    if len(groups) == len(branches):
        return branches
    factored: list[Node] = []
    for start, group in groups.items():
        if len(group) == 1 or isinstance(start, int):
            factored += group
        else:
            rests = [seq(node.items[1:]) if isinstance(node, Seq) else EMPTY for node in group]
            rest = _factored(rests)
            factored.append(seq((Chars(start), rest[0] if len(rest) == 1 else Alt(tuple(rest)))))
    return factored


def repeat(item: Node, minimum: int, maximum: int | None) -> Node:
    """``item{minimum,maximum}``; a repeat of a repeat becomes one where the counts have no gaps."""
    if item is NEVER:
        return NEVER if minimum else EMPTY
    if item is EMPTY or maximum == 0:
        return EMPTY
    if isinstance(item, Look):
        return item if minimum else EMPTY
    if minimum == maximum == 1:
        return item
    if item.facts.nullable:
        item, minimum = nonempty(item), 0
    if isinstance(item, Repeat) and _gapless(item, minimum, maximum):
        both = None if maximum is None or item.maximum is None else maximum * item.maximum
        return Repeat(item.item, minimum * item.minimum, both)
    if minimum == 0 and maximum is None and isinstance(item, Chars) and item.members == ANYTHING:
        return ANY_TEXT
    return Repeat(item, minimum, maximum)


def _gapless(inner: Repeat, minimum: int, maximum: int | None) -> bool:
    """True where every total from the least to the greatest can be reached."""
    low, high = inner.minimum, inner.maximum
    if minimum == maximum:
        return True
    if minimum == 0:
        return low <= 1
    return high is None or low * (minimum + 1) <= high * minimum + 1


def nonempty(node: Node) -> Node:
    """A tree that gives the same texts when repeated, though it never matches the empty one."""
    if not node.facts.nullable:
        return node
    if isinstance(node, Alt):
        return alt(map(nonempty, node.items))
    if isinstance(node, Repeat):
        return repeat(node.item, max(1, node.minimum), node.maximum)
    if isinstance(node, Seq):  # the first item that is not empty, then all that follow
        items = node.items
        return alt(seq((nonempty(item), *items[i + 1 :])) for i, item in enumerate(items))
    return node


def split_start(node: Node) -> tuple[Node, Node]:
    """(what is left of the branches that begin with ``^``, the other branches).

    ``^`` deeper than at the beginning of a branch stays a :class:`Look`.
    """
    return _split(node, _START_ANCHORS, 0)


def split_end(node: Node) -> tuple[Node, Node]:
    """(what is left of the branches that end with ``$``, the other branches)."""
    return _split(node, _END_ANCHORS, -1)


def _split(node: Node, anchors: tuple[Look, ...], side: int) -> tuple[Node, Node]:
    if node in anchors:
        return EMPTY, NEVER
    if isinstance(node, Alt):
        pairs = [_split(item, anchors, side) for item in node.items]
        if all(anchored is NEVER for anchored, _ in pairs):
            return NEVER, node
        return alt(a for a, _ in pairs), alt(f for _, f in pairs)
    if isinstance(node, Seq) and node.items:
        anchored, free = _split(node.items[side], anchors, side)
        if anchored is NEVER:
            return NEVER, node
        rest = node.items[1:] if side == 0 else node.items[:-1]
        if anchored is EMPTY:  # in ``^^a`` the second anchor stands at the same place
            anchored = alt(_split(seq(rest), anchors, side))
        else:
            anchored = _beside(anchored, rest, side)
        return anchored, _beside(free, rest, side)
    return NEVER, node


def _beside(node: Node, rest: tuple[Node, ...], side: int) -> Node:
    return seq((node, *rest) if side == 0 else (*rest, node))
