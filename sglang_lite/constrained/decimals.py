"""Exact decimals for the bounds and divisors of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from sglang_lite.errors import GrammarTooComplex

Value: TypeAlias = int | float | str | Decimal | Fraction
MAX_REMAINDERS = 20_000
"""How many remainders divisors may have together, factors of ten aside, for each counted digit."""
NEAREST = 1_000
"""With more remainders, multiples are written up to so many from the one nearest to zero."""
MAX_DIGITS = 1_000
"""Bounds and divisors may have so many digits before and after the point."""
_TOO_LARGE = 10**MAX_DIGITS


class Limit(NamedTuple):
    """A bound, excluded itself if ``strict``."""

    value: Fraction
    strict: bool = False


def exact(value: Value) -> Fraction:
    """The value as a fraction; a float counts as the decimal that it is written as."""
    if isinstance(value, int):
        return Fraction(value)
    if isinstance(value, Fraction):
        return value
    try:
        decimal = Decimal(repr(value) if isinstance(value, float) else value)
    except InvalidOperation:
        raise ValueError(f"{value!r} is not a decimal number") from None
    if not decimal.is_finite():
        raise ValueError(f"{value!r} is not a finite number")
    if abs(decimal.adjusted()) > MAX_DIGITS:
        raise GrammarTooComplex(f"a number of more than {MAX_DIGITS} digits in a constraint")
    return Fraction(decimal)


def tightest(
    inclusive: Value | None, exclusive: Value | None, pick: Callable[[Iterable[Fraction]], Fraction]
) -> Limit | None:
    """The stricter of two bounds; ``pick`` is max for lower bounds and min for upper ones."""
    bounds = []
    if inclusive is not None:
        bounds.append(Limit(exact(inclusive)))
    if exclusive is not None:
        bounds.append(Limit(exact(exclusive), strict=True))
    if len(bounds) < 2:
        return bounds[0] if bounds else None
    value = pick(bound.value for bound in bounds)
    return Limit(value, any(bound.strict for bound in bounds if bound.value == value))


def negated(limit: Limit | None) -> Limit | None:
    """The bound of the negated number."""
    return None if limit is None else Limit(-limit.value, limit.strict)


def integral(limit: Limit | None, toward: Callable[[Fraction], int], inward: int) -> Limit | None:
    """The same bound for integers: inclusive, and an integer itself."""
    if limit is None:
        return None
    value = toward(limit.value)
    return Limit(Fraction(value + inward if limit.strict and value == limit.value else value))


def common_multiple(divisors: Iterable[Fraction]) -> Fraction | None:
    """The least number that all divisors divide; None if there is no divisor."""
    common: Fraction | None = None
    for divisor in divisors:
        if divisor <= 0:
            raise ValueError(f"multiple_of must be positive, not {divisor}")
        if common is None:
            common = divisor
        else:
            scale = math.lcm(common.denominator, divisor.denominator)
            common = Fraction(math.lcm(int(common * scale), int(divisor * scale)), scale)
    return common


def kept_multiples(
    low: Limit | None, high: Limit | None, divisor: Fraction, digits: int | None
) -> tuple[Limit | None, Limit | None]:
    """Bounds within which the multiples of ``divisor`` are told by a bounded number of states.

    Each counted digit (``digits`` where there is no bound) may come with any remainder.  Where that
    makes more than ``MAX_REMAINDERS``, only the ``NEAREST`` multiples to zero stay.
    """
    if divisor == 1:
        return low, high
    counted = [digits or 1]
    counted += [len(str(int(abs(limit.value)))) for limit in (low, high) if limit is not None]
    places = decimal_places(divisor)
    if _without_tens(divisor.numerator) * (max(counted) + places) <= MAX_REMAINDERS:
        return low, high
    reach = NEAREST * divisor
    nearest = max(low.value if low else Fraction(0), Fraction(0))
    nearest = min(high.value if high else nearest, nearest)
    lowest, highest = Limit(nearest - reach), Limit(nearest + reach)
    return (
        low if low is not None and low.value >= lowest.value else lowest,
        high if high is not None and high.value <= highest.value else highest,
    )


def decimal_places(value: Fraction) -> int:
    """How many decimal places the value has; raises ValueError if they never end."""
    denominator, count = value.denominator, 0
    if denominator != 1:
        for factor in (10, 2, 5):
            while denominator % factor == 0:
                denominator, count = denominator // factor, count + 1
        if denominator != 1:
            raise ValueError(f"{value} is not a decimal number")
    if count > MAX_DIGITS or abs(value.numerator) >= _TOO_LARGE * value.denominator:
        raise GrammarTooComplex(f"a number of more than {MAX_DIGITS} digits in a constraint")
    return count


class Remainders:
    """Remainders of digits that are read one by one, those as one that no later digit tells apart.

    ``n`` digits that follow ``value`` must make up for ``-value * 10**n``.  Where the factors 2 and
    5 of the modulus are in ``10**n`` that depends on its other factors only; where it takes more
    than ``n`` digits it fails.  So multiples of 3,600,000 need dozens of remainders, not millions.
    """

    def __init__(self, modulus: int) -> None:
        self.modulus = modulus
        self._odd = _without_tens(modulus)
        self._zeros = decimal_places(Fraction(self._odd, modulus))
        self._first: dict[tuple[int, ...], int] = {}

    def of(self, value: int) -> int:
        """The remainder of ``value``, or one that is as good."""
        value %= self.modulus
        if not self._zeros:
            return value
        future, missing = [value % self._odd], self.modulus - value
        for digits in range(self._zeros):
            missing %= self.modulus
            future.append(missing if missing < 10**digits else -1)
            missing *= 10
        return self._first.setdefault(tuple(future), value)


def check_remainders(divisors: Iterable[Fraction]) -> None:
    """Raise :class:`GrammarTooComplex` where all divisors together have too many remainders."""
    together = common_multiple(divisors)
    if together is not None and _without_tens(together.numerator) > MAX_REMAINDERS:
        raise GrammarTooComplex(
            f"multiples that a number must not be have {_without_tens(together.numerator)}"
            f" remainders together; at most {MAX_REMAINDERS}"
        )


def _without_tens(value: int) -> int:
    for factor in (2, 5):
        while value % factor == 0:
            value //= factor
    return value
