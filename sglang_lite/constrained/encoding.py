"""How characters are spelled in bytes: UTF-8 text, and the inside of a JSON string.

A :class:`Node` is a state in the middle of a character.  It stands for a function from the code
points that are still possible to classes of a partition; equal functions are one node, so a text
byte that says nothing new (most UTF-8 lead bytes) leads to one state and not to fifty.

The encodings:

* ``utf8``: valid UTF-8, each character one to four bytes.
* ``json``: every spelling that JSON has: UTF-8 for what may stand unescaped, the short escapes
  (quote, backslash, slash, b, f, n, r, t) and ``u`` with four hexadecimal digits for all others,
  in surrogate pairs above U+FFFF.  A surrogate alone is no character.
* ``json-canonical``: exactly one spelling each, that of ``json.dumps(ensure_ascii=False)``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_lite.constrained.charset import END, Partition

Encoding = Literal["utf8", "json", "json-canonical"]

REFUSED = 0
QUOTE = 1
FIRST_CLASS = 2
"""Row entries: refused, the closing quote of a JSON string, then the classes, then the children."""

SHORT_ESCAPES = {
    ord('"'): 0x22,
    ord("\\"): 0x5C,
    ord("/"): 0x2F,
    ord("b"): 8,
    ord("f"): 12,
    ord("n"): 10,
    ord("r"): 13,
    ord("t"): 9,
}
_NO = -1
_BACKSLASH, _U = ord("\\"), ord("u")
_HEX = [[ord(c) for c in {f"{digit:x}", f"{digit:X}"}] for digit in range(16)]
_HEX_LOWER = [[ord(f"{digit:x}")] for digit in range(16)]


class Child(NamedTuple):
    """A node one byte further, and which of our classes its classes are."""

    node: Node
    classes: tuple[int, ...]


class Function(NamedTuple):
    """From offsets to classes: segment i starts at ``starts[i]``; class -1 is refused."""

    starts: tuple[int, ...]
    classes: tuple[int, ...]


class Row:
    """What each byte does: an index into [refused, quote, classes..., children...].

    ``pick`` takes the 256 entries of such a list, ``entries`` are the indices (intp[256]).
    """

    __slots__ = ("children", "entries", "pick")

    def __init__(self, entries: Sequence[int], children: Sequence[Child]) -> None:
        self.pick: Callable[[Sequence[int]], tuple[int, ...]] = itemgetter(*entries)
        self.entries: NDArray[np.intp] = np.array(entries, np.intp)
        self.children = tuple(children)


class Node:
    """In the middle of a character: ``kind`` and ``digits`` say which bytes may come next."""

    __slots__ = ("_row", "classes", "digits", "function", "kind")

    def __init__(self, kind: str, digits: int, function: Function) -> None:
        self.kind = kind
        self.digits = digits
        self.function = function
        self.classes = max(function.classes) + 1
        self._row: Row | None = None

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _node, (self.kind, self.digits, self.function)

    def row(self) -> Row:
        if self._row is None:
            self._row = _BUILD[self.kind](self)
        return self._row

    def of_one_class(self) -> Node:
        """The same place in a character, where all that is not refused is one class."""
        starts, classes = self.function
        return _node(self.kind, self.digits, _merged(starts, [min(c, 0) for c in classes]))


@lru_cache(maxsize=8192)
def _node(kind: str, digits: int, function: Function) -> Node:
    return Node(kind, digits, function)


class _RowBuilder:
    """Collects the entries of a row of a node with ``count`` classes."""

    def __init__(self, count: int) -> None:
        self.entries = [REFUSED] * 256
        self.children: dict[Child, int] = {}
        self._first = FIRST_CLASS + count

    def leaf(self, codes: Sequence[int], number: int) -> None:
        for code in codes:
            self.entries[code] = REFUSED if number == _NO else FIRST_CLASS + number

    def child(self, codes: Sequence[int], kind: str, digits: int, function: Function) -> None:
        onto = tuple(dict.fromkeys(c for c in function.classes if c != _NO))
        if not onto:
            return
        if onto != tuple(range(len(onto))):
            numbers = {number: i for i, number in enumerate(onto)}
            numbers[_NO] = _NO
            function = Function(function.starts, tuple(numbers[c] for c in function.classes))
        self.known_child(codes, Child(_node(kind, digits, function), onto))

    def known_child(self, codes: Sequence[int], child: Child) -> None:
        entry = self.children.setdefault(child, self._first + len(self.children))
        for code in codes:
            self.entries[code] = entry

    def row(self) -> Row:
        return Row(self.entries, tuple(self.children))


def _merged(starts: Sequence[int], classes: Sequence[int]) -> Function:
    """The function with neighbouring segments of one class joined, as all functions here are."""
    kept = [i for i in range(len(starts)) if i == 0 or classes[i] != classes[i - 1]]
    return Function(tuple(starts[i] for i in kept), tuple(classes[i] for i in kept))


def _part(function: Function, low: int, high: int) -> Function:
    """The function on [low, high), with offsets from ``low``."""
    starts, classes = function
    first = bisect_right(starts, low) - 1
    last = bisect_right(starts, high - 1)
    if last == first + 1:
        return Function((0,), (classes[first],))
    inner = tuple(start - low for start in starts[first + 1 : last])
    return Function((0, *inner), classes[first:last])


def _only(function: Function, *ranges: tuple[int, int]) -> Function:
    """The function where only the given ranges [low, high), in order, are not refused."""
    starts, classes = [0], [_NO]
    for low, high in ranges:
        part = _part(function, low, high)
        if starts[-1] == low:
            starts.pop()
            classes.pop()
        starts += [low + start for start in part.starts]
        classes += part.classes
        starts.append(high)
        classes.append(_NO)
    return Function(tuple(starts), tuple(classes))


# -- whole characters ----------------------------------------------------------------------------


def first_row(encoding: Encoding, partition: Partition) -> Row:
    """The row of the place between two characters."""
    row = partition.images.get(encoding)
    if row is None:
        function = Function(partition.starts, partition.classes)
        row = partition.images[encoding] = _first_row(encoding, function, partition.count)
    return row  # type: ignore[return-value]


def _first_row(encoding: Encoding, function: Function, count: int) -> Row:
    builder = _RowBuilder(count)
    entries = builder.entries
    starts, classes = function
    for i, start in enumerate(starts):
        if start >= 0x80:
            break
        stop = min(starts[i + 1], 0x80) if i + 1 < len(starts) else 0x80
        entries[start:stop] = [FIRST_CLASS + classes[i]] * (stop - start)
    if encoding != "utf8":
        entries[:0x20] = [REFUSED] * 0x20
        entries[0x22] = QUOTE
        entries[_BACKSLASH] = REFUSED
        if encoding == "json":
            builder.child([_BACKSLASH], "escape", 0, function)
        else:
            # Only what canonical JSON has to escape: control characters, quote and backslash.
            escaped = _only(function, (0, 0x20), (0x22, 0x23), (0x5C, 0x5D))
            builder.child([_BACKSLASH], "canonical", 0, escaped)
    if function.starts[-1] < 0x80:
        for codes, node in _plain_leads():
            builder.known_child(codes, Child(node, function.classes[-1:]))
    else:
        _leads(builder, function)
    return builder.row()


@lru_cache(maxsize=1)
def _plain_leads() -> list[tuple[list[int], Node]]:
    """The lead bytes where all characters beyond ASCII are of one class: most rows."""
    builder = _RowBuilder(1)
    _leads(builder, Function((0,), (0,)))
    return [
        ([byte for byte in range(256) if builder.entries[byte] == entry], child.node)
        for child, entry in builder.children.items()
    ]


def _leads(builder: _RowBuilder, function: Function) -> None:
    """The lead bytes of UTF-8: valid sequences only, so no overlong forms and no surrogates."""
    for low, high, digits, size in ((0xC2, 0xDF, 1, 1 << 6), (0xE1, 0xEF, 2, 1 << 12)):
        shift = 0xC0 if digits == 1 else 0xE0
        if _constant(function, (low - shift) * size):
            builder.child(
                range(low, high + 1), "utf8", digits, Function((0,), function.classes[-1:])
            )
        else:
            for lead in range(low, high + 1):
                offset = (lead - shift) * size
                builder.child([lead], "utf8", digits, _part(function, offset, offset + size))
    builder.child([0xE0], "utf8", 2, _part(_only(function, (0x800, 0x1000)), 0, 0x1000))
    builder.child([0xED], "utf8", 2, _part(_only(function, (0xD000, 0xD800)), 0xD000, 0xE000))
    builder.child([0xF0], "utf8", 3, _part(_only(function, (0x10000, 0x40000)), 0, 0x40000))
    for lead in (0xF1, 0xF2, 0xF3):
        offset = (lead - 0xF0) << 18
        builder.child([lead], "utf8", 3, _part(function, offset, offset + (1 << 18)))
    last = _only(function, (0x100000, 0x110000))
    builder.child([0xF4], "utf8", 3, _part(last, 0x100000, 0x140000))


def _constant(function: Function, low: int) -> bool:
    """True where the function doesn't change above ``low``."""
    return function.starts[-1] <= low


