"""What a terminal is: a deterministic automaton over bytes."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Targets = NDArray[np.int32]
"""For each byte the state it leads to, -1 where it is refused."""


class Bound(NamedTuple):
    """A state as one of a simpler automaton that does not count characters.

    ``boundary(s)`` says that a state of ``dfa`` lies between two characters of the text, and
    ``fits(s, n)`` whether in state ``s``, reached after ``n`` more whole characters, the text can
    still be completed (where ``dfa`` accepts: whether it is complete).  ``monotone``: what fits
    after some characters fits after fewer, too.
    """

    dfa: ByteDFA
    state: int
    boundary: Callable[[int], bool]
    fits: Callable[[int, int], bool]
    monotone: bool


@runtime_checkable
class ByteDFA(Protocol):
    """A deterministic automaton over bytes; states are ints, made on demand if need be.

    Every state that can be reached from ``start`` can still reach acceptance (dead states are -1),
    so no prefix it lets through is a dead end.  Equal languages may have unequal automata, but
    equal objects (``==``, ``hash``) must accept the same language with the same state numbers.
    Implementations pickle and may be used by several threads.
    """

    start: int

    def __hash__(self) -> int:
        return object.__hash__(self)

    def step(self, state: int, byte: int) -> int:
        """The state after ``byte``, or -1."""

    def row(self, state: int) -> Seq[int]:
        """The 256 targets of ``state``, -1 where the byte is refused."""

    def array(self, state: int) -> Targets:
        """:meth:`row` as int32[256]."""
        return np.array(self.row(state), np.int32)

    def accepts(self, state: int) -> bool:
        """True where the text so far is in the language."""

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the states made so far; 0 where all grammars share them."""
        return 0

    def needs(self, absent: frozenset[int]) -> bool:
        """False where every state is live even if the bytes ``absent`` cannot be written."""
        return True

    def endless(self, state: int) -> bool:
        """True where it is known that no text leads to a dead end or to the last text.

        Removing finitely many texts then leaves every later state live.
        """
        return False

    def alias(self, state: int) -> tuple[ByteDFA, int] | None:
        """Another automaton's state with the same language, which is to be used instead.

        How an unanchored pattern turns into a plain string once it has matched.
        """
        return None

    def bound(self, state: int) -> Bound | None:
        """Where only a bound on the length tells this automaton from a simpler one: that one."""
        return None

    def like(self, state: int) -> tuple[ByteDFA, int] | None:
        """A state of a standard terminal that keeps exactly the same tokens *inside*.

        A byte sequence stays within this automaton without passing an accepting state if and only
        if it does so in the other one; only how both accept may differ.  None where unknown.
        """
        return None

    def near(self, state: int, horizon: int) -> int:
        """A state that does the same as ``state`` with every byte sequence of up to ``horizon``.

        States whose counters are far from their bounds share their token tables that way.
        """
        return state

    def twins(self, one: int, other: int, met: Seq[int]) -> list[int] | None:
        """For each state of ``met`` its image, if ``other`` does there what ``one`` does.

        ``met`` are the states that a set of byte sequences leads through from ``one``.  From
        ``other`` they then lead through the images, one to one, and are refused and accepted alike.
        None where that is not so, or not known.
        """
        return None
