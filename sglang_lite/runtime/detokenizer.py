"""Token ids to text as they come: never half a character, never a part of a stop text."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from sglang_lite.errors import EngineError, InvalidRequest

if TYPE_CHECKING:
    import regex

REGEX_WINDOW = 512
"""A stop pattern is searched in so many characters before the newest text, and in that."""

REGEX_SECONDS = 0.1


class IncrementalDetokenizer:
    """Decodes the tokens' bytes as UTF-8; an unfinished character waits for its last byte.

    Working on bytes makes every tokenizer alike: byte-level, byte fallback, or whole words, and a
    genuine U+FFFD in a text is just three bytes.  Bytes that can never be text become U+FFFD.
    """

    def __init__(self, piece_bytes: Callable[[int], bytes]) -> None:
        self._piece_bytes = piece_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that this token completes."""
        return self.push_bytes(self._piece_bytes(token))

    def push_bytes(self, piece: bytes) -> str:
        """The text that these bytes complete."""
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """What is left when no token follows: one U+FFFD for an unfinished character, or ""."""
        return self._decoder.decode(b"", final=True)


class StopScanner:
    """Finds the first stop in a text that comes in pieces, and holds back what may become one.

    Among stop texts the earliest position wins, then the longest.  A stop text is cut off unless
    ``keep``; what a stop *pattern* matches stays, because its start may have been sent already.
    """

    def __init__(
        self, stops: Sequence[str] = (), patterns: Sequence[str] = (), keep: bool = False
    ) -> None:
        """Raises :class:`InvalidRequest` for a bad pattern."""
        self._stops = tuple(stops)
        self._prefixes = _proper_prefixes(self._stops)
        self._longest_prefix = max(map(len, self._prefixes), default=0)
        self._patterns = [(text, compile_stop_pattern(text)) for text in patterns]
        self._keep = keep
        self._held = ""
        self._sent_tail = ""

    def push(self, text: str, may_stop: bool = True) -> tuple[str, str | None]:
        """New text in; out comes the text that is safe to send and the stop that matched, if any.

        ``may_stop`` False (too few tokens yet) lets stops pass as text.
        """
        if not self._stops and not self._patterns:
            return text, None
        buffer = self._held + text
        self._held = ""
        if may_stop:
            found = self._find_text(buffer) or self._find_pattern(buffer)
            if found:
                end, stop = found
                return buffer[:end], stop
        hold = self._partial_stop(buffer)
        sent = buffer[: len(buffer) - hold]
        self._held = buffer[len(sent) :]
        if self._patterns:
            self._sent_tail = (self._sent_tail + sent)[-REGEX_WINDOW:]
        return sent, None

    def flush(self) -> str:
        """The text still held back, when nothing follows that could make it a stop."""
        held, self._held = self._held, ""
        return held

    def _find_text(self, buffer: str) -> tuple[int, str] | None:
        hits = [(at, -len(stop), stop) for stop in self._stops if (at := buffer.find(stop)) >= 0]
        if not hits:
            return None
        at, _, stop = min(hits)
        return (at + len(stop) if self._keep else at), stop

    def _find_pattern(self, buffer: str) -> tuple[int, str] | None:
        window = self._sent_tail + buffer
        for text, pattern in self._patterns:
            try:
                match = pattern.search(window, timeout=REGEX_SECONDS)
            except TimeoutError:
                reason = f"stop_regex {text!r} took more than {REGEX_SECONDS} s on the output"
                raise EngineError(reason) from None
            if match:
                return max(match.end() - len(self._sent_tail), 0), text
        return None

    def _partial_stop(self, buffer: str) -> int:
        """Length of the longest end of ``buffer`` that a stop may start with."""
        for length in range(min(self._longest_prefix, len(buffer)), 0, -1):
            if buffer[-length:] in self._prefixes:
                return length
        return 0


@lru_cache(maxsize=256)
def _proper_prefixes(stops: tuple[str, ...]) -> frozenset[str]:
    return frozenset(stop[:end] for stop in stops for end in range(1, len(stop)))


@lru_cache(maxsize=256)
def compile_stop_pattern(text: str) -> regex.Pattern[str]:
    """A stop pattern, compiled.  Raises :class:`InvalidRequest` where it can't be one."""
    import regex  # 15 ms to import, needed by few requests

    if len(text) > REGEX_WINDOW:
        raise InvalidRequest("stop_regex", text, f"patterns of at most {REGEX_WINDOW} characters")
    try:
        pattern = regex.compile(text)
    except regex.error as error:
        raise InvalidRequest("stop_regex", text, f"a regular expression ({error})") from None
    if pattern.search("", timeout=REGEX_SECONDS):
        raise InvalidRequest("stop_regex", text, "a pattern that does not match the empty text")
    return pattern