# -- the middle of a character -------------------------------------------------------------------


def _utf8_row(node: Node) -> Row:
    builder = _RowBuilder(node.classes)
    size = 1 << 6 * (node.digits - 1)
    for i in range(64):
        _digit(builder, [0x80 + i], node, i, size)
    return builder.row()


def _hex_row(node: Node) -> Row:
    """``digits`` hexadecimal digits, in either case or (kind "hex-lower") in lower case."""
    builder = _RowBuilder(node.classes)
    digits = _HEX_LOWER if node.kind == "hex-lower" else _HEX
    for i, codes in enumerate(digits):
        _digit(builder, codes, node, i, 1 << 4 * (node.digits - 1))
    return builder.row()


def _digit(builder: _RowBuilder, codes: Sequence[int], node: Node, i: int, size: int) -> None:
    part = _part(node.function, i * size, (i + 1) * size)
    if node.digits == 1:
        builder.leaf(codes, part.classes[0])
    else:
        builder.child(codes, node.kind, node.digits - 1, part)


def _escape_row(node: Node) -> Row:
    """After a backslash; the function is that of all characters."""
    builder = _RowBuilder(node.classes)
    starts, classes = node.function
    for byte, code in SHORT_ESCAPES.items():
        builder.leaf([byte], classes[bisect_right(starts, code) - 1])
    builder.child([_U], "unicode", 0, node.function)
    return builder.row()


