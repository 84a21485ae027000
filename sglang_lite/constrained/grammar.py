"""Grammars and choices to the IR: the entry points of this family of modules.

``grammar_lark`` and ``grammar_ebnf`` read the two notations, ``grammar_expression`` fuses what is
regular into terminals, ``grammar_rules`` makes recursion fit for the engine.
"""

from __future__ import annotations

from collections.abc import Iterable

from sglang_lite.constrained import ir
from sglang_lite.constrained.grammar_ebnf import lower_ebnf
from sglang_lite.constrained.grammar_lark import lower_lark
from sglang_lite.errors import GrammarTooComplex, InvalidGrammar, InvalidRequest

MAX_TEXT = 2_000_000
"""Longest grammar text, in characters."""


def lower_grammar(text: str, syntax: str = "ebnf", *, start: str | None = None) -> ir.Language:
    """The language of the grammar ``text``.

    ``syntax`` is "ebnf" (llama.cpp's GBNF, xgrammar's EBNF) or "lark"; ``start`` names the first
    rule, by default ``root`` in EBNF and ``start`` in Lark.  Raises InvalidGrammar with line and
    column for what is malformed or cannot be enforced, GrammarTooComplex beyond a budget.
    """
    if not isinstance(text, str):
        raise InvalidRequest("grammar", text, "a str")
    if len(text) > MAX_TEXT:
        raise GrammarTooComplex(f"the grammar has {len(text)} characters, at most {MAX_TEXT} fit")
    if not text.strip():
        raise InvalidGrammar("the grammar is empty")
    try:
        if syntax == "ebnf":
            return lower_ebnf(text, start or "root")
        if syntax == "lark":
            return lower_lark(text, start or "start")
    except RecursionError:
        raise GrammarTooComplex("the grammar is nested too deeply") from None
    raise InvalidRequest("syntax", syntax, "'ebnf' or 'lark'")


def lower_choice(choices: Iterable[str]) -> ir.Language:
    """Exactly one of ``choices``; one may be a prefix of another, or empty."""
    texts = list(choices)
    for text in texts:
        if not isinstance(text, str):
            raise InvalidRequest("choices", text, "a list of str")
    if not texts:
        raise InvalidRequest("choices", texts, "at least one choice")
    try:
        return ir.Language(ir.literals(texts))
    except UnicodeEncodeError as error:
        raise InvalidRequest("choices", error.object, "text without lone surrogates") from None
