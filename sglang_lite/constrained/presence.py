"""Can an object be completed?  Presence clauses and counts over its members, decided exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count as counter
from typing import TYPE_CHECKING

from sglang_lite.errors import GrammarTooComplex

if TYPE_CHECKING:
    from sglang_lite.constrained.ir import ByteDFA, Clause, Extra, Member

MAX_BRANCHES = 20_000
MAX_STEPS = 100_000


class Presence:
    """Which sets of members an object may have.

    Sets of members are ints, bit i for member i.  ``usable`` are those whose name is not forbidden,
    ``required`` those that must come, ``relevant`` those that a clause looks at.  ``spare`` is the
    number of other keys there can be, None for any number.
    """

    def __init__(
        self,
        members: Sequence[Member],
        extras: Sequence[Extra],
        minimum: int,
        maximum: int | None,
        clauses: Sequence[Clause],
    ) -> None:
        self.required = self.usable = self.relevant = 0
        for index, member in enumerate(members):
            if not member.value.never:
                self.usable |= 1 << index
            if member.required:
                self.required |= 1 << index
        self.clauses = tuple((_bits(c.present), _bits(c.absent)) for c in clauses)
        for present, absent in self.clauses:
            self.relevant |= present | absent
        # Where the required members suffice, the lower bound says nothing.
        self.minimum = 0 if minimum <= self.required.bit_count() else minimum
        self.maximum = maximum
        self.plain = not self.clauses and self.minimum == 0 and maximum is None
        self.spare: int | None = 0
        if extras:
            self.spare = capacity(members, extras, self.minimum) if self.minimum > 1 else None

    def completable(self, seen: int, open_: int, count: int, spare: int | None = None) -> bool:
        """True if members out of ``open_`` can be added to ``seen`` so that everything holds.

        ``count`` is the number of keys so far; ``spare`` other keys may still come (default: all).
        """
        if self.required & ~seen & ~open_:
            return False
        extra = self.spare if spare is None else spare
        add = self.required & ~seen
        free = open_ & self.usable & ~add
        if add & ~self.usable:
            return False
        return self._solve(seen | add, free, count + add.bit_count(), extra, counter())

    def _solve(
        self, present: int, free: int, count: int, extra: int | None, cases: Iterator[int]
    ) -> bool:
        """Branch on the members of unsatisfied clauses (DPLL with unit propagation).

        What is neither in ``present`` nor in ``free`` is absent.
        """
        if next(cases) >= MAX_BRANCHES:
            raise GrammarTooComplex(
                f"the presence rules of an object need more than {MAX_BRANCHES} cases"
            )
        while True:
            branch = forced = 0
            for wanted, unwanted in self.clauses:
                add, drop = wanted & free, unwanted & free
                if wanted & present or unwanted & ~(present | free) or add & drop:
                    continue
                forced = branch = add | drop
                if not forced:
                    return False
                if forced & (forced - 1):
                    forced = 0
                    continue
                free &= ~forced
                if add:
                    present |= forced
                    count += 1
                break
            if not forced:
                break
        if self.maximum is not None and count > self.maximum:
            return False
        if not branch:
            most = None if extra is None else count + free.bit_count() + extra
            bounds = [bound for bound in (most, self.maximum) if bound is not None]
            return min(bounds, default=self.minimum) >= self.minimum
        bit = branch & -branch
        rest = free & ~bit
        return self._solve(present, rest, count, extra, cases) or self._solve(
            present | bit, rest, count + 1, extra, cases
        )


def _bits(indices: Sequence[int]) -> int:
    bits = 0
    for index in indices:
        bits |= 1 << index
    return bits


def capacity(members: Sequence[Member], extras: Sequence[Extra], wanted: int) -> int | None:
    """How many undeclared keys there are, None if at least ``wanted`` or infinitely many."""
    if any(is_infinite(extra.key) for extra in extras):
        return None
    declared = {member.key for member in members}
    found: set[bytes] = set()
    work = [(extra.key, extra.key.start, b"") for extra in extras]
    steps = 0
    while work:
        dfa, state, text = work.pop()
        steps += 1
        if steps > MAX_STEPS:
            raise GrammarTooComplex(
                f"counting the possible keys of an object takes more than {MAX_STEPS} steps"
            )
        if dfa.accepts(state) and text not in declared:
            found.add(text)
            if len(found) >= wanted:
                return None
        work += [
            (dfa, target, text + bytes((byte,)))
            for byte, target in enumerate(dfa.row(state))
            if target >= 0
        ]
    return len(found)


def is_infinite(dfa: ByteDFA) -> bool:
    """True where some state can come again: all states are live, so words can be pumped."""
    done: set[int] = set()
    path: dict[int, None] = {dfa.start: None}
    work = [(dfa.start, iter({t for t in dfa.row(dfa.start) if t >= 0}))]
    while work:
        state, following = work[-1]
        target = next(following, None)
        if dfa.endless(state) or target in path:
            return True
        if target is None:
            work.pop()
            path.pop(state)
            done.add(state)
        elif target not in done:
            if len(done) + len(path) > MAX_STEPS:
                raise GrammarTooComplex(f"the keys of an object take more than {MAX_STEPS} states")
            path[target] = None
            work.append((target, iter({t for t in dfa.row(target) if t >= 0})))
    return False