def _canonical_row(node: Node) -> Row:
    builder = _RowBuilder(node.classes)
    starts = node.function.starts  # A state like this one may have fewer segments.
    classes = [node.function.classes[bisect_right(starts, code) - 1] for code in range(0x5D)]
    for byte, code in SHORT_ESCAPES.items():
        if code != 0x2F:
            builder.leaf([byte], classes[code])
            classes[code] = _NO
    builder.child([_U], "hex-lower", 4, _merged(range(0x21), [*classes[:0x20], _NO]))
    return builder.row()


def _unicode_row(node: Node) -> Row:
    """After ``\\u``: the first digit of four, where D may begin a surrogate pair."""
    builder = _RowBuilder(node.classes)
    for i, codes in enumerate(_HEX):
        if i != 0xD:
            part = _part(node.function, i << 12, (i + 1) << 12)
            builder.child(codes, "hex", 3, part)
        else:
            spelled = _only(node.function, (0xD000, 0xD800), (0x10000, END))
            builder.child(codes, "unicode-d", 0, spelled)
    return builder.row()


def _unicode_d_row(node: Node) -> Row:
    """After ``\\uD``: 0-7 go on as usual, 8-B begin a pair, C-F would be a low surrogate."""
    builder = _RowBuilder(node.classes)
    for i in range(8):
        low = 0xD000 + (i << 8)
        builder.child(_HEX[i], "hex", 2, _part(node.function, low, low + 0x100))
    for i in range(4):
        low = 0x10000 + (i << 18)
        builder.child(_HEX[8 + i], "high", 2, _part(node.function, low, low + (1 << 18)))
    return builder.row()


def _high_row(node: Node) -> Row:
    """The last two digits of a high surrogate; each choice stands for 1024 code points."""
    builder = _RowBuilder(node.classes)
    size = 0x400 << 4 * (node.digits - 1)
    for i, codes in enumerate(_HEX):
        part = _part(node.function, i * size, (i + 1) * size)
        if node.digits > 1:
            builder.child(codes, "high", node.digits - 1, part)
        else:
            builder.child(codes, "low", 0, part)
    return builder.row()


def _low_row(node: Node) -> Row:
    """``\\uDC00`` to ``\\uDFFF`` after a high surrogate: ``digits`` of ``\\uD`` are read."""
    builder = _RowBuilder(node.classes)
    if node.digits < 3:
        codes: Sequence[int] = ([_BACKSLASH], [_U], _HEX[0xD])[node.digits]
        builder.child(codes, "low", node.digits + 1, node.function)
    else:
        for i in range(4):
            part = _part(node.function, i << 8, (i + 1) << 8)
            builder.child(_HEX[0xC + i], "hex", 2, part)
    return builder.row()


_BUILD: dict[str, Callable[[Node], Row]] = {
    "utf8": _utf8_row,
    "hex": _hex_row,
    "hex-lower": _hex_row,
    "escape": _escape_row,
    "canonical": _canonical_row,
    "unicode": _unicode_row,
    "unicode-d": _unicode_d_row,
    "high": _high_row,
    "low": _low_row,
}
