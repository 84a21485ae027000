"""The algebra of automata over code points, and their byte images, by brute force."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable

import pytest

from sglang_lite.constrained import algebra
from sglang_lite.constrained.algebra import combine, union
from sglang_lite.constrained.automaton import (
    DEAD,
    Automaton,
    EmptyLanguage,
    repeated,
    words,
)
from sglang_lite.constrained.byte_dfa import TextDFA, text_dfa
from sglang_lite.constrained.charset import ANYTHING, CharSet, char_set, characters, refine
from sglang_lite.constrained.lengths import bounded
from sglang_lite.constrained.regex import full_match, search
from sglang_lite.errors import GrammarTooComplex
from tests.constrained.regex_samples import texts

TEXTS = [*texts("ab1", 5)]
PATTERNS = [
    "a*b?1*", "(ab)*", "[ab]{2,4}", "a+|b+", "(a|b)*1", ".*ab.*", "(?!a).*", "a{3}", "(aab?)*1?",
    "[^1]*", "(?:a1|b){1,2}", ".{2,3}", "1*a1*", "(?=.*b).*1",
]  # fmt: skip


def members(automaton: Automaton) -> set[str]:
    return {text for text in TEXTS if automaton.matches(text)}


def or_nothing(make: Callable[..., Automaton], *arguments: object) -> set[str]:
    """The short members, where an empty language is the empty set."""
    try:
        return members(make(*arguments))
    except EmptyLanguage:
        return set()


@pytest.mark.parametrize("first", PATTERNS)
def test_algebra_is_that_of_sets(first: str) -> None:
    one = full_match(first)
    left = members(one)
    assert or_nothing(combine, (), (one,)) == set(TEXTS) - left
    for second in PATTERNS:
        other = full_match(second)
        right = members(other)
        assert or_nothing(combine, (one, other)) == left & right
        assert or_nothing(combine, (one,), (other,)) == left - right
        assert members(union((one, other))) == left | right
    for low, high in [(0, 2), (3, 3), (2, None), (5, 9)]:
        expected = {t for t in left if low <= len(t) <= (high or 99)}
        assert or_nothing(bounded, one, low, high) == expected


def test_an_end_one_step_away_is_seen_at_once() -> None:
    refused = full_match("[a-z]{1,255}")
    kept = combine((), (refused,))
    assert kept.matches("ab1") and not kept.matches("ab")
    assert len(refused._keys) < 10  # not all the way to the bound


def test_what_excludes_each_other_is_empty() -> None:
    for required, refused in [
        (("^b", "^[^b]"), ()),
        (("ab",), ("b",)),
        (("x",), ("",)),
    ]:
        with pytest.raises(EmptyLanguage):
            combine(list(map(search, required)), list(map(search, refused)))
    assert combine((search("b"), search("^."))).matches("b")
    assert combine((search("b"),), (search("ab"),)).matches("b")


def assert_live(automaton: Automaton, steps: int = 400) -> None:
    """From every state that a random walk meets, the shortest text is found and accepted."""
    draw = random.Random(7)
    state = 0
    for _ in range(steps):
        arcs = automaton.arcs(state)
        live = [t for t in arcs.targets if t != DEAD]
        assert live or automaton.accepts(state)
        assert 0 <= automaton.shortest(state) < 50
        state = draw.choice(live) if live else 0


@pytest.mark.parametrize("first", PATTERNS)
def test_every_state_is_live(first: str) -> None:
    one = full_match(first)
    assert_live(one)
    for second in PATTERNS[::3]:
        for required, refused in [((one, full_match(second)), ()), ((one,), (full_match(second),))]:
            try:
                assert_live(combine(required, refused), 60)
                assert_live(bounded(combine(required, refused), 2, 5), 60)
            except EmptyLanguage:
                continue


@pytest.mark.parametrize("first", PATTERNS)
def test_the_shortest_text_has_the_length_that_is_said(first: str) -> None:
    one = full_match(first)
    assert one.shortest(0) == min(map(len, members(one)))


def explored(dfa: TextDFA, limit: int = 3_000) -> list[int]:
    seen, todo = {dfa.start}, [dfa.start]
    while todo and len(seen) < limit:
        for target in set(dfa.row(todo.pop())):
            if target != DEAD and target not in seen:
                seen.add(target)
                todo.append(target)
    assert not todo
    return sorted(seen)


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[a-c]+(me|\d{2})$", "^[é-€]$", "^[\u0800\ud7ff\ue000]$", "^[\U00010000\U0010ffff]$",
        "^[\\x00-\\x1f]+$", '^["\\\\/]$', "^[^a]$", "^[߿ࠀ]$", "^[\uffff\U00010000]$", "^\\w\\W$",
        "^[\ud7a3\ud7ff-\ue010\U0001f600]{1,2}$",
    ],
)  # fmt: skip
@pytest.mark.parametrize("encoding", ["utf8", "json", "json-canonical"])
def test_every_state_between_bytes_is_live(pattern: str, encoding: str) -> None:
    dfa = text_dfa(search(pattern), encoding, encoding != "utf8")
    states = explored(dfa)
    live = {state for state in states if dfa.accepts(state)}
    before = 0
    while len(live) > before:
        before = len(live)
        live |= {state for state in states if live.intersection(dfa.row(state))}
    assert live == set(states)


def test_equal_middles_of_a_character_are_one_state() -> None:
    dfa = text_dfa(search("^[^:]*$"), "json", True)
    row = dfa.row(dfa.body)
    assert len({row[byte] for byte in range(0xE1, 0xED)}) == 1
    assert len({row[byte] for byte in range(0xC2, 0xE0)}) == 1
    assert len(explored(dfa)) < 60


@pytest.mark.parametrize(
    ("pattern", "maximum"),
    [
        ("^a{2,40}b?$", None), ("^(a|bb){3,30}c$", None), ("^[ab]{40}c*$", None),
        ("^a*b{0,9}$", 14), ("^(a{1,9}b){2,9}$", 40), ("^(a.{3})?[bc]*$", 20),
        ("^a{0,30}(bb)?$", 25),
    ],
)  # fmt: skip
def test_near_states_do_the_same_with_short_texts(pattern: str, maximum: int | None) -> None:
    horizon, shared = 3, 0
    dfa = text_dfa(bounded(search(pattern), 0, maximum), "utf8", False)

    def agree(one: int, other: int, depth: int) -> bool:
        if (one == DEAD) != (other == DEAD):
            return False
        if one in (DEAD, other):
            return True
        if dfa.accepts(one) != dfa.accepts(other):
            return False
        return depth == 0 or all(
            agree(dfa.step(one, byte), dfa.step(other, byte), depth - 1) for byte in b"abc\xc3"
        )

    for state in explored(dfa):
        near = dfa.near(state, horizon)
        shared += near != state
        assert agree(state, near, horizon)
    assert shared


@pytest.mark.parametrize("encoding", ["utf8", "json"])
@pytest.mark.parametrize(
    "pattern", ["^([^ ]+ +){0,9}[^ ]+$", "^(a|bb){3,12}c$", "^a*b{0,9}$", "^[ab]{7}(é{0,5}|c)$"]
)
def test_twins_do_the_same_with_the_texts_that_were_walked(pattern: str, encoding: str) -> None:
    dfa = text_dfa(search(pattern), encoding, encoding == "json")

    def walked(state: int) -> dict[bytes, int]:
        """All texts of up to three characters with what they lead to."""
        found, work = {b"": state}, [b""]
        for text in work:
            for char in (b"a", b"b", b"c", b" ", "é".encode(), b'"') if len(text) < 3 else ():
                target = found[text]
                for byte in char:
                    target = dfa.step(target, byte) if target != DEAD else DEAD
                found[text + char] = target
                if target != DEAD:
                    work.append(text + char)
        return found

    states, shared = [state for state in explored(dfa) if dfa.bound(state) is None], 0
    for one in states:
        ours = walked(one)
        met = sorted(set(ours.values()) - {DEAD})
        for other in states:
            images = dfa.twins(one, other, met)
            if images is not None:
                image = dict(zip(met, images, strict=True)) | {DEAD: DEAD}
                assert walked(other) == {text: image[state] for text, state in ours.items()}
                assert all(dfa.accepts(a) == dfa.accepts(b) for a, b in image.items() if a != DEAD)
                shared += one != other
    assert shared


def test_finite_languages_are_enumerated() -> None:
    assert full_match("(a|b)c?|é").enumerate(10) == ["a", "ac", "b", "bc", "é"]
    assert full_match("(a|b)c?|é").enumerate(4) is None
    assert full_match("a*").enumerate(100) is None
    assert full_match("[^a]").enumerate(100) is None
    assert words(("x", "", "xy")).enumerate(3) == ["", "x", "xy"]


def test_lengths_that_a_pattern_cannot_have() -> None:
    even = full_match("(ab)*")
    assert members(bounded(even, 3, 4)) == {"abab"}
    with pytest.raises(EmptyLanguage):
        bounded(even, 3, 3)
    with pytest.raises(EmptyLanguage):
        bounded(full_match("a{100000}"), 0, 5)
    assert bounded(search("ab"), 1000, 1000).shortest(0) == 1000
    assert bounded(repeated(ANYTHING), 3, 100_000).remainder(0) == (ANYTHING, 3, 100_000)


def test_the_budget_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algebra, "MAX_SEARCH", 5)
    parts = (full_match("x[ab]*a[ab]{8}|y"), full_match("x[ab]*b[ab]{9}|y"))
    text = "xba" + "b" * 8
    assert all(part.matches(text) for part in parts)
    automaton = combine(parts)
    assert automaton.matches("y")
    assert automaton.after("x") == DEAD  # given up, but never an error
    with pytest.raises(GrammarTooComplex, match="5 states"):
        combine((full_match("x[ab]*a[ab]{8}"), full_match("x[ab]*b[ab]{9}")))
    monkeypatch.undo()
    # What is refused does not shrink by that.
    assert not combine((full_match("[xyab]*"),), (automaton,)).matches(text)


def test_automata_pickle_and_are_shared() -> None:
    automaton = bounded(combine((search("a"),), (search("b"),)), 2, 3)
    again = pickle.loads(pickle.dumps(automaton))
    assert members(again) == members(automaton)
    assert pickle.loads(pickle.dumps(search("ab"))) is search("ab")


def test_threads_may_share_an_automaton() -> None:
    dfa = text_dfa(search("^([ab]|é|1{2,5}){3,40}x"), "json", True)
    failures: list[str] = []

    def run(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(150):
            text = "".join(draw.choices("abé", k=draw.randint(3, 40))) + "x"
            if not dfa.matches(f'"{text}"'.encode()):
                failures.append(text)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(dfa._keys) == len(set(map(str, dfa._keys))) == len(dfa._ids)


def test_character_sets() -> None:
    letters = char_set([(0x61, 0x7A)])
    assert (ord("q") in letters, ord("Q") in letters) == (True, False)
    assert ~~letters == letters
    assert (letters | ~letters) == ANYTHING
    assert not letters & ~letters
    assert char_set([(0xD800, 0xDFFF)]) == CharSet(())
    assert char_set([(0xD7FF, 0xE000)]).size() == 2
    assert ANYTHING.size() == 0x110000 - 0x800
    partition, masks = refine((letters, characters("a1")))
    assert [masks[partition.class_of(ord(c))] for c in "ab1A"] == [3, 1, 2, 0]
