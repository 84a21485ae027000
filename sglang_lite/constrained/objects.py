"""JSON objects: which keys may come next, and the cursor that reads a key.

One leaf, the *key switch*, stands for all keys at once.  The sorted names are the trie of the
declared keys; what members are allowed is a bit mask in the object's state, so the sets of members
seen exist only where a text visits them.  Other keys are terminals that run beside the names and
are cut off where a declared name is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sglang_lite.constrained.cursors import Arc, Cursor, TerminalCursor, branches, narrow
from sglang_lite.constrained.frames import Expansion, Frame, LeafFrame, Stack
from sglang_lite.constrained.ir import Object
from sglang_lite.constrained.presence import Presence
from sglang_lite.constrained.tables import Row, Scan
from sglang_lite.constrained.trie import Place

if TYPE_CHECKING:
    from sglang_lite.constrained.pushdown import Pushdown


class Progress(NamedTuple):
    """How far an object has come.

    ``position``: in schema order, the first member that may still come (all of them in any order).
    ``seen``: bit mask of the members that came, as far as it matters.  ``keys``: how many so far,
    clipped where more makes no difference.  ``started``: a comma is due.  ``names``: other keys so
    far, kept only while ``minimum`` wants more *distinct* keys.
    """

    position: int
    seen: int
    keys: int
    started: bool
    names: frozenset[bytes] = frozenset()


class ObjectPlan:
    """The frames of an object and the rules of its members."""

    def __init__(self, node: Object, automaton: Pushdown) -> None:
        self.node = node
        self.automaton = automaton
        self.presence = Presence(
            node.members, node.extras, node.minimum, node.maximum, node.clauses
        )
        order = sorted(range(len(node.members)), key=lambda i: node.members[i].key)
        self.names = tuple(node.members[i].key for i in order)
        self.member_of = {node.members[i].key: i for i in order}
        self.in_order = node.order == "schema"
        self.open = automaton.frames((node.open,))
        self.colon = automaton.frames((node.colon,))
        self.comma = automaton.frames((node.comma,))
        self.close = automaton.frames((node.close,))
        self.extras = tuple(
            automaton.terminal_cursor(automaton.tables.terminal(extra.key), extra.key.start)
            for extra in node.extras
        )
        self._values: dict[int, tuple[Frame, ...]] = {}
        self._frames: dict[Progress, MembersFrame] = {}
        self._allowed: dict[Progress, int] = {}
        self._extra_allowed: dict[Progress, bool] = {}
        self._cursors: dict[tuple[object, ...], KeyCursor] = {}
        self._completable: dict[Progress, bool] = {}

    # -- progress --------------------------------------------------------------------------------

    def after_member(self, progress: Progress, index: int) -> Progress:
        """Progress after member ``index``."""
        seen = progress.seen | 1 << index
        if self.in_order:
            seen &= self.presence.relevant
        position = index + 1 if self.in_order else 0
        return self._counted(progress, position, seen, None)

    def after_extra(self, progress: Progress, name: bytes | None) -> Progress:
        """Progress after another key; ``name`` where names are tracked."""
        position = len(self.names) if self.in_order else 0
        return self._counted(progress, position, progress.seen, name)

    def _counted(
        self, progress: Progress, position: int, seen: int, name: bytes | None
    ) -> Progress:
        presence = self.presence
        keys = progress.keys + 1
        if presence.maximum is None:
            keys = min(keys, presence.minimum)
        names = progress.names if name is None else progress.names | {name}
        if keys >= presence.minimum:
            names = frozenset()
        return Progress(position, seen, keys, True, names)

    def tracks_names(self, progress: Progress) -> bool:
        """True where the name of the next other key must be remembered.

        Where it reaches the minimum it must differ from those before, but none is kept after it.
        """
        return bool(self.extras) and progress.keys + 1 < self.presence.minimum

    def completable(self, progress: Progress) -> bool:
        """True where some further keys complete the object."""
        found = self._completable.get(progress)
        if found is None:
            everything = (1 << len(self.names)) - 1
            open_ = everything & ~progress.seen
            if self.in_order:
                open_ &= -1 << progress.position
            spare = self.presence.spare
            if spare is not None:
                spare -= len(progress.names)
            seen = progress.seen
            if self.in_order:
                # Required members before the position did come, or it would not be there.
                seen |= self.presence.required & ~(-1 << progress.position)
            found = self.presence.completable(seen, open_, progress.keys, spare)
            self._completable[progress] = found
        return found

    def complete(self, progress: Progress) -> bool:
        """True where the object may be closed."""
        presence = self.presence
        missing = presence.required & ~progress.seen
        if self.in_order:
            missing = presence.required & (-1 << progress.position)
        if missing or progress.keys < presence.minimum:
            return False
        return all(
            wanted & progress.seen or unwanted & ~progress.seen
            for wanted, unwanted in presence.clauses
        )

    def allowed(self, progress: Progress) -> int:
        """Bit mask of the members that may come next."""
        found = self._allowed.get(progress)
        if found is None:
            found = self._allowed[progress] = self._find_allowed(progress)
        return found

    def any_allowed(
        self, progress: Progress, names: tuple[bytes, ...], low: int, high: int
    ) -> bool:
        """True where one of ``names[low:high]`` may come next."""
        allowed, member_of = self.allowed(progress), self.member_of
        for name in names[low:high]:
            index = member_of.get(name, -1)
            if index >= 0 and allowed >> index & 1:
                return True
        return False

    def _find_allowed(self, progress: Progress) -> int:
        presence = self.presence
        allowed = presence.usable
        if self.in_order:
            ahead = -1 << progress.position
            due = presence.required & ahead
            if due:
                first = due & -due
                allowed &= (first << 1) - 1
            allowed &= ahead
        else:
            allowed &= ~progress.seen
        if presence.plain:
            return allowed
        kept, rest = 0, allowed
        while rest:
            bit = rest & -rest
            rest ^= bit
            if self.completable(self.after_member(progress, bit.bit_length() - 1)):
                kept |= bit
        return kept

    def extra_allowed(self, progress: Progress) -> bool:
        """True where another key may come next."""
        found = self._extra_allowed.get(progress)
        if found is None:
            found = bool(self.extras)
            if found and self.in_order:
                found = not self.presence.required & (-1 << progress.position)
            if found and not self.presence.plain:
                name = b"" if self.tracks_names(progress) else None
                found = self.completable(self.after_extra(progress, name))
            self._extra_allowed[progress] = found
        return found

    # -- frames and cursors ----------------------------------------------------------------------

    def frame(self, progress: Progress) -> MembersFrame:
        """The frame of the rest of the object."""
        found = self._frames.get(progress)
        if found is None:
            found = self._frames.setdefault(progress, MembersFrame(self, progress))
        return found

    def member_frames(self, progress: Progress, index: int) -> tuple[Frame, ...]:
        """What follows the key of member ``index``."""
        after = self.frame(self.after_member(progress, index))
        return (*self._value(index), after)

    def extra_frames(self, progress: Progress, index: int, name: bytes | None) -> tuple[Frame, ...]:
        """What follows another key, of ``extras[index]``."""
        after = self.frame(self.after_extra(progress, name))
        return (*self._value(-1 - index), after)

    def _value(self, index: int) -> tuple[Frame, ...]:
        found = self._values.get(index)
        if found is None:
            node = self.node
            value = node.members[index].value if index >= 0 else node.extras[-1 - index].value
            found = self._values[index] = (*self.colon, *self.automaton.frames((value,)))
        return found

    def start_cursor(self, progress: Progress) -> KeyCursor | None:
        """The cursor before a key, or None where no key may come."""
        extras: tuple[TerminalCursor | None, ...] = ()
        if self.extra_allowed(progress):
            extras = self.extras
        names = self.names
        if progress.names:
            names = tuple(sorted({*names, *progress.names}))
        return self.cursor(progress, Names(names, 0, len(names), 0), extras, b"")

    def cursor(
        self,
        progress: Progress,
        names: Names,
        extras: tuple[TerminalCursor | None, ...],
        text: bytes,
    ) -> KeyCursor | None:
        """The cursor within a key, or None where no key begins so."""
        key = (progress, names, extras, text)
        found = self._cursors.get(key)
        if found is None:
            found = KeyCursor(self, progress, names, extras, text)
            if not found.alive():
                return None
            found = self._cursors.setdefault(key, found)
        return found

    def member(self, names: Names) -> int:
        """The member of the first of ``names``, -1 for a tracked one that is not declared."""
        return self.member_of.get(names.texts[names.low], -1)


class Names(NamedTuple):
    """A node of the trie of names: those of ``texts[low:high]`` that agree in ``depth`` bytes."""

    texts: tuple[bytes, ...]
    low: int
    high: int
    depth: int


class ObjectFrame(Frame):
    """A whole object."""

    __slots__ = ("plan",)

    def __init__(self, plan: ObjectPlan) -> None:
        self.plan = plan

    def expand(self, automaton: Pushdown, below: Stack, closure: Expansion) -> None:
        plan = self.plan
        start = Progress(0, 0, 0, False)
        if plan.completable(start):
            closure.work.append(automaton.push((*plan.open, plan.frame(start)), below))


class MembersFrame(Frame):
    """The rest of an object, after a value or its opening."""

    __slots__ = ("_options", "plan", "progress")

    def __init__(self, plan: ObjectPlan, progress: Progress) -> None:
        self.plan, self.progress = plan, progress
        self._options: tuple[tuple[Frame, ...], ...] | None = None

    def expand(self, automaton: Pushdown, below: Stack, closure: Expansion) -> None:
        if self._options is None:
            options: list[tuple[Frame, ...]] = []
            if self.plan.complete(self.progress):
                options.append(self.plan.close)
            cursor = self.plan.start_cursor(self.progress)
            if cursor is not None:
                comma = self.plan.comma if self.progress.started else ()
                options.append((*comma, LeafFrame(cursor)))
            self._options = tuple(options)
        for frames in self._options:
            closure.work.append(automaton.push(frames, below))


class KeyCursor(Cursor):
    """Within a key: the declared names that begin so, and the terminals of other keys."""

    __slots__ = ("_arcs", "_forbidden", "extras", "names", "plan", "progress", "text")

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
        extras = tuple(_advance(cursor, byte) for cursor in self.extras)
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
            ended = [i for i, c in enumerate(extras) if c is not None and c.nullable]
            arcs: list[Arc] = [(None, plan.extra_frames(progress, i, text)) for i in ended]
            cursor = plan.cursor(progress, Names((), 0, 0, 0), extras, text)
            if cursor is not None and any(c and c.first_bytes() for c in extras):
                arcs.append((cursor, ()))
            return tuple(arcs)
        return tuple(
            (cursor, plan.extra_frames(progress, index, None))
            for index, cursor in enumerate(extras)
            if cursor is not None
        )

    # -- tokens ----------------------------------------------------------------------------------

    def _scan(self, place: Place) -> Scan:
        tracking = self.plan.tracks_names(self.progress)
        tokens: list[int] = []
        exits: list[tuple[tuple[Frame, ...], Place]] = []
        self._scan_names(place, tokens, exits)
        rows: list[Row] = []
        for index, cursor in enumerate(self.extras):
            if cursor is None:
                continue
            inside = cursor.scan(place)
            cut = self._cut(place, cursor)
            if cut:
                inside = self.plan.automaton.tables.without(inside, cut)
            rows += inside.rows
            tokens += inside.tokens
            for _, after in inside.exits:
                if tracking:
                    exits += self._tracked_exits(index, place, after)
                else:
                    frames = self.plan.extra_frames(self.progress, index, None)
                    exits.append((frames, after))
        return Scan(tuple(rows), tuple(tokens), tuple(exits))

    def _scan_names(
        self, place: Place, tokens: list[int], exits: list[tuple[tuple[Frame, ...], Place]]
    ) -> None:
        """The tokens that go along the allowed names."""
        plan = self.plan
        texts = self.names.texts
        work = [(place, self.names.low, self.names.high, self.names.depth)]
        while work:
            here, low, high, depth = work.pop()
            for byte, start, end in branches(texts, low, high, depth):
                hop = here.get(byte)
                if hop is None:
                    continue
                if not plan.any_allowed(self.progress, texts, start, end):
                    continue
                tokens += hop.tokens
                if hop.place is None:
                    continue
                if len(texts[start]) == depth + 1:
                    frames = plan.member_frames(self.progress, plan.member_of[texts[start]])
                    exits.append((frames, hop.place))
                else:
                    work.append((hop.place, start, end, depth + 1))

    def _cut(
        self, place: Place, cursor: TerminalCursor
    ) -> list[tuple[Place | None, tuple[int, ...]]]:
        """Where tokens below ``place`` run into a declared name: not as another key.

        (place after it, ids ending there) for each complete name; (None, ids) for each prefix from
        which only declared names are left.
        """
        texts = self.names.texts
        cut: list[tuple[Place | None, tuple[int, ...]]] = []
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

    def _tracked_exits(
        self, index: int, place: Place, after: Place
    ) -> list[tuple[tuple[Frame, ...], Place]]:
        """One exit for each name that tokens below ``place`` complete."""
        trie = place.trie
        by_name: dict[bytes, list[int]] = {}
        for node in after.nodes:
            by_name.setdefault(trie.text_below(place, int(node)), []).append(int(node))
        exits = []
        for name, nodes in by_name.items():
            frames = self.plan.extra_frames(self.progress, index, self.text + name)
            below = trie.place(np.array(nodes, np.int32))
            if below is not None:
                exits.append((frames, below))
        return exits


def _advance(cursor: TerminalCursor | None, byte: int) -> TerminalCursor | None:
    arcs = cursor.step(byte) if cursor is not None else ()
    return arcs[0][0] if arcs else None  # type: ignore[return-value]


def _outlives(cursor: TerminalCursor, names: Names) -> bool:
    """True if a key that is none of ``names`` begins so: an automaton minus a finite set."""
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
