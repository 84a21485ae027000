"""Exact constraints: from a regex, a JSON Schema, a grammar or a tag to token masks.

The names follow xgrammar's::

    vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size=logits_width)
    grammar = GrammarCompiler(vocabulary).compile_json_schema(schema)
    matcher = GrammarMatcher(grammar)
    bitmask = allocate_token_bitmask(1, vocabulary.size)
    while not matcher.is_terminated():
        matcher.fill_next_token_bitmask(bitmask)
        matcher.accept_token(sample(logits, bitmask))

No torch here: masks are numpy arrays.
"""

from sglang_lite.constrained.compiled import CompiledGrammar, Limits
from sglang_lite.constrained.compiler import GrammarCompiler
from sglang_lite.constrained.matcher import (
    GrammarMatcher,
    allocate_token_bitmask,
    batch_fill_next_token_bitmask,
)
from sglang_lite.constrained.vocabulary import Vocabulary

__all__ = [
    "CompiledGrammar",
    "GrammarCompiler",
    "GrammarMatcher",
    "Limits",
    "Vocabulary",
    "allocate_token_bitmask",
    "batch_fill_next_token_bitmask",
]
