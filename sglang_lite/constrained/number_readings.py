"""What digits can still make of a number that is being read: within bounds, by a divisor.

While digits are read, a :class:`Reading` keeps how they compare with the digits of the two bounds
and the remainder by the divisor.  Whether it is live is computed, not searched for.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from sglang_lite.constrained.decimals import Limit, Remainders, decimal_places, negated


class Bound(NamedTuple):
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


class Side(NamedTuple):
    """The magnitudes of one sign; a bound of None is no bound."""

    low: Bound | None
    high: Bound | None


class Reading(NamedTuple):
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


class Interval:
    """The multiples of ``divisor`` between two bounds.

    Values are integers at ``_scale`` decimal places.  Without a divisor that is one more than the
    bounds have, so that any interval that is not empty holds a number of this scale, and the digits
    after it (``_tail``) may be other than zero.  ``cap`` bounds the digits where no bound does.
    ``plain``: no other condition is combined with it, so "-0" may be left out where it is excluded.
    """

    def __init__(
        self,
        low: Limit | None,
        high: Limit | None,
        divisor: Fraction | None,
        cap: int | None,
        plain: bool,
    ) -> None:
        places = [decimal_places(limit.value) for limit in (low, high) if limit is not None]
        if divisor is not None:
            self._scale = max([decimal_places(divisor), *places])
            self._modulus = int(divisor * 10**self._scale)
        else:
            self._scale = max(places, default=0) + 1
            self._modulus = 1
        self._remainder = Remainders(self._modulus).of
        self._tail = divisor is None
        self.cap = cap
        self._plain = plain
        self._sides = (
            self._side(low, high),
            self._side(negated(high), negated(low), negative=True),
        )
        self._live: dict[Reading, bool] = {}

    def _side(
        self,
        low: Limit | None,
        high: Limit | None,
        negative: bool = False,
    ) -> Side | None:
        """The magnitudes with one sign; None if there are none (of "-0" alone in a terminal)."""
        if high is not None and (high.value < 0 or (not high.value and negative and self._plain)):
            return None
        if low is not None and (low.value < 0 or low == Limit(Fraction(0))):
            low = None
        return Side(self._bound(low), self._bound(high))

    def _bound(self, limit: Limit | None) -> Bound | None:
        if limit is None:
            return None
        value = limit.value.numerator * 10**self._scale // limit.value.denominator
        digits = str(value).rjust(self._scale + 1, "0")
        return Bound(digits, len(digits) - self._scale, limit.strict)

    # -- reading digits --------------------------------------------------------------------------

    def first(self, negative: bool, digit: str) -> Reading | None:
        """The reading of a first digit; None where no number begins so."""
        side = self._sides[negative]
        if side is None:
            return None
        low = side.low.compared(digit, 0, 0) if side.low else 1
        high = side.high.compared(digit, 0, 0) if side.high else -1
        remainder = self._remainder(int(digit))
        reading = Reading(negative, digit == "0", 1, -1, low, high, remainder)
        return reading if self.alive(reading) else None

    def before_point(self, key: Reading, digit: str) -> Reading | None:
        """``key`` after a digit more; None beyond the upper bound or the cap."""
        side = self._of(key)
        low, high, whole = key.low, key.high, key.whole + 1
        if side.low is not None:
            low = 1 if whole > side.low.whole else side.low.compared(digit, key.whole, low)
        if side.high is not None:
            if whole > side.high.whole:
                return None
            high = side.high.compared(digit, key.whole, high)
        elif self.cap is None and whole > self._counted(side):
            whole = self._counted(side)
        elif whole > self._longest(side):
            return None
        remainder = self._remainder(key.remainder * 10 + int(digit))
        return key._replace(whole=whole, low=low, high=high, remainder=remainder)

    def after_point(self, key: Reading, digit: str) -> Reading | None:
        """``key`` after a digit of the fraction; None beyond the cap, and beside a divisor."""
        side = self._of(key)
        low, high, places = key.low, key.high, key.places + 1
        remainder = key.remainder
        if self.cap is not None and places > max(self.cap, self._scale):
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
        if self.cap is None:  # count only as far as it matters
            inside = low > 0 and high < 0 and self._tail
            places = 1 if inside else min(places, self._scale + 1)
        return key._replace(places=places, low=low, high=high, remainder=remainder)

    def unbounded(self, key: Reading) -> bool:
        """True where any magnitude fits."""
        side = self._of(key)
        return side.low is None and side.high is None and self._tail

    # -- what is live ----------------------------------------------------------------------------

    def _of(self, key: Reading) -> Side:
        side = self._sides[key.negative]
        if side is None:
            raise AssertionError("a state has a sign that has no numbers")
        return side

    def _counted(self, side: Side) -> int:
        """So many digits before the point matter where there is no upper bound."""
        return side.low.whole + 1 if side.low else 1

    def _longest(self, side: Side) -> int:
        """The cap on digits before the point, more where lower bound or divisor need it."""
        least = (side.low.whole if side.low else 0) + len(str(self._modulus))
        return max(self.cap or 0, least)

    def settled(self, key: Reading, whole: int) -> Reading | None:
        """Compared as numbers of ``whole`` digits before the point; None if out of bounds."""
        side = self._of(key)
        low, high = key.low, key.high
        if side.low is not None and whole != side.low.whole:
            low = -1 if whole < side.low.whole else 1
        if side.high is not None and whole != side.high.whole:
            high = -1 if whole < side.high.whole else 1
        return None if low < 0 or high > 0 else key._replace(low=low, high=high)

    def ends(self, key: Reading) -> bool:
        """True where the number may end here."""
        settled = self.settled(key, key.whole) if key.places < 0 else key
        if settled is None:
            return False
        return self._fits(settled, max(key.places, 0), exactly=True)

    def alive(self, key: Reading) -> bool:
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
                    known = self.cap is None or key.places < max(self.cap, self._scale)
            self._live[key] = known
        return known

    def _some_length(self, key: Reading) -> bool:
        """True where with some number of further digits before the point a number fits."""
        side = self._of(key)
        if key.zero:
            longest = key.whole
        elif side.high is not None:
            longest = side.high.whole
        elif self.cap is not None:
            longest = self._longest(side)
        else:  # then any remainder can be reached
            longest = max(key.whole, self._counted(side)) + len(str(self._modulus))
        for whole in range(key.whole, longest + 1):
            settled = self.settled(key, whole)
            if settled is not None and self._fits(settled, 0, whole - key.whole):
                return True
        return False

    def _fits(self, key: Reading, places: int, more: int = 0, exactly: bool = False) -> bool:
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
