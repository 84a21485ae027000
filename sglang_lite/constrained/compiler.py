"""From constraints to compiled grammars: dispatch to the front ends, budgets, and a cache."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from sglang_lite.constrained import analysis, budget
from sglang_lite.constrained.compiled import CompiledGrammar, Limits
from sglang_lite.constrained.front_ends import (
    OnUnsupported,
    forget_automata,
    lower_constraint,
    source_bytes,
)
from sglang_lite.constrained.states import State
from sglang_lite.constrained.vocabulary import Vocabulary
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
    UnsatisfiableSchema,
)

_SAMPLE = b'{ "a\xc3\xa9": [1, -2.5e+7, "x\\n", true, {"b": null}, [] ],\n  "c": 0 }'
"""A text with each of JSON's terminals in it."""

_FORMATS = ("date-time", "date", "time", "email", "uri", "uuid", "ipv4", "ipv6", "hostname")
"""The formats that schemas mostly ask for: their automata are the same in all of them."""


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
        """Make the token tables of JSON's own terminals now, and the automata of common formats.

        That takes tens of milliseconds, which the first requests would pay for otherwise.
        """
        self.vocabulary.tables.prepare()
        formats = {name: {"type": "string", "format": name} for name in _FORMATS}
        self.compile(JsonSchema.of({"type": "object", "properties": formats}))
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
