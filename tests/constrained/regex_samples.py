"""Random regular expressions and texts for property tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hypothesis import strategies as st

_QUANTIFIERS = ["*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}", "{,2}", "*?", "+?", "??", "{1,2}?"]
_CLASSES = [".", "[ab]", "[^a]", "[a-b]", r"\w", r"\W", r"[^\n]", r"\s", "(?i:A)", "(?s:.)"]
_ANCHORS = ["^", "$", r"\b", r"\A", r"\Z", "(?m:^)", "(?m:$)"]
_BEHIND = ["a", "b", "ab", "a.", "[ab]", r"\ba", "^a", r"a\b", "a|b"]


def patterns(look: bool) -> st.SearchStrategy[str]:
    """Patterns over a and b in Python's syntax, with look-around and anchors or without."""
    atoms = st.sampled_from(["a", "b"] * 3 + _CLASSES)
    if look:
        anchors = st.sampled_from(_ANCHORS)
        behind = st.tuples(st.sampled_from(["(?<=", "(?<!"]), st.sampled_from(_BEHIND))
        atoms = atoms | anchors | behind.map(lambda pair: "".join(pair) + ")")

    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        opening = ["(", "(?:", "(?=", "(?!"] if look else ["(", "(?:"]
        group = st.tuples(st.sampled_from(opening), inner).map(lambda pair: "".join(pair) + ")")
        repeat = st.tuples(group, st.sampled_from(_QUANTIFIERS)).map("".join)
        sequence = st.lists(inner, max_size=3).map("".join)
        choice = st.lists(inner, min_size=2, max_size=3).map("|".join)
        return st.one_of(repeat, group, sequence, choice)

    return st.recursive(atoms, larger, max_leaves=10)


def texts(alphabet: str, longest: int) -> Iterator[str]:
    """Every text of at most ``longest`` characters."""
    for length in range(longest + 1):
        for letters in itertools.product(alphabet, repeat=length):
            yield "".join(letters)
