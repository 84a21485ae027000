"""JSON objects: how far one has come, and which members may come next.

What members are allowed is a bit mask in the object's progress, so the sets of members seen exist
only where a text visits them.  The key itself is read by :class:`.keys.KeyCursor`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sglang_lite.constrained.cursors import TerminalCursor
from sglang_lite.constrained.frames import Expansion, Frame, LeafFrame, Stack
from sglang_lite.constrained.ir import Object
from sglang_lite.constrained.keys import KeyCursor, Names, Way, ways
from sglang_lite.constrained.presence import capacity, is_infinite
from sglang_lite.constrained.tables import Scan
from sglang_lite.constrained.trie import Place

if TYPE_CHECKING:
    from sglang_lite.constrained.pushdown import Pushdown


MAX_ROOM = 1000
"""Where finitely many keys can be the needed one, so many others may come before it."""


class Progress(NamedTuple):
    """How far an object has come.

    ``position``: in schema order, the first member that may still come (all of them in any order).
    ``seen``: bit mask of the members that came, as far as it matters.  ``keys``: how many so far,
    clipped where more makes no difference.  ``started``: a comma is due.  ``names``: other keys so
    far, kept while ``minimum`` wants more *distinct* keys or a needed one is still owed, or for
    good if all must be.  ``owed``: bit mask of the kinds of other keys that must still come;
    ``needed``: the keys that came for such kinds.
    """

    position: int
    seen: int
    keys: int
    started: bool
    names: frozenset[bytes] = frozenset()
    owed: int = 0
    needed: frozenset[bytes] = frozenset()


class ObjectPlan:
    """The frames of an object and the rules of its members."""

    def __init__(self, node: Object, automaton: Pushdown) -> None:
        self.node = node
        self.automaton = automaton
        self.presence = node.presence
        order = sorted(range(len(node.members)), key=lambda i: node.members[i].key)
        self.names = tuple(node.members[i].key for i in order)
        self.member_of = {node.members[i].key: i for i in order}
        self.in_order = node.order == "schema"
        layout = (node.open, node.colon, node.comma, node.close)
        self.open, self.colon, self.comma, self.close = automaton.layout(layout)
        self.extras = tuple(
            automaton.terminal(extra.key).cursor(extra.key.start) for extra in node.extras
        )
        self.room = _room(node)
        self._values: dict[int, tuple[Frame, ...]] = {}
        self._frames: dict[Progress, MembersFrame] = {}
        self._allowed: dict[Progress, int] = {}
        self._allowed_extras: dict[Progress, tuple[TerminalCursor | None, ...]] = {}
        self._cursors: dict[tuple[object, ...], KeyCursor] = {}
        self._completable: dict[Progress, bool] = {}
        self.extra_scans: dict[tuple[object, ...], Scan] = {}
        self._ways: dict[tuple[Place, int, int, int], tuple[Way, ...]] = {}

    # -- progress --------------------------------------------------------------------------------

    def after_member(self, progress: Progress, index: int) -> Progress:
        """Progress after member ``index``."""
        seen = progress.seen | 1 << index
        if self.in_order:
            seen &= self.presence.relevant
        position = index + 1 if self.in_order else 0
        return self._counted(progress, position, seen, None)

    def after_extra(self, progress: Progress, index: int, name: bytes | None) -> Progress:
        """Progress after another key, of ``extras[index]``; ``name`` where names are tracked."""
        position = len(self.names) if self.in_order else 0
        if self.node.extras[index].needed and name is not None:
            owed = progress.owed & ~(1 << index)
            progress = progress._replace(owed=owed, needed=progress.needed | {name})
        return self._counted(progress, position, progress.seen, name)

    def _counted(
        self, progress: Progress, position: int, seen: int, name: bytes | None
    ) -> Progress:
        presence = self.presence
        keys = progress.keys + 1
        if presence.maximum is None:
            keys = min(keys, presence.minimum)
        names = progress.names if name is None else progress.names | {name}
        if keys >= presence.minimum and not self.node.distinct and not progress.owed:
            names = frozenset()
        return Progress(position, seen, keys, True, names, progress.owed, progress.needed)

    def tracks_names(self, progress: Progress) -> bool:
        """True where the name of the next other key must be remembered.

        Where it reaches the minimum it must differ from those before, but none is kept after it.
        """
        if self.node.distinct or progress.owed:
            return bool(self.extras)
        return bool(self.extras) and progress.keys + 1 < self.presence.minimum

    def completable(self, progress: Progress) -> bool:
        """True where some further keys complete the object."""
        owed = progress.owed.bit_count()
        if owed and self.room is not None and len(progress.names) + owed > self.room:
            return False
        found = self._completable.get(progress)
        if found is None:
            everything = (1 << len(self.names)) - 1
            open_ = everything & ~progress.seen
            if self.in_order:
                open_ &= -1 << progress.position
            spare = self.presence.spare
            if spare is not None:
                spare -= len(progress.names) + owed
            seen = progress.seen
            if self.in_order:
                # Required members before the position did come, or it would not be there.
                seen |= self.presence.required & ~(-1 << progress.position)
            found = self.presence.completable(seen, open_, progress.keys + owed, spare)
            self._completable[progress] = found
        return found

    def complete(self, progress: Progress) -> bool:
        """True where the object may be closed."""
        presence = self.presence
        missing = presence.required & ~progress.seen
        if self.in_order:
            missing = presence.required & (-1 << progress.position)
        if missing or progress.keys < presence.minimum or progress.owed:
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

    def allowed_extras(self, progress: Progress) -> tuple[TerminalCursor | None, ...]:
        """The cursors of other keys that may come next; () where none may."""
        found = self._allowed_extras.get(progress)
        if found is None:
            cursors = [
                cursor if self._extra_allowed(progress, index) else None
                for index, cursor in enumerate(self.extras)
            ]
            found = self._allowed_extras[progress] = tuple(cursors) if any(cursors) else ()
        return found

    def _extra_allowed(self, progress: Progress, index: int) -> bool:
        if self.in_order and self.presence.required & (-1 << progress.position):
            return False
        if self.node.extras[index].needed and not progress.owed >> index & 1:
            return False
        if self.presence.plain and not progress.owed:
            return True
        name = b"" if self.tracks_names(progress) else None
        return self.completable(self.after_extra(progress, index, name))

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
        after = self.frame(self.after_extra(progress, index, name))
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
        extras = self.allowed_extras(progress)
        names = self.names
        if progress.names or progress.needed:
            names = tuple(sorted({*names, *progress.names, *progress.needed}))
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

    def ways(self, place: Place, names: Names) -> tuple[Way, ...]:
        """See :func:`ways`; memoised for the declared names."""
        if names.texts is not self.names:
            return ways(place, names, self.member_of)
        key = (place, names.low, names.high, names.depth)
        found = self._ways.get(key)
        if found is None:
            found = self._ways[key] = ways(place, names, self.member_of)
        return found

    def member(self, names: Names) -> int:
        """The member of the first of ``names``, -1 for a tracked one that is not declared."""
        return self.member_of.get(names.texts[names.low], -1)


def _room(node: Object) -> int | None:
    """How many other keys the smallest needed kind surely has, None for any number."""
    found: int | None = None
    for extra in node.extras:
        if extra.needed and not is_infinite(extra.key):
            count = capacity(node.members, (extra,), MAX_ROOM)
            found = min(MAX_ROOM if found is None else found, MAX_ROOM if count is None else count)
    return found


class ObjectFrame(Frame):
    """A whole object."""

    __slots__ = ("plan",)

    def __init__(self, plan: ObjectPlan) -> None:
        self.plan = plan

    def expand(self, automaton: Pushdown, below: Stack, closure: Expansion) -> None:
        plan = self.plan
        owed = sum(1 << index for index, extra in enumerate(plan.node.extras) if extra.needed)
        start = Progress(0, 0, 0, False, owed=owed)
        if plan.completable(start):
            closure.push(automaton, (*plan.open, plan.frame(start)), below)


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
            if frames:
                closure.push(automaton, frames, below)
            else:
                closure.work.append(below)
