"""A finite set of numbers as an automaton over all their spellings without an exponent."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from sglang_lite.constrained.automaton import Arcs, Automaton
from sglang_lite.constrained.decimals import decimal_places


class _Key(NamedTuple):
    """What may follow: one of ``rests``; zeros, of which ``zeros`` is the least number, if any."""

    rests: tuple[str, ...]
    zeros: int | None
    fraction: bool


class NumberSet(Automaton):
    """The numbers equal to one of ``values``: ``1``, ``1.0``, ``1.00`` ... for 1.

    What is read is a prefix of canonical spellings (a trie, made lazily), or one of them and zeros.
    """

    def __init__(self, values: Iterable[Fraction]) -> None:
        values = tuple(values)
        self._source = (NumberSet, (values,))
        texts = {_canonical(value) for value in values}
        if "0" in texts:
            texts.add("-0")
        super().__init__(_Key(tuple(sorted(texts)), None, False))

    def _accepting(self, key: _Key) -> bool:
        return "" in key.rests or key.zeros == 0

    def _expand(self, key: _Key) -> Arcs:
        following: dict[str, list[str]] = {}
        for rest in key.rests:
            if rest:
                following.setdefault(rest[0], []).append(rest[1:])
        moves = {
            character: _Key(tuple(rests), None, key.fraction or character == ".")
            for character, rests in following.items()
        }
        whole = "" in key.rests
        if key.fraction and (whole or key.zeros is not None):
            moves["0"] = _Key(tuple(following.get("0", ())), 0, True)
        elif whole:
            moves["."] = _Key(tuple(following.get(".", ())), 1, True)
        return self._spelled(moves)


def _canonical(value: Fraction) -> str:
    places = decimal_places(value)
    digits = str(abs(int(value * 10**places))).rjust(places + 1, "0")
    whole, fraction = digits[: len(digits) - places], digits[len(digits) - places :]
    return f"{'-' if value < 0 else ''}{whole}{'.' if places else ''}{fraction}"
