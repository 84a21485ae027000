"""JSON numbers within bounds, against exact arithmetic."""

from __future__ import annotations

import itertools
import random
import re
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_lite.constrained.automaton import Automaton, EmptyLanguage
from sglang_lite.constrained.numbers import number_automaton, number_dfa
from sglang_lite.errors import GrammarTooComplex

NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
INTEGER = re.compile(r"0|-?[1-9]\d*")
TEXTS = [
    text
    for length in range(1, 6)
    for letters in itertools.product("-.0159", repeat=length)
    if NUMBER.fullmatch(text := "".join(letters))
]

VALUES = st.builds(Fraction, st.integers(-1500, 1500), st.sampled_from([1, 1, 10, 100]))
DIVISORS = st.builds(
    Fraction,
    st.sampled_from([1, 2, 3, 5, 7, 8, 15, 25, 48, 75, 125]),
    st.sampled_from([1, 10, 100]),
)
BOUNDS = ("minimum", "exclusive_minimum", "maximum", "exclusive_maximum")
CONDITIONS = st.fixed_dictionaries(
    {"integer": st.booleans()},
    optional={
        **dict.fromkeys(BOUNDS, VALUES),
        "multiple_of": st.lists(DIVISORS, max_size=2).map(tuple),
        "not_multiple_of": st.lists(DIVISORS, max_size=1).map(tuple),
        "excluded": st.lists(VALUES | st.just(Fraction(0)), max_size=2).map(tuple),
    },
)


def allowed(text: str, conditions: dict) -> bool:
    value = Fraction(text)
    checks = {
        "integer": lambda wanted: not wanted or bool(INTEGER.fullmatch(text)),
        "minimum": lambda bound: value >= bound,
        "exclusive_minimum": lambda bound: value > bound,
        "maximum": lambda bound: value <= bound,
        "exclusive_maximum": lambda bound: value < bound,
        "multiple_of": lambda all_of: all((value / m).denominator == 1 for m in all_of),
        "not_multiple_of": lambda none: all((value / m).denominator > 1 for m in none),
        "excluded": lambda values: value not in values,
    }
    return all(checks[name](given) for name, given in conditions.items())


def negative_zero(text: str) -> bool:
    return text.startswith("-") and Fraction(text) == 0


@settings(max_examples=150, deadline=None)
@given(CONDITIONS)
def test_numbers_within_bounds_are_those_of_arithmetic(conditions: dict) -> None:
    right = [text for text in TEXTS if allowed(text, conditions)]
    try:
        automaton = number_automaton(**conditions)
    except EmptyLanguage:
        assert [text for text in right if not negative_zero(text)] == []
        return
    found = [text for text in TEXTS if automaton.matches(text)]
    assert set(found) <= set(right)
    assert [text for text in set(right) - set(found) if not negative_zero(text)] == []


@settings(max_examples=60, deadline=None)
@given(CONDITIONS, st.integers(1, 6), st.randoms(use_true_random=False))
def test_every_prefix_leads_to_a_number(
    conditions: dict, max_digits: int, draw: random.Random
) -> None:
    try:
        automaton = number_automaton(**conditions, max_digits=max_digits)
    except EmptyLanguage:
        return
    for _ in range(5):
        text, state = "", 0
        while not automaton.accepts(state) or draw.random() < 0.8:
            arcs = automaton.arcs(state)
            ways = [
                c for c in "-+.eE0123456789" if arcs.targets[arcs.partition.class_of(ord(c))] >= 0
            ]
            if not ways:
                break
            text += draw.choice(ways)
            state = automaton.after(text)
        assert automaton.matches(text)
        assert allowed(text, conditions)


