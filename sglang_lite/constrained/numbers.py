"""JSON numbers within bounds, as automata over their digits.

Arithmetic is exact: bounds and divisors are decimals, scaled to integers.  While digits are read, a
state keeps how they compare with the digits of the two bounds and the remainder by the divisor;
whether a state is live is computed, not searched for.

Spellings: an integer has no fraction, no exponent and no "-0".  A number has any fraction.  It has
an exponent only where its sign alone decides that it is within bounds, and no divisor is given.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from sglang_lite.constrained.algebra import combine
from sglang_lite.constrained.automaton import Arcs, Automaton, EmptyLanguage
from sglang_lite.constrained.byte_dfa import TextDFA, text_dfa
from sglang_lite.constrained.decimals import (
    Limit,
    Remainders,
    Value,
    check_remainders,
    common_multiple,
    decimal_places,
    exact,
    integral,
    kept_multiples,
    negated,
    tightest,
)
from sglang_lite.constrained.number_set import NumberSet

CAPPED_EXPONENT_DIGITS = 2
"""With a cap on digits, so many in an exponent: a double stays finite."""

_DIGITS = "0123456789"


class _Bound(NamedTuple):
    """A magnitude: its digits, ``whole`` of them before the point; ``strict`` excludes itself."""

    digits: str
    whole: int
    strict: bool

    def compared(self, digit: str, index: int, so_far: int) -> int:
        """-1, 0 or 1: how the digits up to ``index`` compare, given the comparison before it."""
        if so_far:
            return so_far
        return (digit > self.digits[index]) - (digit < self.digits[index])

    def rest(self, start: int) -> int:
        """Its digits from ``start`` on, as an integer."""
        return int(self.digits[start:] or "0")


class _Side(NamedTuple):
    """The magnitudes of one sign; a bound of None is no bound."""

    low: _Bound | None
    high: _Bound | None


class _Reading(NamedTuple):
    """A state inside a number: ``whole`` digits before the point, ``places`` after it or -1.

    ``low`` and ``high`` say how the digits so far compare with as many digits of the bounds, where
    "no bound" is 1 and -1.  ``zero`` is a leading zero, which no digit may follow.
    """

    negative: bool
    zero: bool
    whole: int
    places: int
    low: int
    high: int
    remainder: int


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
    """Numbers between two bounds that are multiples of ``divisor``.

    Values are integers at ``_scale`` decimal places.  Without a divisor that is one more than the
    bounds have, so that any interval that is not empty holds a number of this scale.
    """

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
        places = [decimal_places(limit.value) for limit in (low, high) if limit is not None]
        if divisor is not None:
            self._scale = max([decimal_places(divisor), *places])
            self._modulus = int(divisor * 10**self._scale)
        else:
            self._scale = max(places, default=0) + 1
            self._modulus = 1
        self._remainder = Remainders(self._modulus).of
        self._tail = divisor is None  # digits after the scale may be other than zero
        self._cap = max_digits
        self._sides = (
            self._side(low, high),
            self._side(negated(high), negated(low), negative=True),
        )
        self._live: dict[_Reading, bool] = {}
        super().__init__("start")
        # An interval wider than the divisor holds a multiple of it: no search for the first digit.
        wide = low is None or high is None or high.value - low.value > (divisor or 0)
        if not wide and not self._first(False) and not self._first(True):
            raise EmptyLanguage("no number satisfies the conditions")

    def _side(
        self,
        low: Limit | None,
        high: Limit | None,
        negative: bool = False,
    ) -> _Side | None:
        """The magnitudes with one sign; None if there are none (of "-0" alone in a terminal)."""
        if high is not None and (high.value < 0 or (not high.value and negative and self._plain)):
            return None
        if low is not None and (low.value < 0 or low == Limit(Fraction(0))):
            low = None
        return _Side(self._bound(low), self._bound(high))

    def _bound(self, limit: Limit | None) -> _Bound | None:
        if limit is None:
            return None
        value = limit.value.numerator * 10**self._scale // limit.value.denominator
        digits = str(value).rjust(self._scale + 1, "0")
        return _Bound(digits, len(digits) - self._scale, limit.strict)

    # -- states: "start", "-", a _Reading, or ("e", digits of the exponent) ------------------------

    def _accepting(self, key: Any) -> bool:
        if isinstance(key, _Reading):
            return key.places != 0 and self._ends(key)
        return isinstance(key, tuple) and key[1] > 0

    def _expand(self, key: Any) -> Arcs:
        if isinstance(key, _Reading):
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
        side = self._sides[negative]
        moves: dict[str, Any] = {}
        if side is None:
            return moves
        for digit in _DIGITS:
            low = side.low.compared(digit, 0, 0) if side.low else 1
            high = side.high.compared(digit, 0, 0) if side.high else -1
            reading = _Reading(
                negative, digit == "0", 1, -1, low, high, self._remainder(int(digit))
            )
            if self._alive(reading) and not (negative and self._integer and reading.zero):
                moves[digit] = reading
        return moves

    def _further(self, key: _Reading) -> dict[str, Any]:
        followings = {}
        if key.places >= 0:
            followings = {digit: self._after_point(key, digit) for digit in _DIGITS}
        elif not key.zero:
            followings = {digit: self._before_point(key, digit) for digit in _DIGITS}
        if key.places < 0 and not self._integer:
            settled = self._settled(key, key.whole)
            followings["."] = settled and settled._replace(zero=False, whole=0, places=0)
        moves: dict[str, Any] = {c: r for c, r in followings.items() if r and self._alive(r)}
        if key.places != 0 and self._has_exponent(key):
            moves["e"] = moves["E"] = ("e", -1)
        return moves

    def _before_point(self, key: _Reading, digit: str) -> _Reading | None:
        side = self._of(key)
        low, high, whole = key.low, key.high, key.whole + 1
        if side.low is not None:
            low = 1 if whole > side.low.whole else side.low.compared(digit, key.whole, low)
        if side.high is not None:
            if whole > side.high.whole:
                return None
            high = side.high.compared(digit, key.whole, high)
        elif self._cap is None and whole > self._counted(side):
            whole = self._counted(side)
        elif whole > self._longest(side):
            return None
        remainder = self._remainder(key.remainder * 10 + int(digit))
        return key._replace(whole=whole, low=low, high=high, remainder=remainder)

    def _after_point(self, key: _Reading, digit: str) -> _Reading | None:
        side = self._of(key)
        low, high, places = key.low, key.high, key.places + 1
        remainder = key.remainder
        if self._cap is not None and places > max(self._cap, self._scale):
            return None
        if places <= self._scale:
            if side.low is not None:
                low = side.low.compared(digit, side.low.whole + key.places, low)
            if side.high is not None:
                high = side.high.compared(digit, side.high.whole + key.places, high)
            remainder = self._remainder(remainder * 10 + int(digit))
        elif digit != "0":
            if not self._tail:
                return None
            low, high = low or 1, high or 1
        if self._cap is None:  # count only as far as it matters
            inside = low > 0 and high < 0 and self._tail
            places = 1 if inside else min(places, self._scale + 1)
        return key._replace(places=places, low=low, high=high, remainder=remainder)

    def _has_exponent(self, key: _Reading) -> bool:
        """True where the sign alone puts the value within the bounds."""
        side = self._of(key)
        free = side.low is None and side.high is None
        return free and self._plain and self._tail

    def _exponent(self, digits: int) -> dict[str, Any]:
        """``digits`` -1 is right after the letter, 0 after a sign."""
        moves: dict[str, Any] = {}
        if self._cap is None or digits < CAPPED_EXPONENT_DIGITS:
            following = 1 if self._cap is None else max(digits, 0) + 1
            moves = dict.fromkeys(_DIGITS, ("e", following))
        if digits < 0:
            moves["+"] = moves["-"] = ("e", 0)
        return moves

    # -- what is live ----------------------------------------------------------------------------

    def _of(self, key: _Reading) -> _Side:
        side = self._sides[key.negative]
        if side is None:
            raise AssertionError("a state has a sign that has no numbers")
        return side

    def _counted(self, side: _Side) -> int:
        """So many digits before the point matter where there is no upper bound."""
        return side.low.whole + 1 if side.low else 1

    def _longest(self, side: _Side) -> int:
        """The cap on digits before the point, more where lower bound or divisor need it."""
        least = (side.low.whole if side.low else 0) + len(str(self._modulus))
        return max(self._cap or 0, least)

    def _settled(self, key: _Reading, whole: int) -> _Reading | None:
        """Compared as numbers of ``whole`` digits before the point; None if out of bounds."""
        side = self._of(key)
        low, high = key.low, key.high
        if side.low is not None and whole != side.low.whole:
            low = -1 if whole < side.low.whole else 1
        if side.high is not None and whole != side.high.whole:
            high = -1 if whole < side.high.whole else 1
        return None if low < 0 or high > 0 else key._replace(low=low, high=high)

    def _ends(self, key: _Reading) -> bool:
        """True where the number may end here."""
        settled = self._settled(key, key.whole) if key.places < 0 else key
        if settled is None:
            return False
        return self._fits(settled, max(key.places, 0), exactly=True)

    def _alive(self, key: _Reading) -> bool:
        """True where some further digits, or none, give a number within the bounds."""
        known = self._live.get(key)
        if known is None:
            if key.places < 0:
                known = self._some_length(key)
            elif key.places < self._scale:
                known = self._fits(key, key.places)
            else:
                known = self._fits(key, key.places, exactly=True)
                if not known and self._tail and key.low >= 0 and key.high < 0:
                    known = self._cap is None or key.places < max(self._cap, self._scale)
            self._live[key] = known
        return known

    def _some_length(self, key: _Reading) -> bool:
        """True where with some number of further digits before the point a number fits."""
        side = self._of(key)
        if key.zero:
            longest = key.whole
        elif side.high is not None:
            longest = side.high.whole
        elif self._cap is not None:
            longest = self._longest(side)
        else:  # then any remainder can be reached
            longest = max(key.whole, self._counted(side)) + len(str(self._modulus))
        for whole in range(key.whole, longest + 1):
            settled = self._settled(key, whole)
            if settled is not None and self._fits(settled, 0, whole - key.whole):
                return True
        return False

    def _fits(self, key: _Reading, places: int, more: int = 0, exactly: bool = False) -> bool:
        """True where digits that follow give a number within the bounds.

        ``places`` digits after the point are read; ``more`` before it are to come.  ``exactly``:
        the digits that follow are zeros.
        """
        if key.low < 0 or key.high > 0:
            return False
        side = self._of(key)
        follow = more + max(self._scale - places, 0)
        least, most = 0, 10**follow - 1
        if key.low == 0 and side.low is not None:
            start = side.low.whole - more + places
            least = side.low.rest(start) + side.low.strict
        if key.high == 0 and side.high is not None:
            start = side.high.whole - more + places
            most = side.high.rest(start) - side.high.strict
        if exactly:
            return least <= 0 <= most and key.remainder * 10**follow % self._modulus == 0
        least += -(key.remainder * 10**follow + least) % self._modulus
        return least <= most
