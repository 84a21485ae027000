"""JSON numbers within bounds, as automata over their digits.

Arithmetic is exact: bounds and divisors are decimals, scaled to integers.  How the digits that were
read compare with them is in :mod:`.number_readings`.

Spellings: an integer has no fraction, no exponent and no "-0".  A number has any fraction.  It has
an exponent only where its sign alone decides that it is within bounds, and no divisor is given.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

from sglang_lite.constrained.algebra import combine
from sglang_lite.constrained.automaton import Arcs, Automaton, EmptyLanguage
from sglang_lite.constrained.byte_dfa import TextDFA, text_dfa
from sglang_lite.constrained.decimals import (
    Limit,
    Value,
    check_remainders,
    common_multiple,
    exact,
    integral,
    kept_multiples,
    tightest,
)
from sglang_lite.constrained.number_readings import Interval, Reading
from sglang_lite.constrained.number_set import NumberSet

CAPPED_EXPONENT_DIGITS = 2
"""With a cap on digits, so many in an exponent: a double stays finite."""

_DIGITS = "0123456789"


@lru_cache(maxsize=512)
def number_automaton(
    *,
    integer: bool = False,
    minimum: Value | None = None,
    maximum: Value | None = None,
    exclusive_minimum: Value | None = None,
    exclusive_maximum: Value | None = None,
    multiple_of: tuple[Value, ...] = (),
    not_multiple_of: tuple[Value, ...] = (),
    excluded: tuple[Value, ...] = (),
    max_digits: int | None = None,
) -> Automaton:
    """The JSON numbers whose value satisfies all conditions.

    ``multiple_of`` needs all of its divisors, ``not_multiple_of`` none; ``excluded`` are values.
    ``max_digits`` caps the digits before the point where there is no bound, and after it.  Values
    may be int, float (as it is written), Decimal, Fraction (a decimal one) or str.  Of divisors
    with very many remainders only the multiples nearest to zero are kept.  Raises
    :class:`EmptyLanguage` where no number is left and :class:`GrammarTooComplex` for bounds of
    more than ``decimals.MAX_DIGITS`` digits, and where refused divisors make more than
    ``decimals.MAX_REMAINDERS``.
    """
    low = tightest(minimum, exclusive_minimum, max)
    high = tightest(maximum, exclusive_maximum, min)
    divisor = common_multiple(map(exact, multiple_of))
    if integer:
        divisor = common_multiple([Fraction(1), divisor] if divisor else [Fraction(1)])
    if not_multiple_of:
        check_remainders(map(exact, [*multiple_of, *not_multiple_of]))
    plain = not not_multiple_of and not excluded
    if divisor is not None:
        low, high = kept_multiples(low, high, divisor, max_digits)
    number = _Number(integer, low, high, divisor, max_digits, plain)
    if plain:
        return number
    refused: list[Automaton] = [NumberSet(map(exact, excluded))] if excluded else []
    refused += [_Number(False, None, None, exact(m), None, False) for m in not_multiple_of]
    return combine((number,), refused)


def number_dfa(**conditions: Any) -> TextDFA:
    """The terminal of :func:`number_automaton`; without arguments, of any JSON number."""
    return text_dfa(number_automaton(**conditions), "utf8", False)


class _Number(Automaton):
    """Numbers between two bounds that are multiples of ``divisor``."""

    def __init__(
        self,
        integer: bool,
        low: Limit | None,
        high: Limit | None,
        divisor: Fraction | None,
        max_digits: int | None,
        plain: bool,
    ) -> None:
        self._source = (_Number, (integer, low, high, divisor, max_digits, plain))
        self._integer = integer
        self._plain = plain
        if integer:
            low, high = integral(low, math.ceil, 1), integral(high, math.floor, -1)
        self._interval = Interval(low, high, divisor, max_digits, plain)
        super().__init__("start")
        # An interval wider than the divisor holds a multiple of it: no search for the first digit.
        wide = low is None or high is None or high.value - low.value > (divisor or 0)
        if not wide and not self._first(False) and not self._first(True):
            raise EmptyLanguage("no number satisfies the conditions")

    # -- states: "start", "-", a Reading, or ("e", digits of the exponent) ------------------------

    def _accepting(self, key: Any) -> bool:
        if isinstance(key, Reading):
            return key.places != 0 and self._interval.ends(key)
        return isinstance(key, tuple) and key[1] > 0

    def _expand(self, key: Any) -> Arcs:
        if isinstance(key, Reading):
            moves = self._further(key)
        elif isinstance(key, tuple):
            moves = self._exponent(key[1])
        else:
            moves = self._first(key == "-")
            if key == "start" and self._first(True):
                moves["-"] = "-"
        return self._spelled(moves)

    def _first(self, negative: bool) -> dict[str, Any]:
        """The first digits of a sign."""
        moves: dict[str, Any] = {}
        for digit in _DIGITS:
            reading = self._interval.first(negative, digit)
            if reading and not (negative and self._integer and reading.zero):
                moves[digit] = reading
        return moves

    def _further(self, key: Reading) -> dict[str, Any]:
        followings = {}
        if key.places >= 0:
            followings = {digit: self._interval.after_point(key, digit) for digit in _DIGITS}
        elif not key.zero:
            followings = {digit: self._interval.before_point(key, digit) for digit in _DIGITS}
        if key.places < 0 and not self._integer:
            settled = self._interval.settled(key, key.whole)
            followings["."] = settled and settled._replace(zero=False, whole=0, places=0)
        alive = self._interval.alive
        moves: dict[str, Any] = {c: r for c, r in followings.items() if r and alive(r)}
        if key.places != 0 and self._has_exponent(key):
            moves["e"] = moves["E"] = ("e", -1)
        return moves

    def _has_exponent(self, key: Reading) -> bool:
        """True where the sign alone puts the value within the bounds."""
        return self._plain and self._interval.unbounded(key)

    def _exponent(self, digits: int) -> dict[str, Any]:
        """``digits`` -1 is right after the letter, 0 after a sign."""
        moves: dict[str, Any] = {}
        capped = self._interval.cap is not None
        if not capped or digits < CAPPED_EXPONENT_DIGITS:
            following = max(digits, 0) + 1 if capped else 1
            moves = dict.fromkeys(_DIGITS, ("e", following))
        if digits < 0:
            moves["+"] = moves["-"] = ("e", 0)
        return moves
