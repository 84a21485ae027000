"""Text out of tokens: whole characters, exact concatenation, stops across any boundaries."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_lite.errors import EngineError, InvalidRequest
from sglang_lite.runtime.detokenizer import (
    IncrementalDetokenizer,
    StopScanner,
    compile_stop_pattern,
)

PIECES = [bytes([i]) for i in range(256)]


def bytewise() -> IncrementalDetokenizer:
    return IncrementalDetokenizer(lambda token: PIECES[token])


@given(st.text(max_size=40))
def test_deltas_concatenate_and_hold_whole_characters(text: str) -> None:
    detokenizer = bytewise()
    deltas = [detokenizer.push(byte) for byte in text.encode()]
    assert "".join(deltas) == text
    assert all(len(delta) <= 1 for delta in deltas)
    assert detokenizer.flush() == ""


@given(st.binary(max_size=40))
def test_any_bytes_give_what_decoding_at_once_gives(data: bytes) -> None:
    detokenizer = bytewise()
    text = "".join(detokenizer.push(byte) for byte in data) + detokenizer.flush()
    assert text == data.decode("utf-8", errors="replace")


def test_an_unfinished_character_is_flushed_once() -> None:
    detokenizer = bytewise()
    assert [detokenizer.push(byte) for byte in "🎉".encode()[:3]] == ["", "", ""]
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_a_genuine_replacement_character_is_text() -> None:
    detokenizer = IncrementalDetokenizer(lambda token: "\ufffd".encode())
    assert detokenizer.push(0) == "\ufffd"


def scan(scanner: StopScanner, pieces: list[str]) -> tuple[str, str | None]:
    text = ""
    for piece in pieces:
        sent, stop = scanner.push(piece)
        text += sent
        if stop is not None:
            return text, stop
    return text + scanner.flush(), None


def test_nothing_is_held_back_without_stops() -> None:
    assert StopScanner().push("anything") == ("anything", None)


def test_a_stop_over_three_pieces_is_cut() -> None:
    scanner = StopScanner(["END."])
    assert scanner.push("so E") == ("so ", None)
    assert scanner.push("ND") == ("", None)
    assert scanner.push(". more") == ("", "END.")


def test_a_false_start_is_sent_when_it_cannot_be_a_stop() -> None:
    scanner = StopScanner(["END"])
    assert scanner.push("xEN") == ("x", None)
    assert scanner.push("ED") == ("ENED", None)


def test_the_earliest_wins_then_the_longest() -> None:
    assert StopScanner(["b", "abc", "ab"]).push("xabcd") == ("x", "abc")
    assert StopScanner(["b", "c"]).push("xcb") == ("x", "c")


def test_repeated_starts_of_a_stop() -> None:
    assert scan(StopScanner(["aab"]), list("aaaab")) == ("aa", "aab")


def test_keep_leaves_the_stop_in_the_text() -> None:
    assert scan(StopScanner(["END"], keep=True), ["so E", "ND more"]) == ("so END", "END")


def test_stops_before_the_minimum_are_text() -> None:
    scanner = StopScanner(["END"])
    assert scanner.push("END", may_stop=False) == ("END", None)
    assert scanner.push("E", may_stop=False) == ("", None)
    assert scanner.push("ND") == ("", "END")


@settings(max_examples=200)
@given(
    st.text(alphabet="ab", max_size=30),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(1, 5), min_size=1, max_size=10),
)
def test_no_part_of_a_stop_is_ever_sent(text: str, stops: list[str], sizes: list[int]) -> None:
    pieces, at = [], 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    got, stop = scan(StopScanner(stops), pieces)
    positions = [at for s in stops if (at := text.find(s)) >= 0]
    if stop is None:
        assert not positions
        assert got == text
    else:
        assert text.startswith(got + stop)
        assert not any(s in got for s in stops)
    single = scan(StopScanner(stops), list(text))
    assert (single[1] is None) == (stop is None)


def test_a_pattern_stops_after_its_match() -> None:
    assert scan(StopScanner(patterns=[r"\d{3}"]), ["a1", "2", "34"]) == ("a123", r"\d{3}")


def test_a_pattern_sees_what_was_sent_before() -> None:
    scanner = StopScanner(patterns=["start.*end"])
    assert scanner.push("start ") == ("start ", None)
    assert scanner.push("x" * 100)[1] is None
    assert scanner.push("end!") == ("end", "start.*end")


@pytest.mark.parametrize("bad", ["(", "a*", "", "x" * 600])
def test_bad_patterns_are_refused(bad: str) -> None:
    with pytest.raises(InvalidRequest, match="stop_regex"):
        compile_stop_pattern(bad)


def test_a_pattern_that_takes_too_long_is_an_error_not_a_hang() -> None:
    scanner = StopScanner(patterns=["(a|aa|aaa)+(a|aa|aaa)+(a|aa|aaa)+c"])
    with pytest.raises(EngineError, match="took more than"):
        scanner.push("a" * 500)
