"""Compiled grammars: the automaton of a language over a vocabulary, and its masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang_lite.constrained import analysis, budget, ir
from sglang_lite.constrained.liveness import Liveness
from sglang_lite.constrained.masks import recipe, state_mask, write_mask
from sglang_lite.constrained.pushdown import Pushdown
from sglang_lite.constrained.states import State
from sglang_lite.constrained.tables import Row
from sglang_lite.constrained.vocabulary import Vocabulary
from sglang_lite.constrained.writable import writable
from sglang_lite.errors import ConstraintError, InvalidRequest

BYTES_PER_STATE = 6000
"""Rough memory of one state's objects, next to its mask and a row of its own."""

NODE_BYTES = 700
"""Rough memory of a node of the language and of the frames made from it."""


@dataclass(frozen=True)
class Limits:
    """Budgets; exceeding one raises :class:`GrammarTooComplex` with the figure.

    * ``source_bytes``: size of a constraint's text
    * ``seconds``: processor time of the compiling thread to compile one
    * ``cache_bytes``: memory of the compile cache, least recently used grammars leave first
    * ``grammar_bytes``: memory of one grammar's states and masks; beyond it they are made anew
    """

    source_bytes: int = 4 << 20
    seconds: float = 10.0
    cache_bytes: int = 512 << 20
    grammar_bytes: int = 128 << 20

    def __post_init__(self) -> None:
        for name in ("source_bytes", "seconds", "cache_bytes", "grammar_bytes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
                raise InvalidRequest(name, value, "a positive number")


class CompiledGrammar:
    """A constraint ready to be matched; shared by any number of matchers and threads.

    States and masks are made when a text first visits them.  Pickles as vocabulary and grammar.
    """

    def __init__(
        self, vocabulary: Vocabulary, language: ir.Language, limits: Limits = Limits()
    ) -> None:
        """Raises :class:`ConstraintError` where no sequence of tokens satisfies ``language``."""
        self.vocabulary = vocabulary
        self.language = analysis.prepare(writable(language, vocabulary.absent_bytes))
        self.limits = limits
        if self.language.root.never:
            raise ConstraintError("no text at all satisfies the constraint")
        self.automaton = Pushdown(self.language, vocabulary.tables)
        # What stands for the bytes of a token that is left out: their own tokens.
        if vocabulary.trapped_bytes:
            self.automaton.meter = budget.Meter(bounded=False)
        self._weighed: tuple[int, int] | None = None
        self._liveness: Liveness | None = None
        if vocabulary.trapped_bytes:
            self._liveness = Liveness(vocabulary, self.automaton)
            if not self._liveness.alive(self.automaton.start):
                raise ConstraintError("no sequence of tokens writes a text of the constraint")
        per_state = BYTES_PER_STATE + 8 * vocabulary.tables.words
        self.max_states = max(64, limits.grammar_bytes // per_state)

    def __reduce__(self) -> tuple[Any, ...]:
        return (CompiledGrammar, (self.vocabulary, self.language, self.limits))

    def mask(self, state: State) -> Row:
        """The packed mask of ``state``, EOS where the text may end; not to be written to."""
        if state.mask is None:
            self._make_room()
            with self.automaton.meter:
                mask = state_mask(self.automaton, state, self.vocabulary.eos_token_ids)
            if self._liveness is not None:
                mask = self._liveness.filter(state, mask)
            state.mask = mask
        return state.mask

    def fill(self, state: State, row: Row) -> None:
        """Write the mask of ``state`` to ``row``.

        Mostly it is kept only once it is asked for again: most places of a grammar's own text are
        passed once, and to make room for a mask costs more than to make it.
        """
        first = state.mask is None and not state.passed and self._liveness is None
        if first and row.flags.c_contiguous:
            self._make_room()
            state.passed = True
            with self.automaton.meter:
                write_mask(self.automaton, state, self.vocabulary.eos_token_ids, row)
        else:
            row[:] = self.mask(state)

    def _make_room(self) -> None:
        if self.automaton.state_count > self.max_states:
            self.automaton.clear()

    def named_tokens(self, state: State) -> tuple[int, ...]:
        """The tokens that ``state`` allows one by one, not as one of a large set."""
        recipes = [recipe(self.automaton, c) for c in state.configurations]
        return tuple(dict.fromkeys(token for _, tokens in recipes for token in tokens))

    def advance(self, state: State, token: int) -> State | None:
        """The state after ``token`` (not an EOS), or None where the mask refuses it."""
        if token in state.tokens:
            return state.tokens[token]
        text = self.vocabulary.token_bytes[token] if 0 <= token < self.vocabulary.size else b""
        if not text:
            return None
        following = self.automaton.token(state, token, text)
        if following is not None and self._liveness and not self._liveness.alive(following):
            following = state.tokens[token] = None
        return following

    @property
    def warnings(self) -> tuple[str, ...]:
        """What ``on_unsupported="warn"`` left out, one sentence each."""
        return self.language.warnings

    @property
    def used_up(self) -> bool:
        """True where texts have led to so many states that masks leave long tokens out.

        The compiler makes such a grammar anew for the next request.
        """
        return self.automaton.meter.purse <= 0

    @property
    def memory_size_bytes(self) -> int:
        """Approximate memory of the grammar, its states and its masks."""
        # A walk over all states: done anew when there are more of them.
        known = self._weighed
        if known is None or known[0] != self.automaton.state_count:
            language = NODE_BYTES * analysis.node_count(self.language)
            known = self.automaton.state_count, language + self.automaton.size_bytes
            self._weighed = known
        return known[1]
