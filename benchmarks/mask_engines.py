"""The engines that the mask benchmarks compare, behind one interface.

Each has compile(schema), matcher(grammar), fill(matcher) -> packed row, accept(matcher, token),
complete(matcher) and states(grammar).
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np


class Ours:
    """This package."""

    def __init__(self, folder: Path, order: str) -> None:
        from tokenizers import Tokenizer

        from sglang_lite.constrained import GrammarCompiler, Vocabulary, allocate_token_bitmask

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer, eos_token_ids=eos_of(folder))
        started = time.perf_counter()
        GrammarCompiler(self.vocabulary).prepare()
        self.setup = time.perf_counter() - started
        self.bitmask = allocate_token_bitmask(1, self.vocabulary.size)
        self.order = order
        self._compiler = GrammarCompiler

    def compile(self, schema: str) -> Any:
        return self._compiler(self.vocabulary).compile_json_schema(
            schema, property_order=self.order
        )

    def matcher(self, grammar: Any) -> Any:
        from sglang_lite.constrained import GrammarMatcher

        return GrammarMatcher(grammar)

    def fill(self, matcher: Any) -> np.ndarray:
        matcher.fill_next_token_bitmask(self.bitmask)
        return self.bitmask[0]

    def accept(self, matcher: Any, token: int) -> bool:
        return matcher.accept_token(token)

    def complete(self, matcher: Any) -> bool:
        return matcher.is_completed()

    def states(self, grammar: Any) -> int:
        return grammar.automaton.state_count


class LLGuidance:
    """llguidance, its defaults."""

    def __init__(self, folder: Path, order: str) -> None:
        import llguidance
        import llguidance.numpy as bitmasks

        text = (folder / "tokenizer.json").read_text()
        self.tokenizer = llguidance.LLTokenizer(text, eos_token=eos_of(folder)[0])
        self.bitmask = bitmasks.allocate_token_bitmask(1, self.tokenizer.vocab_size)
        self._fill = bitmasks.fill_next_token_bitmask
        self._matcher = llguidance.LLMatcher

    def compile(self, schema: str) -> Any:
        matcher = self._matcher(
            self.tokenizer, self._matcher.grammar_from_json_schema(schema), log_level=0
        )
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def matcher(self, grammar: Any) -> Any:
        return grammar.deep_copy()

    def fill(self, matcher: Any) -> np.ndarray:
        self._fill(matcher, self.bitmask, 0)
        return self.bitmask[0]

    def accept(self, matcher: Any, token: int) -> bool:
        return matcher.consume_token(token)

    def complete(self, matcher: Any) -> bool:
        return matcher.is_accepting()

    def states(self, grammar: Any) -> int:
        return 0


class XGrammar:
    """xgrammar, with open objects as the specification has them."""

    def __init__(self, folder: Path, order: str) -> None:
        import xgrammar
        from tokenizers import Tokenizer

        from sglang_lite.constrained import Vocabulary

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        vocabulary = Vocabulary.from_tokenizer(tokenizer, eos_token_ids=eos_of(folder))
        info = xgrammar.TokenizerInfo(
            vocabulary.token_bytes,
            vocab_type=xgrammar.VocabType.RAW,
            stop_token_ids=list(vocabulary.eos_token_ids),
        )
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.bitmask = xgrammar.allocate_token_bitmask(1, info.vocab_size)
        self.row = self.bitmask.numpy()[0]
        self._matcher = xgrammar.GrammarMatcher
        self.eos = vocabulary.eos_token_ids[0]

    def compile(self, schema: str) -> Any:
        return self.compiler.compile_json_schema(schema, strict_mode=False)

    def matcher(self, grammar: Any) -> Any:
        return self._matcher(grammar)

    def fill(self, matcher: Any) -> np.ndarray:
        if not matcher.fill_next_token_bitmask(self.bitmask, 0):
            self.row[:] = -1
        return self.row

    def accept(self, matcher: Any, token: int) -> bool:
        return matcher.accept_token(token)

    def complete(self, matcher: Any) -> bool:
        row = self.fill(matcher)
        return bool(row[self.eos >> 5] >> (self.eos & 31) & 1)

    def states(self, grammar: Any) -> int:
        return 0


class OutlinesCore:
    """outlines-core: a regular expression, and an index of every state's tokens at compile time.

    Its compilation can take minutes and gigabytes, so it runs isolated, with limits.
    """

    isolated = True

    def __init__(self, folder: Path, order: str) -> None:
        from outlines_core import Vocabulary as OutlinesVocabulary
        from tokenizers import Tokenizer

        from sglang_lite.constrained import Vocabulary

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        vocabulary = Vocabulary.from_tokenizer(tokenizer, eos_token_ids=eos_of(folder))
        self.eos = vocabulary.eos_token_ids[0]
        ids: dict[bytes, list[int]] = {}
        for token, text in enumerate(vocabulary.token_bytes):
            if text and token not in vocabulary.eos_token_ids:
                ids.setdefault(text, []).append(token)
        self.vocabulary = OutlinesVocabulary(self.eos, ids)
        self.row = np.zeros((vocabulary.size + 31) // 32, np.int32)

    def compile(self, schema: str) -> Any:
        from outlines_core import Index
        from outlines_core.json_schema import build_regex_from_schema

        return Index(build_regex_from_schema(schema), self.vocabulary)

    def matcher(self, grammar: Any) -> Any:
        from outlines_core import Guide

        return Guide(grammar)

    def fill(self, matcher: Any) -> np.ndarray:
        matcher.write_mask_into(self.row.ctypes.data, self.row.size, self.row.itemsize)
        return self.row

    def accept(self, matcher: Any, token: int) -> bool:
        matcher.advance(token, return_tokens=False)
        return True

    def complete(self, matcher: Any) -> bool:
        return bool(self.fill(matcher)[self.eos >> 5] >> (self.eos & 31) & 1)

    def states(self, grammar: Any) -> int:
        return 0


ENGINES: dict[str, Any] = {
    "sglang_lite": Ours,
    "llguidance": LLGuidance,
    "xgrammar": XGrammar,
    "outlines-core": OutlinesCore,
}


def eos_of(folder: Path) -> list[int]:
    """The EOS id that the folder's tokenizer_config.json names."""
    config = json.loads((folder / "tokenizer_config.json").read_text())
    name = config["eos_token"]
    name = name if isinstance(name, str) else name["content"]
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    return [token["id"] for token in added if token["content"] == name]
