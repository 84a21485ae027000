"""Repeats with counts: the rest of a :class:`~sglang_lite.constrained.ir.Repeat` as a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_lite.constrained.frames import Expansion, Frame, Stack
from sglang_lite.constrained.ir import Never, Repeat

if TYPE_CHECKING:
    from sglang_lite.constrained.pushdown import Pushdown

Counts = tuple[int, ...]
"""Items so far: in all, then of each kind; clipped where more makes no difference."""


class RepeatPlan:
    """The frames of a repeat and the arithmetic of its counts."""

    def __init__(self, node: Repeat, automaton: Pushdown) -> None:
        self.node = node
        self.separator = automaton.frames((node.separator,))
        self._items = [
            None if isinstance(kind.item, Never) else automaton.frame(kind.item)
            for kind in node.kinds
        ]
        self._automaton = automaton
        self._frames: dict[Counts, RepeatFrame] = {}
        self._possible: dict[Counts, bool] = {}
        self._steps: dict[Counts, tuple[tuple[Frame, Counts], ...]] = {}

    def frame(self, counts: Counts) -> RepeatFrame:
        """The frame of what remains after ``counts``."""
        found = self._frames.get(counts)
        if found is None:
            found = self._frames.setdefault(counts, RepeatFrame(self, counts))
        return found

    def item(self, kind: int, place: int) -> Frame | None:
        """The frame of an item of ``kind`` at ``place``, None where there is none."""
        if place >= len(self.node.head):
            return self._items[kind]
        item = self.node.head[place][kind]
        return None if isinstance(item, Never) else self._automaton.frame(item)

    def complete(self, counts: Counts) -> bool:
        """True where the repeat may end."""
        return counts[0] >= self.node.minimum and all(
            count >= kind.minimum for count, kind in zip(counts[1:], self.node.kinds, strict=True)
        )

    def after(self, counts: Counts, kind: int) -> Counts | None:
        """The counts after one more item of ``kind``, None where it is too many."""
        node = self.node
        done, own = counts[0], counts[1 + kind]
        if node.maximum is not None and done >= node.maximum:
            return None
        bound = node.kinds[kind]
        if bound.maximum is not None and own >= bound.maximum:
            return None
        if node.maximum is None:
            done = min(done + 1, max(node.minimum, len(node.head), 1))
        else:
            done += 1
        own = min(own + 1, bound.minimum) if bound.maximum is None else own + 1
        return (done, *counts[1 : 1 + kind], own, *counts[2 + kind :])

    def possible(self, counts: Counts) -> bool:
        """True where more items can complete the repeat."""
        found = self._possible.get(counts)
        if found is None:
            found = self._possible[counts] = self._find_possible(counts)
        return found

    def _find_possible(self, counts: Counts) -> bool:
        node = self.node
        if self.complete(counts):
            return True
        if counts[0] < len(node.head):
            following = (
                self.after(counts, kind)
                for kind in range(len(node.kinds))
                if self.item(kind, counts[0]) is not None
            )
            return any(after is not None and self.possible(after) for after in following)
        need, most, room = 0, 0, node.maximum
        for kind, own in enumerate(counts[1:]):
            low, high = node.kinds[kind].minimum, node.kinds[kind].maximum
            if self._items[kind] is None:
                high = own
            if high is not None and own < low and high < low:
                return False
            need += max(low - own, 0)
            most = -1 if most < 0 or high is None else most + high - own
        left = None if room is None else room - counts[0]
        missing = max(node.minimum - counts[0], 0)
        return (left is None or (need <= left and missing <= left)) and (
            most < 0 or missing <= most
        )

    def steps(self, counts: Counts) -> tuple[tuple[Frame, Counts], ...]:
        """(item, counts after it) for each item that may come next."""
        found = self._steps.get(counts)
        if found is None:
            options = []
            for kind in range(len(self.node.kinds)):
                item, after = self.item(kind, counts[0]), self.after(counts, kind)
                if item is not None and after is not None and self.possible(after):
                    options.append((item, after))
            found = self._steps[counts] = tuple(options)
        return found


class RepeatFrame(Frame):
    """What remains of a repeat after ``counts``."""

    __slots__ = ("counts", "plan")

    def __init__(self, plan: RepeatPlan, counts: Counts) -> None:
        self.plan, self.counts = plan, counts

    @classmethod
    def of(cls, plan: RepeatPlan) -> RepeatFrame:
        """The frame at the start of the repeat."""
        return plan.frame((0,) * (1 + len(plan.node.kinds)))

    def expand(self, automaton: Pushdown, below: Stack, closure: Expansion) -> None:
        """End here, or go on with one more item."""
        plan, counts = self.plan, self.counts
        if plan.complete(counts):
            closure.work.append(below)
        started = counts[0] > 0
        for item, after in plan.steps(counts):
            frames: tuple[Frame, ...] = (item, plan.frame(after))
            if started:
                frames = (*plan.separator, *frames)
            closure.push(automaton, frames, below)
