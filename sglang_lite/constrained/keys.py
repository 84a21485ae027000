"""The key switch: one cursor for all keys of an object that may come next.

The sorted names are the trie of the declared keys.  Other keys are terminals that run beside the
names and are cut off where a declared name is complete, so no product of automata is needed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sglang_lite.constrained.cursors import Arc, Cursor, TerminalCursor, branches, narrow
from sglang_lite.constrained.tables import Row, Scan
from sglang_lite.constrained.trie import Path, Place

if TYPE_CHECKING:
    from sglang_lite.constrained.frames import Frame
    from sglang_lite.constrained.objects import ObjectPlan, Progress

Cut = list[tuple["Place | None", tuple[int, ...]]]


class Names(NamedTuple):
    """A node of the trie of names: those of ``texts[low:high]``, which agree in ``depth`` bytes."""

    texts: tuple[bytes, ...]
    low: int
    high: int
    depth: int


Way = tuple[int, int, Path]
"""A name that tokens go along: the bit and the index of its member (0 and -1: none), its path."""


def ways(place: Place, names: Names, member_of: Mapping[bytes, int]) -> tuple[Way, ...]:
    """The ways of those of ``names`` that some token goes along."""
    found: list[Way] = []
    follow = place.trie.follow
    for name in names.texts[names.low : names.high]:
        path = follow(place, name, names.depth)
        if path.inner or path.whole:
            index = member_of.get(name, -1)
            found.append((1 << index if index >= 0 else 0, index, path))
    return tuple(found)


class KeyCursor(Cursor):
    """Within a key: the declared names that begin so, and the terminals of other keys.

    ``text`` is the key so far where the object must remember it, else empty.
    """

    __slots__ = ("_arcs", "extras", "names", "plan", "progress", "text")

    def __init__(
        self,
        plan: ObjectPlan,
        progress: Progress,
        names: Names,
        extras: tuple[TerminalCursor | None, ...],
        text: bytes,
    ) -> None:
        super().__init__()
        self.plan, self.progress, self.names = plan, progress, names
        self.extras, self.text = extras, text
        self._arcs: dict[int, tuple[Arc, ...]] = {}

    def alive(self) -> bool:
        """True if some key begins so."""
        names = self.names
        if self.plan.any_allowed(self.progress, names.texts, names.low, names.high):
            return True
        return any(cursor is not None and _outlives(cursor, names) for cursor in self.extras)

    def step(self, byte: int) -> tuple[Arc, ...]:
        found = self._arcs.get(byte)
        if found is None:
            found = self._arcs[byte] = self._step(byte)
        return found

    def _step(self, byte: int) -> tuple[Arc, ...]:
        plan, progress, names = self.plan, self.progress, self.names
        extras = tuple([_advance(cursor, byte) for cursor in self.extras])
        tracking = plan.tracks_names(progress) and any(extras)
        text = self.text + bytes((byte,)) if tracking else b""
        low, high = names.low, names.high
        if low < high:
            low, high = narrow(names.texts, low, high, names.depth, byte)
        if low < high:
            below = Names(names.texts, low, high, names.depth + 1)
            if len(names.texts[low]) == below.depth:
                index = plan.member(below)
                if index >= 0 and plan.allowed(progress) >> index & 1:
                    return ((None, plan.member_frames(progress, index)),)
                return ()
            cursor = plan.cursor(progress, below, extras, text)
            return ((cursor, ()),) if cursor is not None else ()
        if tracking:
            return self._tracked_step(extras, text)
        return tuple(
            [
                (cursor, plan.extra_frames(progress, index, None))
                for index, cursor in enumerate(extras)
                if cursor is not None
            ]
        )

    def leap(self, text: bytes, at: int) -> tuple[KeyCursor | None, int]:
        """The cursor after the bytes of ``text[at:]`` that go along declared names, and its place.

        What :meth:`step` gives byte by byte, but the cursors in between are not made.  Stops before
        the end of a name; stays where it is if there is nothing to skip.  None: no key begins so.
        """
        plan, progress = self.plan, self.progress
        texts, low, high, depth = self.names
        if low == high or plan.tracks_names(progress):
            return self, at
        wanted = texts[low][:depth] + text[at:]
        length = len(wanted)
        nearest = bisect_left(texts, wanted, low, high)
        if nearest == high or len(texts[nearest]) <= length or texts[nearest][:length] != wanted:
            beside = texts[max(nearest - 1, low) : min(nearest + 1, high)]
            length = max([_agree(name, wanted, depth) for name in beside])
            wanted = wanted[:length]
            nearest = bisect_left(texts, wanted, low, high)
        if length < depth + 2:
            return self, at
        extras = self.extras
        if extras:
            for byte in wanted[depth:]:
                extras = tuple([_advance(cursor, byte) for cursor in extras])
        _, high = narrow(texts, nearest, high, length - 1, wanted[-1])
        below = Names(texts, nearest, high, length)
        return plan.cursor(progress, below, extras, b""), at + length - depth

    def _tracked_step(
        self, extras: tuple[TerminalCursor | None, ...], text: bytes
    ) -> tuple[Arc, ...]:
        plan, progress = self.plan, self.progress
        ended = [i for i, cursor in enumerate(extras) if cursor is not None and cursor.nullable]
        arcs: list[Arc] = [(None, plan.extra_frames(progress, i, text)) for i in ended]
        if any(c is not None and next(c.first_bytes(), None) is not None for c in extras):
            going = plan.cursor(progress, Names((), 0, 0, 0), extras, text)
            if going is not None:
                arcs.append((going, ()))
        return tuple(arcs)

    # -- tokens ----------------------------------------------------------------------------------

    def _scan(self, place: Place) -> Scan:
        tokens: list[int] = []
        exits: list[tuple[tuple[Frame, ...], Place]] = []
        self._scan_names(place, tokens, exits)
        rows: list[Row] = []
        for index, cursor in enumerate(self.extras):
            if cursor is not None:
                inside = self._scan_extra(place, cursor)
                rows += inside.rows
                tokens += inside.tokens
                for _, after in inside.exits:
                    exits += self._extra_exits(index, place, after)
        return Scan(tuple(rows), tuple(dict.fromkeys(tokens)), tuple(exits))

    def _scan_names(
        self, place: Place, tokens: list[int], exits: list[tuple[tuple[Frame, ...], Place]]
    ) -> None:
        """The tokens that go along the allowed names."""
        plan, progress = self.plan, self.progress
        allowed = plan.allowed(progress)
        for bit, index, path in plan.ways(place, self.names):
            if allowed & bit:
                tokens += path.inner
                tokens += path.last
                if path.place is not None:
                    exits.append((plan.member_frames(progress, index), path.place))

    def _scan_extra(self, place: Place, cursor: TerminalCursor) -> Scan:
        """The tokens of another key, less those that run into a declared name."""
        plan, names = self.plan, self.names
        key = (place, cursor, names.low, names.high, names.depth)
        if names.texts is plan.names:
            found = plan.extra_scans.get(key)
            if found is not None:
                return found
        inside = cursor.scan(place)
        cut = self._whole(place) if cursor.endless else self._cut(place, cursor)
        if cut:
            inside = plan.automaton.tables.without(inside, cut)
        if names.texts is plan.names:
            plan.extra_scans[key] = inside
        return inside

    def _whole(self, place: Place) -> Cut:
        """Where tokens below ``place`` complete a declared name."""
        paths = [path for _, _, path in self.plan.ways(place, self.names)]
        return [(path.place, path.last) for path in paths if path.whole]

    def _cut(self, place: Place, cursor: TerminalCursor) -> Cut:
        """As :meth:`_whole`, and the prefixes from which only declared names are left.

        For these (None, ids that end there).
        """
        texts = self.names.texts
        cut: Cut = []
        work: list[tuple[Place, TerminalCursor, Names]] = [(place, cursor, self.names)]
        while work:
            here, at, names = work.pop()
            for byte, start, end in branches(texts, names.low, names.high, names.depth):
                hop = here.get(byte)
                following = _advance(at, byte)
                if hop is None or following is None:
                    continue
                below = Names(texts, start, end, names.depth + 1)
                if len(texts[start]) == below.depth:
                    cut.append((hop.place, hop.tokens))
                    continue
                if not _outlives(following, below):
                    cut.append((None, hop.tokens))
                if hop.place is not None:
                    work.append((hop.place, following, below))
        return cut

    def _extra_exits(
        self, index: int, place: Place, after: Place
    ) -> list[tuple[tuple[Frame, ...], Place]]:
        """What follows another key; one exit for each name where names are remembered."""
        plan, progress = self.plan, self.progress
        if not plan.tracks_names(progress):
            return [(plan.extra_frames(progress, index, None), after)]
        trie = place.trie
        by_name: dict[bytes, list[int]] = {}
        for node in after.nodes:
            by_name.setdefault(trie.text_below(place, int(node)), []).append(int(node))
        exits = []
        for name, nodes in by_name.items():
            below = trie.place(np.array(nodes, np.int32))
            if below is not None:
                exits.append((plan.extra_frames(progress, index, self.text + name), below))
        return exits


def _agree(name: bytes, wanted: bytes, depth: int) -> int:
    """How many first bytes are the same, ``depth`` at least, without the last one of ``name``."""
    most = min(len(name) - 1, len(wanted))
    for index in range(depth, most):
        if name[index] != wanted[index]:
            return index
    return most


def _advance(cursor: TerminalCursor | None, byte: int) -> TerminalCursor | None:
    arcs = cursor.step(byte) if cursor is not None else ()
    return arcs[0][0] if arcs else None  # type: ignore[return-value]


def _outlives(cursor: TerminalCursor, names: Names) -> bool:
    """True if a key that is none of ``names`` begins so: an automaton minus a finite set."""
    if cursor.endless:
        return True
    work = [(cursor, names)]
    while work:
        at, below = work.pop()
        if below.low == below.high:
            return True
        declared = {
            byte: Names(below.texts, start, end, below.depth + 1)
            for byte, start, end in branches(below.texts, below.low, below.high, below.depth)
        }
        if any(target >= 0 and byte not in declared for byte, target in enumerate(at.row)):
            return True
        for byte, deeper in declared.items():
            following = _advance(at, byte)
            if following is not None and len(below.texts[deeper.low]) > deeper.depth:
                work.append((following, deeper))
    return False
