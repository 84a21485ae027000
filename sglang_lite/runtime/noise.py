"""Random numbers that depend on nothing but what they are for: no state, no company, no device."""

from __future__ import annotations

_U64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def uniform_noise(seed: int, position: int, sample: int) -> float:
    """A number in (0, 1) that depends on nothing but its arguments.

    Three rounds of the finalizer of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom
    Number Generators", OOPSLA 2014).
    """
    bits = _mix((seed & _U64) + _GOLDEN)
    bits = _mix(bits + _GOLDEN * (sample + 1))
    bits = _mix(bits + _GOLDEN * (position + 1))
    return ((bits >> 11) + 0.5) * 2.0**-53


def derived_seed(seed: int, number: int) -> int:
    """A seed for the ``number``-th request without one."""
    return _mix(_mix((seed & _U64) + _GOLDEN) + _GOLDEN * (number + 1))


def _mix(bits: int) -> int:
    bits &= _U64
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _U64
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _U64
    return bits ^ (bits >> 31)
