"""The character sets that regular expressions name: classes, properties, case folding."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np

from sglang_lite.constrained.charset import ANYTHING, END, CharSet, char_set, characters

DIGIT_ASCII = char_set([(0x30, 0x39)])
WORD_ASCII = char_set([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
SPACE_ASCII = char_set([(9, 13), (0x20, 0x20)])
SPACE_ECMA = (
    SPACE_ASCII
    | characters("\u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff")
    | (char_set([(0x2000, 0x200A)]))
)
NEWLINE = characters("\n")
NEWLINE_ECMA = characters("\n\r\u2028\u2029")


_WORDS_END = 0x40000
"""No letter, digit or space has been assigned above the third plane."""


@lru_cache(maxsize=1)
def _characters_to(end: int) -> str:
    return np.arange(end, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")


def _scan(compiled: Any, end: int) -> CharSet:
    """The characters that a compiled one-character pattern, repeated, matches."""
    spans = (match.span() for match in compiled.finditer(_characters_to(end)))
    return char_set((start, stop - 1) for start, stop in spans)


@lru_cache(maxsize=16)
def python_class(letter: str, ascii_only: bool) -> CharSet:
    """What ``\\d``, ``\\w`` or ``\\s`` matches in Python's ``re``."""
    if ascii_only:
        return {"d": DIGIT_ASCII, "w": WORD_ASCII, "s": SPACE_ASCII}[letter]
    return _scan(re.compile(rf"\{letter}+"), _WORDS_END)


@lru_cache(maxsize=256)
def unicode_property(name: str) -> CharSet | None:
    """The characters with a property (``L``, ``Lu``, ``Script=Greek``...), None if unknown."""
    import regex  # 40 ms to import, needed by few patterns

    try:
        compiled = regex.compile(rf"\p{{{name}}}+")
    except regex.error:
        return None
    return _scan(compiled, END)


@lru_cache(maxsize=1)
def _case_map() -> tuple[dict[int, int], dict[int, frozenset[int]]]:
    """(code point to its lower case where that differs, lower-case code point to its equals).

    Equals share their upper case: k and the Kelvin sign, s and the long s.
    """
    lower: dict[int, int] = {}
    by_upper: dict[str, set[int]] = {}
    for match in re.finditer(r"\w|[\u0345\u24b6-\u24e9]", _characters_to(_WORDS_END)[:0x1F000]):
        character = match.group()
        low, up = character.lower(), character.upper()
        if low != character:
            lower[ord(character)] = ord(low[0])
        elif up != character:
            by_upper.setdefault(up, set()).add(ord(character))
    equals = {
        member: frozenset(group)
        for group in by_upper.values()
        if len(group) > 1
        for member in group
    }
    return lower, equals


@lru_cache(maxsize=256)
def ignore_case(members: CharSet, ascii_only: bool) -> CharSet:
    """The characters that match the set under Python's ``(?i)``.

    ``re`` compares the lower case of the text with the lower cases of the set, and knows letters
    with the same upper case.  Under ``(?a)`` only A-Z and a-z have case.
    """
    if members == ANYTHING:
        return members
    if ascii_only:
        swapped = "".join(
            chr(c).swapcase() for c in (*range(65, 91), *range(97, 123)) if c in members
        )
        return members | characters(swapped)
    lower, equals = _case_map()
    wanted = {low for code, low in lower.items() if code in members}
    wanted |= {code for code in equals if code in members}
    wanted |= {low for low in set(lower.values()) if low in members}
    wanted = wanted.union(*(equals.get(code, ()) for code in wanted))
    extra = {code for code, low in lower.items() if low in wanted} | wanted
    return members | char_set((c, c) for c in extra)
