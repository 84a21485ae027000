"""Cursors: how far the matcher is inside one leaf of the grammar.

A cursor reads bytes one by one (:meth:`Cursor.step`), or all tokens below a place of the trie at
once (:meth:`Cursor.scan`); the two are separate code paths that must agree.  Cursors are interned
by whoever makes them, so they compare by identity.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sglang_lite.constrained.ir import LiteralSet
from sglang_lite.constrained.tables import NOTHING, Scan
from sglang_lite.constrained.trie import Place

if TYPE_CHECKING:
    from sglang_lite.constrained.frames import Frame
    from sglang_lite.constrained.terminals import TerminalTable

Arc = tuple["Cursor | None", "tuple[Frame, ...]"]
"""After a byte: the cursor that reads on (None = the leaf is done), and frames matched after it."""

DONE: tuple[Arc, ...] = ((None, ()),)


class Cursor:
    """Base of all cursors.

    ``nullable`` says that the leaf may end here, so what follows it may begin.  ``stays``: texts
    tend to come back to it, as in the body of a string.  ``scans`` are the scans made so far, by
    place.
    """

    __slots__ = ("scans",)
    nullable = False
    stays = False

    def __init__(self) -> None:
        self.scans: dict[Place, Scan] = {}

    def step(self, byte: int) -> tuple[Arc, ...]:
        """Where ``byte`` leads; empty where it is refused."""
        raise TypeError("a subclass reads bytes")

    def leap(self, text: bytes, at: int) -> tuple[Cursor | None, int]:
        """The cursor after some bytes of ``text[at:]``, and the place after them.

        What :meth:`step` gives byte by byte as long as it has one answer, in one go.  Where it
        stays at ``at`` there is nothing to skip; None: the text is refused.
        """
        return self, at

    def scan(self, place: Place) -> Scan:
        """What the tokens below ``place`` do; memoised."""
        found = self.scans.get(place)
        if found is None:
            found = self.scans.setdefault(place, self._scan(place))
        return found

    def _scan(self, place: Place) -> Scan:
        raise TypeError("a subclass reads tokens")

    def first_bytes(self) -> Iterator[int]:
        """The bytes that :meth:`step` does not refuse, rising; most want no more than two."""
        return (byte for byte in range(256) if self.step(byte))

    def describe(self) -> str:
        """What may come next, in words."""
        return f"text that begins with {describe_bytes([*self.first_bytes()])}"


class LiteralCursor(Cursor):
    """Within a literal: ``text[at:]`` is still to come."""

    __slots__ = ("_next", "at", "text")

    def __init__(self, text: bytes, at: int = 0) -> None:
        super().__init__()
        self.text = text
        self.at = at
        self._next: tuple[Arc, ...] | None = None

    def step(self, byte: int) -> tuple[Arc, ...]:
        if byte != self.text[self.at]:
            return ()
        if self._next is None:
            if self.at + 1 == len(self.text):
                self._next = DONE
            else:
                self._next = ((LiteralCursor(self.text, self.at + 1), ()),)
        return self._next

    def _scan(self, place: Place) -> Scan:
        tokens: tuple[int, ...] = ()
        here: Place | None = place
        for byte in self.text[self.at :]:
            hop = here.get(byte) if here else None
            if hop is None:
                return Scan((), tokens, ()) if tokens else NOTHING
            tokens += hop.tokens
            here = hop.place
        return Scan((), tokens, (((), here),) if here else ())

    def first_bytes(self) -> Iterator[int]:
        yield self.text[self.at]

    def describe(self) -> str:
        return repr(self.text[self.at :].decode(errors="backslashreplace"))


class SetCursor(Cursor):
    """Within a set of literals: ``texts[low:high]`` are those that begin with what was read.

    The sorted texts themselves are the trie: a node is a range of them and a depth.
    """

    __slots__ = ("_next", "depth", "high", "low", "texts")

    def __init__(self, texts: tuple[bytes, ...], low: int, high: int, depth: int) -> None:
        super().__init__()
        self.texts, self.low, self.high, self.depth = texts, low, high, depth
        self._next: dict[int, tuple[Arc, ...]] = {}

    def step(self, byte: int) -> tuple[Arc, ...]:
        found = self._next.get(byte)
        if found is None:
            found = self._next.setdefault(byte, self._step(byte))
        return found

    def _step(self, byte: int) -> tuple[Arc, ...]:
        low, high = narrow(self.texts, self.low, self.high, self.depth, byte)
        if low == high:
            return ()
        depth = self.depth + 1
        done = DONE if len(self.texts[low]) == depth else ()
        if done:
            low += 1
        if high - low == 1:
            return (*done, (LiteralCursor(self.texts[low], depth), ()))
        if low < high:
            return (*done, (SetCursor(self.texts, low, high, depth), ()))
        return done

    def _scan(self, place: Place) -> Scan:
        texts = self.texts
        tokens: list[int] = []
        exits: list[tuple[tuple[Frame, ...], Place]] = []
        work = [(place, self.low, self.high, self.depth)]
        while work:
            here, low, high, depth = work.pop()
            for byte, start, end in branches(texts, low, high, depth):
                hop = here.get(byte)
                if hop is None:
                    continue
                tokens += hop.tokens
                if hop.place is not None:
                    if len(texts[start]) == depth + 1:
                        exits.append(((), hop.place))
                        start += 1
                    if start < end:
                        work.append((hop.place, start, end, depth + 1))
        return Scan((), tuple(tokens), tuple(exits))

    def first_bytes(self) -> Iterator[int]:
        return (byte for byte, _, _ in branches(self.texts, self.low, self.high, self.depth))

    def describe(self) -> str:
        shown = [text[self.depth :] for text in self.texts[self.low : self.high][:8]]
        more = ", …" if self.high - self.low > len(shown) else ""
        texts = ", ".join(repr(text.decode(errors="backslashreplace")) for text in shown)
        return f"one of {texts}{more}"


def narrow(texts: tuple[bytes, ...], low: int, high: int, depth: int, byte: int) -> tuple[int, int]:
    """The range within ``texts[low:high]``, which agree in ``depth`` bytes, that goes on so."""
    prefix = texts[low][:depth]
    start = bisect_left(texts, prefix + bytes((byte,)), low, high)
    if byte == 255:
        return start, high
    return start, bisect_left(texts, prefix + bytes((byte + 1,)), start, high)


def branches(
    texts: tuple[bytes, ...], low: int, high: int, depth: int
) -> list[tuple[int, int, int]]:
    """(byte, start, end) for each byte that follows in ``texts[low:high]``, all longer."""
    found = []
    while low < high:
        byte = texts[low][depth]
        end = low + 1
        if end < high and texts[end][depth] == byte:
            end = narrow(texts, low, high, depth, byte)[1]
        found.append((byte, low, end))
        low = end
    return found


class TerminalCursor(Cursor):
    """In a state of a byte DFA; ``table.cursor`` makes them, one for all grammars."""

    __slots__ = ("_arcs", "endless", "nullable", "state", "table")
    stays = True

    def __init__(self, table: TerminalTable, state: int) -> None:
        self.scans = table.scans(state)
        self.table, self.state = table, state
        self.nullable = table.dfa.accepts(state)
        self.endless = table.dfa.endless(state)
        self._arcs: dict[int, tuple[Arc, ...]] = {}

    def step(self, byte: int) -> tuple[Arc, ...]:
        found = self._arcs.get(byte)
        if found is None:
            target = self.table.dfa.step(self.state, byte)
            # An accepting state is nullable: the closure lets the rest begin there.
            found = ((self.table.cursor(target), ()),) if target >= 0 else ()
            self._arcs[byte] = found
        return found

    def leap(self, text: bytes, at: int) -> tuple[Cursor | None, int]:
        here: Cursor = self
        for index in range(at, len(text)):
            arcs = here.step(text[index])
            if not arcs:
                return None, index + 1
            following = arcs[0][0]
            if following is None or following.nullable:
                return here, index
            here = following
        return here, len(text)

    def _scan(self, place: Place) -> Scan:
        return self.table.scan(place, self.state)

    @property
    def row(self) -> Sequence[int]:
        """The 256 targets of the state, -1 where a byte is refused."""
        return self.table.dfa.row(self.state)

    def first_bytes(self) -> Iterator[int]:
        return (byte for byte, target in enumerate(self.row) if target >= 0)


def set_cursor(node: LiteralSet) -> SetCursor:
    """The cursor at the start of a set of literals."""
    return SetCursor(node.texts, 0, len(node.texts), 0)


def describe_bytes(found: list[int]) -> str:
    """A few bytes as characters, ranges shortened; bytes beyond ASCII together."""
    parts = []
    low = 0
    ascii_ = [byte for byte in found if byte < 0x80]
    while low < len(ascii_):
        high = low
        while high + 1 < len(ascii_) and ascii_[high + 1] == ascii_[high] + 1:
            high += 1
        first, last = repr(chr(ascii_[low])), repr(chr(ascii_[high]))
        parts.append(first if low == high else f"{first} to {last}")
        low = high + 1
    if len(ascii_) < len(found):
        parts.append("a character beyond ASCII")
    return ", ".join(parts)