@pytest.mark.parametrize(
    ("conditions", "accepted", "refused"),
    [
        ({}, "0 -0 1e5 -1.5E-07 0.10 1e999", "01 -01 1. .5 +1 1e 1e+ 3.5.5 1e5e5 -"),
        ({"integer": True}, "0 -1 10 123456789012345678901234567890", "-0 1.0 1e3 00 -"),
        ({"minimum": 0}, "0 0.12345678 1e3 1E-2", "-0 -1 -0.5"),
        ({"maximum": 0}, "0 -0.5 -1e3 -0", "1 0.1"),
        ({"exclusive_minimum": 0}, "0.5 0.0000001 7", "0 -1 0.0 0e1 1e3"),
        ({"minimum": -4, "maximum": 4}, "-0.5 -4 4.000 3.9999", "4.0001 -4.01 5 1e0"),
        ({"minimum": 2}, "2 2.0 10", "1 1.99999"),
        ({"minimum": 1, "maximum": 5}, "5 1.0", "5.7 0.99"),
        ({"exclusive_minimum": 0.5}, "0.500001 0.51", "0.5 0.50 0.49"),
        ({"exclusive_maximum": "0.5"}, "0.4999 -3", "0.5 0.50001"),
        ({"integer": True, "minimum": 10}, "10 99 100", "5 9 -10"),
        ({"integer": True, "minimum": -15, "maximum": 3.5}, "-15 -9 0 3", "-16 4 -20"),
        ({"integer": True, "exclusive_minimum": 1, "exclusive_maximum": 3}, "2", "1 3"),
        ({"integer": True, "multiple_of": (7,), "minimum": 1}, "7 98 700", "0 8 -7"),
        ({"multiple_of": (0.01,)}, "0.01 5 4.020 -0.07", "0.001 4.025 1e2"),
        ({"integer": True, "multiple_of": (1.5,)}, "3 0 -6", "1 2 15000000001"),
        ({"multiple_of": (Decimal("1e-8"),)}, "0.00000001 12", "0.000000001"),
        ({"integer": True, "multiple_of": (1_000_003,)}, "1000003 0", "1000004 1"),
        ({"not_multiple_of": (1,)}, "0.5 -1.25", "1 1.0 0 -0 -0.0"),
        ({"excluded": (0, 1)}, "0.5 2 -1", "0 0.0 -0 -0.0 1 1.00"),
        ({"integer": True, "max_digits": 3}, "999 -999", "1000"),
        ({"max_digits": 2}, "99.99 1e-99", "100 0.123 1e100"),
        ({"integer": True, "maximum": 1e20, "max_digits": 2}, "9" * 20, "1" + "0" * 21),
        ({"maximum": Decimal("1e300")}, "9" * 300, "2" + "0" * 300),
    ],
)  # fmt: skip
def test_numbers(conditions: dict, accepted: str, refused: str) -> None:
    dfa = number_dfa(**conditions)
    assert [text for text in accepted.split() if not dfa.matches(text.encode())] == []
    assert [text for text in refused.split() if dfa.matches(text.encode())] == []


@pytest.mark.parametrize(
    "conditions",
    [
        {"minimum": 3, "maximum": 2},
        {"exclusive_minimum": 0.5, "maximum": 0.5},
        {"integer": True, "exclusive_minimum": 1, "exclusive_maximum": 2},
        {"integer": True, "minimum": 0.1, "maximum": 0.9},
        {"multiple_of": (7,), "minimum": 1, "maximum": 6},
        {"integer": True, "minimum": 5, "maximum": 5, "excluded": (5,)},
        {"multiple_of": (2,), "not_multiple_of": (1,)},
    ],
)
def test_no_number(conditions: dict) -> None:
    with pytest.raises(EmptyLanguage):
        number_automaton(**conditions)


def test_values_that_are_no_bounds() -> None:
    with pytest.raises(ValueError, match="not a finite"):
        number_automaton(minimum=float("nan"))
    with pytest.raises(ValueError, match="not a decimal"):
        number_automaton(minimum="ten")
    with pytest.raises(ValueError, match="positive"):
        number_automaton(multiple_of=(0,))
    with pytest.raises(GrammarTooComplex, match="1000 digits"):
        number_automaton(maximum=Decimal("1e100000"))


def test_standard_terminals_are_singletons() -> None:
    assert number_dfa() is number_dfa()
    assert number_dfa(integer=True) is number_dfa(integer=True)


