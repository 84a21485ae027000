"""From constraints to compiled grammars: dispatch to the front ends, budgets, and a cache."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sglang_lite.constrained import analysis, budget, ir
from sglang_lite.constrained.front_ends import (
    OnUnsupported,
    forget_automata,
    lower_constraint,
    source_bytes,
)
from sglang_lite.constrained.liveness import Liveness
from sglang_lite.constrained.masks import recipe, state_mask, write_mask
from sglang_lite.constrained.pushdown import Pushdown
from sglang_lite.constrained.states import State
from sglang_lite.constrained.tables import Row
from sglang_lite.constrained.vocabulary import Vocabulary
from sglang_lite.constrained.writable import writable
from sglang_lite.constraint import (
    Choice,
    Constraint,
    Grammar,
    JsonSchema,
    PropertyOrder,
    Regex,
    StructuralTag,
)
from sglang_lite.errors import (
    ConstraintError,
    GrammarTooComplex,
    InvalidRequest,
    UnsatisfiableSchema,
)

_SAMPLE = b'{ "a\xc3\xa9": [1, -2.5e+7, "x\\n", true, {"b": null}, [] ],\n  "c": 0 }'
"""A text with each of JSON's terminals in it."""

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


class GrammarCompiler:
    """Compiles constraints for one vocabulary, with a cache; thread-safe.

    Masks are made of many small long-lived objects, so the cyclic garbage collector costs two to
    three times the work itself: call ``gc.freeze()`` once the model and the compiler stand, and
    raise ``gc.set_threshold`` (or collect between requests).
    """

    def __init__(self, vocabulary: Vocabulary, limits: Limits | None = None) -> None:
        self.vocabulary = vocabulary
        self.limits = limits or Limits()
        self._lock = threading.Lock()
        self._cache: OrderedDict[Any, CompiledGrammar] = OrderedDict()
        self._busy: dict[Any, threading.Lock] = {}

    def prepare(self) -> None:
        """Make the token tables of JSON's own terminals now (tens of milliseconds).

        Otherwise the first requests pay for them.
        """
        self.vocabulary.tables.prepare()
        grammar = self.compile(JsonSchema.of({"type": "object"}))
        state: State | None = grammar.automaton.start
        for byte in _SAMPLE:
            if state is not None:
                grammar.mask(state)
                state = grammar.automaton.step(state, byte)

    # -- the constraints -------------------------------------------------------------------------

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        """The compiled grammar of any constraint.

        Raises :class:`ConstraintError` (its subclasses say what is wrong where).
        """
        return self._cached(constraint, "error")

    def compile_regex(self, pattern: str) -> CompiledGrammar:
        """The whole text matches ``pattern`` (Python's syntax)."""
        return self.compile(Regex(pattern))

    def compile_json_schema(
        self,
        schema: str | bool | Mapping[str, Any] | type,
        *,
        property_order: PropertyOrder = "schema",
        max_whitespace: int = 16,
        separators: tuple[str, str] | None = None,
        additional_properties: bool = True,
        max_digits: int | None = None,
        on_unsupported: OnUnsupported = "error",
    ) -> CompiledGrammar:
        """The text is a JSON value that satisfies ``schema``; see :class:`JsonSchema`.

        ``separators`` = (between items, between key and value) fixes the whitespace altogether.
        With ``on_unsupported="warn"`` a keyword that cannot be enforced is left out and named in
        the grammar's ``warnings``; by default it raises :class:`UnsupportedSchema`.
        """
        # The front end reads text and refuses what is no schema; ``of`` would read it once more.
        make = JsonSchema if isinstance(schema, str) else JsonSchema.of
        spec = make(
            schema,  # type: ignore[arg-type]
            property_order=property_order,
            max_whitespace=max_whitespace,
            additional_properties=additional_properties,
            max_digits=max_digits,
            separators=separators,
        )
        return self._cached(spec, on_unsupported)

    def compile_choice(self, choices: Iterable[str]) -> CompiledGrammar:
        """The text is one of ``choices``."""
        return self.compile(Choice(tuple(choices)))

    def compile_grammar(
        self,
        text: str,
        syntax: Literal["ebnf", "lark"] = "ebnf",
        *,
        start: str | None = None,
    ) -> CompiledGrammar:
        """The text derives from a grammar in (GB)NF's or Lark's notation, from its rule ``start``.

        By default that is ``root`` in EBNF and ``start`` in Lark.
        """
        return self.compile(Grammar(text, syntax, start))

    def compile_structural_tag(self, spec: str | Mapping[str, Any]) -> CompiledGrammar:
        """Free text in which triggers start constrained tags."""
        return self.compile(StructuralTag.of(spec))

    def clear_cache(self) -> None:
        """Forget all compiled grammars."""
        with self._lock:
            self._cache.clear()

    @property
    def cache_size_bytes(self) -> int:
        """Approximate memory of the cached grammars."""
        with self._lock:
            return sum(grammar.memory_size_bytes for grammar in self._cache.values())

    # -- cache -----------------------------------------------------------------------------------

    def _cached(self, constraint: Constraint, on_unsupported: OnUnsupported) -> CompiledGrammar:
        key = (constraint, on_unsupported)
        with self._lock:
            found = self._cache.get(key)
            if found is not None and not found.used_up:
                self._cache.move_to_end(key)
                return found
            busy = self._busy.setdefault(key, threading.Lock())
        try:
            with busy:
                # Whoever waited here finds the grammar that the first thread made.
                with self._lock:
                    found = self._cache.get(key)
                if found is None or found.used_up:
                    if found is not None:
                        forget_automata()
                    found = self._compile(constraint, on_unsupported)
        finally:
            with self._lock:
                self._busy.pop(key, None)
        with self._lock:
            self._cache[key] = found
            self._evict()
        return found

    def _evict(self) -> None:
        """Drop the least recently used grammars; weighs a large cache at every 16th insertion."""
        if len(self._cache) == 1 or (len(self._cache) > 16 and len(self._cache) % 16):
            return
        total = sum(grammar.memory_size_bytes for grammar in self._cache.values())
        while total > self.limits.cache_bytes and len(self._cache) > 1:
            _, oldest = self._cache.popitem(last=False)
            total -= oldest.memory_size_bytes

    def _compile(self, constraint: Constraint, on_unsupported: OnUnsupported) -> CompiledGrammar:
        size = source_bytes(constraint)
        if size > self.limits.source_bytes:
            raise GrammarTooComplex(
                f"the constraint has {size} bytes, the budget is {self.limits.source_bytes}"
            )
        try:
            with budget.time_limit(self.limits.seconds):
                language = lower_constraint(constraint, on_unsupported)
                try:
                    return CompiledGrammar(self.vocabulary, language, self.limits)
                except ConstraintError:
                    if isinstance(constraint, JsonSchema) and analysis.prepare(language).root.never:
                        reason = "no finite JSON value satisfies it"
                        raise UnsatisfiableSchema("", reason) from None
                    raise
        except RecursionError:
            raise GrammarTooComplex("the constraint is nested too deeply") from None
