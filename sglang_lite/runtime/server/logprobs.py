"""Texts of single tokens: what log probabilities are labelled with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sglang_lite.runtime.messages import TokenLogprob

if TYPE_CHECKING:
    from sglang_lite.runtime.tokenizer import Tokenizer

LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have; OpenAI's value."""


class TokenTexts:
    """A token's bytes, and a text that no other token's bytes share."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes = tokenizer.vocabulary.token_bytes

    def bytes_of(self, token: int) -> bytes:
        """The true bytes; a control token's are those of its name."""
        data = self._bytes[token] if 0 <= token < len(self._bytes) else b""
        return data or self._tokenizer.decode([token], skip_special_tokens=False).encode()

    def text_of(self, token: int) -> str:
        r"""The text; ``bytes:\xf0\x9f`` for a part of a character, as OpenAI writes it."""
        data = self.bytes_of(token)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def chat_content(
        self, tokens: Sequence[TokenLogprob], top: Sequence[Sequence[TokenLogprob]]
    ) -> list[dict[str, Any]]:
        """``choices[].logprobs.content`` of a chat completion."""
        content = []
        for number, pair in enumerate(tokens):
            entry = self._chat_entry(pair)
            alternatives = top[number] if number < len(top) else ()
            entry["top_logprobs"] = [self._chat_entry(other) for other in alternatives]
            content.append(entry)
        return content

    def _chat_entry(self, pair: TokenLogprob) -> dict[str, Any]:
        logprob, token = pair
        return {
            "token": self.text_of(token),
            "logprob": finite(logprob),
            "bytes": list(self.bytes_of(token)),
        }

    def completion_logprobs(
        self,
        tokens: Sequence[TokenLogprob],
        top: Sequence[Sequence[TokenLogprob]],
        start: int = 0,
    ) -> tuple[dict[str, Any], int]:
        """``choices[].logprobs`` of a text completion, and the offset after the last token.

        ``start`` is the offset of the first token, in characters.  Alternatives always include
        the token itself.  Where two tokens have the same text, the more probable one keeps the
        entry, because clients compare it with the maximum.
        """
        alternatives: list[dict[str, float] | None] = []
        for number, pair in enumerate(tokens):
            if pair[0] is None:
                alternatives.append(None)
                continue
            best: dict[str, float] = {}
            for logprob, token in [*(top[number] if number < len(top) else ()), pair]:
                name, value = self.text_of(token), finite(logprob)
                best[name] = max(value, best.get(name, value))
            alternatives.append(best)
        ids = [token for _, token in tokens]
        offsets = [start]
        for token in ids:
            # Every byte but a continuation byte begins a character.
            starts = sum(byte & 0xC0 != 0x80 for byte in self.bytes_of(token))
            offsets.append(offsets[-1] + starts)
        end = offsets.pop()
        made = {
            "tokens": [self.text_of(token) for token in ids],
            "token_logprobs": [None if p is None else finite(p) for p, _ in tokens],
            "top_logprobs": alternatives,
            "text_offset": offsets,
        }
        return made, end


def finite(logprob: float | None) -> float:
    """A number that JSON can hold."""
    return LOWEST if logprob is None or logprob < LOWEST else logprob
