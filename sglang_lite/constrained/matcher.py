"""The matcher: where one generated text stands in a compiled grammar."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sglang_lite.constrained.compiled import CompiledGrammar
from sglang_lite.constrained.states import State
from sglang_lite.errors import InvalidRequest

Bitmask = NDArray[np.int32]

_INT32 = np.dtype(np.int32)

MAX_JUMP = 1 << 16
"""Bytes that one jump-forward string may have."""


def allocate_token_bitmask(batch_size: int, vocab_size: int) -> Bitmask:
    """An int32 array [batch_size, ceil(vocab_size / 32)], all bits 1.

    Bit ``i % 32`` of word ``i // 32`` of a row says that token ``i`` is allowed.
    """
    return np.full((batch_size, (vocab_size + 31) // 32), -1, np.int32)


class GrammarMatcher:
    """Follows one text, token by token; the names are xgrammar's.

    Not for several threads at once; matchers of one grammar may run in different threads.
    No method raises for a token that the grammar refuses: ``accept_token`` returns False and
    changes nothing.
    """

    __slots__ = ("_eos", "_history", "_state", "_terminated", "_words", "compiled")

    def __init__(self, compiled: CompiledGrammar) -> None:
        self.compiled = compiled
        self._words = compiled.vocabulary.tables.words
        self._eos = compiled.vocabulary.eos_token_ids
        self._state = compiled.automaton.start
        self._terminated = False
        self._history: list[State] = []

    def fill_next_token_bitmask(self, bitmask: Bitmask, index: int = 0) -> None:
        """Write the mask of the next token to row ``index`` of ``bitmask`` (int32 [B, W]).

        ``W`` = ceil(vocabulary size / 32) words.  EOS bits are set exactly where the text so far is
        complete; after an EOS only they are.
        """
        shape = bitmask.shape
        if len(shape) != 2 or shape[1] != self._words or bitmask.dtype != _INT32:
            shown = f"{bitmask.dtype} {bitmask.shape}"
            raise InvalidRequest("bitmask", shown, f"an int32 array [batch, {self._words}]")
        mask = self.next_token_mask if self._terminated else self._state.mask
        if mask is None:
            self.compiled.fill(self._state, bitmask[index])
        else:
            bitmask[index] = mask

    @property
    def next_token_mask(self) -> Bitmask:
        """The same mask as int32 [W], shared by all matchers at this place: not to be written."""
        if self._terminated:
            return self.compiled.vocabulary.tables.pack(np.array(self._eos, np.int32))
        mask = self._state.mask
        return self.compiled.mask(self._state) if mask is None else mask

    def accept_token(self, token_id: int) -> bool:
        """Go on by one token; False, and nothing happens, if the mask refuses it."""
        state = self._state
        following = None if self._terminated else state.tokens.get(token_id)
        if following is None:
            if self._terminated:
                return False
            if token_id in self._eos:
                if state.accepting:
                    self._history.append(state)
                    self._terminated = True
                return state.accepting
            following = self.compiled.advance(state, token_id)
            if following is None:
                return False
        self._history.append(state)
        self._state = following
        return True

    def accept_string(self, text: str | bytes) -> bool:
        """Go on by ``text``, whatever its tokens; False, and nothing happens, if it is refused.

        Counts as one step for :meth:`rollback`.
        """
        if self._terminated:
            return False
        state = self._state
        for byte in text.encode() if isinstance(text, str) else text:
            following = self.compiled.automaton.step(state, byte)
            if following is None:
                return False
            state = following
        self._history.append(self._state)
        self._state = state
        return True

    def complete_prefix(self, token_id: int) -> bytes:
        """The longest beginning of a token's bytes after which the text would be complete.

        b"" where there is none.  Changes nothing.
        """
        texts = self.compiled.vocabulary.token_bytes
        piece = texts[token_id] if 0 <= token_id < len(texts) else b""
        state, length = self._state, 0
        for count, byte in enumerate(b"" if self._terminated else piece, 1):
            following = self.compiled.automaton.step(state, byte)
            if following is None:
                break
            state = following
            length = count if state.accepting else length
        return piece[:length]

    def rollback(self, num_tokens: int = 1) -> None:
        """Undo the last ``num_tokens`` accepted steps (an EOS is one); any number of them."""
        if not 0 <= num_tokens <= len(self._history):
            accepted = f"from 0 to the {len(self._history)} accepted tokens"
            raise InvalidRequest("num_tokens", num_tokens, accepted)
        if num_tokens:
            self._state = self._history[-num_tokens]
            del self._history[-num_tokens:]
            self._terminated = False

    def reset(self) -> None:
        """Back to the beginning of the text."""
        self._state = self.compiled.automaton.start
        self._terminated = False
        self._history = []

    def fork(self) -> GrammarMatcher:
        """A matcher at the same place, independent from now on."""
        copy = GrammarMatcher(self.compiled)
        copy._state = self._state
        copy._terminated = self._terminated
        copy._history = list(self._history)
        return copy

    def is_completed(self) -> bool:
        """True where the text so far is a text of the grammar (it may still go on)."""
        return self._state.accepting

    def is_terminated(self) -> bool:
        """True once an EOS was accepted."""
        return self._terminated

    @property
    def num_steps(self) -> int:
        """Accepted steps so far, which :meth:`rollback` can undo."""
        return len(self._history)

    def prefetch(self, seconds: float) -> int:
        """Make masks that are likely to be needed next; how many were made.

        To be called while the model computes the token that follows: the mask of this place is made
        if it was not yet, then those after the tokens that the grammar itself names (punctuation,
        keys, listed values; tokens of free text mostly lead back here), until ``seconds`` are over,
        which the last mask may exceed.  Changes nothing but what is remembered, so another thread
        may do it while this matcher is used.
        """
        end = time.perf_counter() + seconds
        state = self._state
        if self._terminated:
            return 0
        made = int(state.mask is None)
        self.compiled.mask(state)
        for token in self.compiled.named_tokens(state):
            if time.perf_counter() >= end:
                break
            following = self.compiled.advance(state, token)
            if following is not None and following.mask is None:
                self.compiled.mask(following)
                made += 1
        return made

    # -- forced text -----------------------------------------------------------------------------

    def find_jump_forward_string(self) -> str:
        """The text that must come next, whole characters only; "" where there is a choice.

        Ends where the text may end or more than one byte is possible.  Changes nothing.
        """
        text = self._forced()[0]
        for cut in range(4):
            try:
                return text[: len(text) - cut].decode()
            except UnicodeDecodeError:
                continue
        return ""

    def _forced(self) -> tuple[bytes, State]:
        """The forced bytes, and the state after them."""
        state, text = self._state, bytearray()
        while not (state.accepting or self._terminated) and len(text) < MAX_JUMP:
            with self.compiled.automaton.meter:
                byte = _only_byte(state)
            if byte is None:
                break
            following = self.compiled.automaton.step(state, byte)
            if following is None:
                break
            text.append(byte)
            state = following
        return bytes(text), state

    def find_forced_tokens(self, limit: int = 64) -> list[int]:
        """Tokens that must come next in the tokenizer's own segmentation, at most ``limit``.

        The forced text is cut the way the tokenizer would cut it.  Tokens near its end are held
        back where a token of what may follow could begin inside them, so that forcing never
        prevents a segmentation that the model would choose.  Changes nothing.
        """
        text, after = self._forced()
        if not text or limit <= 0:
            return []
        end = self._first_crossing(text, after)
        tokens: list[int] = []
        position = 0
        for token in self._segment(text):
            position += len(self.compiled.vocabulary.token_bytes[token])
            if position > end or len(tokens) == limit:
                break
            tokens.append(token)
        return tokens

    def _first_crossing(self, text: bytes, after: State) -> int:
        """The first place in ``text`` at which a token begins that reaches beyond its end."""
        if not after.configurations:
            return len(text)
        automaton = self.compiled.automaton
        trie = self.compiled.vocabulary.trie
        following = [byte for byte in range(256) if automaton.step(after, byte) is not None]
        # A token cannot be longer than the longest one: earlier places need no look.
        for start in range(max(0, len(text) - trie.longest), len(text)):
            place = trie.walk(text[start:])
            if place is not None and any(place.get(byte) is not None for byte in following):
                return start
        return len(text)

    def _segment(self, text: bytes) -> list[int]:
        vocabulary = self.compiled.vocabulary
        if vocabulary.encode is not None:
            try:
                tokens = list(vocabulary.encode(text.decode()))
            except UnicodeDecodeError:
                tokens = []
            if tokens and b"".join(vocabulary.token_bytes[t] for t in tokens) == text:
                return tokens
        return self._greedy(text)

    def _greedy(self, text: bytes) -> list[int]:
        """The longest token first, again and again."""
        tokens: list[int] = []
        trie = self.compiled.vocabulary.trie
        position = 0
        while position < len(text):
            token, length = trie.longest_match(text, position)
            if not length:
                break
            tokens.append(token)
            position += length
        return tokens

    # -- for people ------------------------------------------------------------------------------

    def describe(self) -> list[str]:
        """What may come next, in words, one alternative an item."""
        if self._terminated:
            return ["nothing: the text has ended"]
        with self.compiled.automaton.meter:
            found = [c.cursor.describe() for c in self._state.configurations]
        if self._state.accepting:
            found.append("the end of the text")
        return list(dict.fromkeys(found))


def _only_byte(state: State) -> int | None:
    """The only byte that may come next, or None where there are several."""
    found: int | None = None
    for configuration in state.configurations:
        for byte in configuration.cursor.first_bytes():
            if found is not None and byte != found:
                return None
            found = byte
    return found


def batch_fill_next_token_bitmask(
    matchers: Sequence[GrammarMatcher | None], bitmask: Bitmask
) -> None:
    """Fill row i of ``bitmask`` (int32 [B, W]) for ``matchers[i]``; None allows everything."""
    if len(matchers) > len(bitmask):
        accepted = f"an array with a row for each of the {len(matchers)} matchers"
        raise InvalidRequest("bitmask", bitmask.shape, accepted)
    for index, matcher in enumerate(matchers):
        if matcher is None:
            bitmask[index] = -1
        else:
            matcher.fill_next_token_bitmask(bitmask, index)
