"""Can an object be completed?  Presence clauses and counts over its members, decided exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count as counter
from typing import TYPE_CHECKING

from sglang_lite.errors import GrammarTooComplex

if TYPE_CHECKING:
    from sglang_lite.constrained.ir import ByteDFA, Clause, Extra, Member

MAX_BRANCHES = 5_000
MAX_PAIRS = 250_000
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
        bit = 1
        for _, value, required in members:
            if not value.never:
                self.usable |= bit
            if required:
                self.required |= bit
            bit <<= 1
        self.clauses: tuple[tuple[int, int], ...] = ()
        self._watched: dict[int, list[int]] = {}
        if clauses:
            self._watch(clauses)
        # Where the required members suffice, the lower bound says nothing.
        self.minimum = 0 if minimum <= self.required.bit_count() else minimum
        self.maximum = maximum
        self.plain = not self.clauses and self.minimum == 0 and maximum is None
        self.spare: int | None = 0
        if extras:
            self.spare = capacity(members, extras, self.minimum) if self.minimum > 1 else None

    def _watch(self, clauses: Sequence[Clause]) -> None:
        self.clauses = tuple((_bits(c.present), _bits(c.absent)) for c in clauses)
        for present, absent in self.clauses:
            self.relevant |= present | absent
        pairs = len(self.clauses) * self.relevant.bit_count()
        if pairs > MAX_PAIRS:
            raise GrammarTooComplex(
                f"{len(self.clauses)} presence rules over {self.relevant.bit_count()} members of"
                f" an object; at most {MAX_PAIRS} pairs of them"
            )
        for number, clause in enumerate(clauses):
            for index in {*clause.present, *clause.absent}:
                self._watched.setdefault(index, []).append(number)

    def completable(self, seen: int, open_: int, count: int, spare: int | None = None) -> bool:
        """True if members out of ``open_`` can be added to ``seen`` so that everything holds.

        ``count`` is the number of keys so far; ``spare`` other keys may still come (default: all).
        """
        add = self.required & ~seen
        if add & ~(open_ & self.usable):
            return False
        if self.plain:
            return True
        extra = self.spare if spare is None else spare
        free = open_ & self.usable & ~add
        every = list(range(len(self.clauses)))
        return self._solve(every, seen | add, free, count + add.bit_count(), extra, counter())

    def _solve(
        self,
        changed: list[int],
        present: int,
        free: int,
        count: int,
        extra: int | None,
        cases: Iterator[int],
    ) -> bool:
        """Branch on the members of unsatisfied clauses (DPLL with unit propagation).

        What is neither in ``present`` nor in ``free`` is absent; ``changed`` are the clauses to
        look at again.
        """
        if next(cases) >= MAX_BRANCHES:
            raise GrammarTooComplex(
                f"the presence rules of an object need more than {MAX_BRANCHES} cases"
            )
        while changed:
            wanted, unwanted = self.clauses[changed.pop()]
            add, drop = wanted & free, unwanted & free
            if wanted & present or unwanted & ~(present | free) or add & drop:
                continue
            forced = add | drop
            if not forced:
                return False
            if forced & (forced - 1) == 0:
                free &= ~forced
                if add:
                    present |= forced
                    count += 1
                changed += self._watched[forced.bit_length() - 1]
        if self.maximum is not None and count > self.maximum:
            return False
        left = [
            (wanted & free, unwanted & free)
            for wanted, unwanted in self.clauses
            if not (wanted & present or unwanted & ~(present | free) or wanted & unwanted & free)
        ]
        rest = free.bit_count()
        if not left:
            return self._counts(count, rest, extra)
        # Often all that is left may be absent, or all present.
        if all(drop for _, drop in left) and self._counts(count, 0, extra):
            return True
        if all(add for add, _ in left) and self._counts(count + rest, 0, extra):
            return True
        branch = left[0][0] | left[0][1]
        bit = branch & -branch
        free &= ~bit
        watched = self._watched[bit.bit_length() - 1]
        return self._solve(list(watched), present, free, count, extra, cases) or self._solve(
            list(watched), present | bit, free, count + 1, extra, cases
        )

    def _counts(self, count: int, free: int, extra: int | None) -> bool:
        """True where ``count`` keys, and some of ``free`` members and other keys, are enough."""
        if self.maximum is not None and max(count, self.minimum) > self.maximum:
            return False
        return extra is None or count + free + extra >= self.minimum


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
