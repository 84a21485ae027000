"""Free text that ends at the first occurrence of a keyword (Aho and Corasick's automaton).

Aho, Corasick: "Efficient string matching: an aid to bibliographic search", 1975.  It works on code
points, so free text is valid UTF-8 and a keyword cannot begin in the middle of a character.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from sglang_lite.constrained.automaton import Automaton
from sglang_lite.constrained.charset import ANYTHING, CharSet, characters


class FreeText(Automaton):
    """Texts in which none of ``keywords`` occurs, but for ``last``, which occurs only at the end.

    Without ``last`` no keyword occurs at all, and the text may end anywhere.  ``excludes`` never
    occur, not even where ``last`` ends.  Nothing may be inside ``last`` except another keyword at
    its end.  A key is the longest beginning of any of these words that the text ends with.
    """

    def __init__(
        self, keywords: tuple[str, ...], last: str | None, excludes: tuple[str, ...]
    ) -> None:
        self._source = (free_text, (keywords, last, excludes))
        self._keywords = keywords
        self._last = last
        self._excludes = excludes
        words = (*keywords, *excludes)
        self._beginnings = {word[:end] for word in words for end in range(len(word) + 1)}
        self._alphabet = sorted(set("".join(words)))
        super().__init__("")

    def _accepting(self, key: str) -> bool:
        return self._last is None or key.endswith(self._last)

    def _moves(self, key: str) -> tuple[tuple[CharSet, ...], Callable[[int], str | None]]:
        if self._last is not None and key.endswith(self._last):
            return (), lambda mask: None
        sets = tuple(map(characters, self._alphabet))
        return (*sets, ANYTHING), lambda mask: self._after(key, mask)

    def _after(self, key: str, mask: int) -> str | None:
        """The key after ``key`` and the character of the lowest bit, which may be any other one."""
        which = (mask & -mask).bit_length() - 1
        if which == len(self._alphabet):
            return ""
        text = key + self._alphabet[which]
        while text not in self._beginnings:
            text = text[1:]
        if any(map(text.endswith, self._excludes)):
            return None
        if self._last is not None and text.endswith(self._last):
            return text
        return None if any(map(text.endswith, self._keywords)) else text


@lru_cache(maxsize=1024)
def free_text(
    keywords: tuple[str, ...], last: str | None = None, excludes: tuple[str, ...] = ()
) -> FreeText:
    """The one :class:`FreeText` of these arguments."""
    return FreeText(keywords, last, excludes)