@pytest.mark.parametrize("cap", [None, 1, 2])
@pytest.mark.parametrize("integer", [False, True])
def test_a_number_automaton_is_refused_or_has_a_text(integer: bool, cap: int | None) -> None:
    values = [None, *map(Fraction, ("-15", "-0.1", "0", "0.05", "7", "99", "100"))]
    divisors = [(), (Fraction(7),), (Fraction(3, 10),), (Fraction(250),)]
    low_names, high_names = ("minimum", "exclusive_minimum"), ("maximum", "exclusive_maximum")
    for low, high, below, above, multiple_of in itertools.product(
        values, values, low_names, high_names, divisors
    ):
        bounds = {name: v for name, v in ((below, low), (above, high)) if v is not None}
        conditions = {"integer": integer, **bounds, "multiple_of": multiple_of}
        try:
            automaton = number_automaton(**conditions, max_digits=cap)
        except EmptyLanguage:
            assert not any(allowed(text, conditions) for text in ("0", "-1", "7", "0.1", "250"))
            continue
        text = some_text(automaton)
        assert text is not None and allowed(text, conditions), (text, conditions)


def some_text(automaton: Automaton) -> str | None:
    """A shortest text; None where no state that can be reached accepts."""
    texts = {0: ""}
    todo = [0]
    for state in todo:
        if automaton.accepts(state):
            return texts[state]
        partition, targets = automaton.arcs(state)
        for letter in "-.0123456789":
            target = targets[partition.class_of(ord(letter))]
            if target >= 0 and target not in texts:
                texts[target] = texts[state] + letter
                todo.append(target)
    return None


def test_multiples_of_round_numbers_need_few_states() -> None:
    automaton = number_automaton(integer=True, multiple_of=(3_600_000,))
    draw = random.Random(1)
    for _ in range(300):
        number = draw.randrange(10**15)
        assert automaton.matches(str(number)) == (number % 3_600_000 == 0)
        assert automaton.matches(str(number * 3_600_000))
    assert len(automaton._keys) < 1000


@pytest.mark.parametrize(
    ("divisor", "bounds", "written", "left_out"),
    [
        (1_000_003, {}, (-1000, -1, 0, 1, 7, 1000), (-1001, 1001)),
        (1_000_003, {"minimum": 10**12}, (10**6, 10**6 + 990), (10**6 + 1001, -1)),
        (1_000_003, {"exclusive_maximum": -(10**12)}, (-(10**6), -(10**6) - 990), (0, -1)),
        (9_973, {"minimum": 0, "maximum": 2**64}, (0, 1000), (1001,)),
        (9_973, {"minimum": 0, "maximum": 30_000}, (0, 1, 2, 3), (4,)),
        ("12345.6789", {}, (-1000, 1000), (1001,)),
    ],
)
def test_multiples_of_large_primes_are_few(
    divisor: int | str, bounds: dict[str, int], written: tuple[int, ...], left_out: tuple[int, ...]
) -> None:
    automaton = number_automaton(multiple_of=(divisor,), **bounds)
    for times in written:
        assert automaton.matches(str(times * Decimal(divisor)))
        assert not automaton.matches(str(times * Decimal(divisor) + 1))
    for times in left_out:
        assert not automaton.matches(str(times * Decimal(divisor)))
    draw = random.Random(2)
    for _ in range(50):  # as masks do: all ways to go on, from places all over
        state = 0
        while (
            targets := [t for t in automaton.arcs(state).targets if t >= 0]
        ) and draw.random() < 0.9:
            state = draw.choice(targets)
    assert len(automaton._keys) < 5_000


def test_refused_multiples_have_a_budget() -> None:
    primes = (2, 3, 5, 7, 11, 13, 17, 19, 23)
    with pytest.raises(GrammarTooComplex, match="22309287 remainders"):
        number_automaton(integer=True, not_multiple_of=primes)


def test_many_refused_values_are_one_automaton() -> None:
    values = [Fraction(n, 10) for n in range(-20, 160, 5)]
    automaton = number_automaton(excluded=tuple(values))
    for text in TEXTS:
        assert automaton.matches(text) == (Fraction(text) not in values), text
