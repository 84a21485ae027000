"""For vocabularies that cannot write every byte: states that no sequence of tokens leads out of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sglang_lite.constrained.pushdown import Pushdown
from sglang_lite.constrained.states import State
from sglang_lite.constrained.tables import Row

if TYPE_CHECKING:
    from sglang_lite.constrained.vocabulary import Vocabulary

MAX_SEARCH = 20_000


class Liveness:
    """Which states of an automaton some sequence of tokens completes."""

    def __init__(self, vocabulary: Vocabulary, automaton: Pushdown) -> None:
        self._texts = [(i, text) for i, text in enumerate(vocabulary.token_bytes) if text]
        self._automaton = automaton
        self._known: dict[State, bool] = {}

    def filter(self, state: State, mask: Row) -> Row:
        """``mask`` without the tokens after which no sequence of tokens completes the text."""
        kept = mask.copy()
        for token, text in self._texts:
            if mask[token >> 5] >> (token & 31) & 1:
                target = self._after(state, text)
                if target is None or not self.alive(target):
                    kept[token >> 5] &= ~np.left_shift(1, token & 31, dtype=np.int32)
        return kept

    def alive(self, state: State) -> bool:
        """True where tokens lead from ``state`` to the end of a text.

        Searches at most ``MAX_SEARCH`` states; beyond that a state counts as alive.
        """
        if state in self._known:
            return self._known[state]
        came_from: dict[State, State | None] = {state: None}
        work = [state]
        while work:
            here = work.pop()
            if here.accepting or self._known.get(here) or len(came_from) > MAX_SEARCH:
                back: State | None = here
                while back is not None:
                    self._known[back] = True
                    back = came_from[back]
                return True
            for _, text in self._texts:
                target = self._after(here, text)
                if target is None or target in came_from or self._known.get(target) is False:
                    continue
                came_from[target] = here
                work.append(target)
        self._known.update(dict.fromkeys(came_from, False))
        return False

    def _after(self, state: State, text: bytes) -> State | None:
        here: State | None = state
        for byte in text:
            here = self._automaton.step(here, byte) if here is not None else None
        return here
