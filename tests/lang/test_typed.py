"""Python types: to constraints, and texts back to values."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import re
from typing import Literal, Optional, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from typing_extensions import TypedDict

import sglang_lite as sgl
from sglang_lite.constrained import GrammarCompiler, GrammarMatcher, Vocabulary
from sglang_lite.constraint import Choice, JsonSchema, Regex
from sglang_lite.lang.typed import TypedValue


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Point(BaseModel):
    x: int
    y: float


@dataclasses.dataclass
class Pair:
    first: str
    second: Optional[int] = None  # noqa: UP045  both spellings are used


class Movie(TypedDict):
    title: str
    year: int


BYTES = Vocabulary([bytes([b]) for b in range(256)] + [b""], eos_token_ids=[256])
COMPILER = GrammarCompiler(BYTES)


def accepts(type_, text, **bounds):
    matcher = GrammarMatcher(COMPILER.compile(TypedValue.of(type_, **bounds).constraint))
    return matcher.accept_string(text) and matcher.is_completed()


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (int, "-42", -42),
        (float, "2.5e3", 2500.0),
        (float, "7", 7.0),
        (bool, "False", False),
        (Literal["a", 1, True], "1", 1),
        (Colour, "blue", Colour.BLUE),
        (Size, "2", Size.LARGE),
        (datetime.date, "2024-02-29", datetime.date(2024, 2, 29)),
        (datetime.time, "23:59:00", datetime.time(23, 59)),
        (
            datetime.datetime,
            "2024-01-02T03:04:05Z",
            datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc),
        ),
        (list[int], "[1, 2]", [1, 2]),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (Optional[int], "null", None),  # noqa: UP045
        (Union[int, str], '"x"', "x"),  # noqa: UP007
        (int | None, "3", 3),
        (Point, '{"x": 1, "y": 2.5}', Point(x=1, y=2.5)),
        (Pair, '{"first": "你好"}', Pair("你好")),
        (Movie, '{"title": "🎬", "year": 1999}', {"title": "🎬", "year": 1999}),
    ],
)
def test_the_constraint_admits_the_text_and_the_value_comes_back(type_, text, value):
    assert accepts(type_, text)
    parsed = TypedValue.of(type_).parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (int, "1.5"),
        (int, "007"),
        (int, "1" * 19),
        (bool, "true"),
        (Colour, "green"),
        (datetime.date, "2023-02-29"),
        (datetime.date, "2023-04-31"),
        (datetime.date, "0000-01-01"),
        (datetime.time, "24:00:00"),
        (list[int], "[1, 2"),
        (Point, '{"x": 1}'),
        (Point, '{"x": 1, "y": 2, "z": 3}'),
    ],
)
def test_the_constraint_refuses_what_is_no_value(type_, text):
    assert not accepts(type_, text)


def test_bounds():
    for number in range(-3, 120):
        assert accepts(int, str(number), ge=0, lt=100) == (0 <= number < 100)
    assert accepts(float, "0.5", gt=0, le=1)
    assert not accepts(float, "0.0", gt=0, le=1)
    assert accepts(str, "ab\n", min_length=2, max_length=3)
    assert not accepts(str, "abcd", min_length=2, max_length=3)


@given(st.dates())
def test_every_date_is_admitted_and_comes_back(date):
    pattern = TypedValue.of(datetime.date).constraint.pattern
    assert re.fullmatch(pattern, date.isoformat())


@given(st.from_regex(TypedValue.of(datetime.date).constraint.pattern, fullmatch=True))
def test_every_admitted_date_exists(text):
    assert TypedValue.of(datetime.date).parse(text).isoformat() == text


def test_types_without_a_description_are_refused_at_the_call():
    class Plain:
        pass

    for wrong in (Plain, object(), lambda: None, Literal[1, "1"]):
        with pytest.raises(sgl.InvalidRequest, match="type"):
            sgl.gen("x", type=wrong)
    with pytest.raises(sgl.InvalidRequest, match="min_length"):
        sgl.gen("x", type=int, min_length=2)
    with pytest.raises(sgl.InvalidRequest, match="ge"):
        sgl.gen("x", regex="a", ge=1)
    with pytest.raises(sgl.InvalidRequest, match="max_length"):
        sgl.gen("x", type=str, min_length=3, max_length=2)
    with pytest.raises(sgl.InvalidRequest, match="only one constraint"):
        sgl.gen("x", type=int, regex="a")


def answer_of(text, **options):
    @sgl.function
    def program(s):
        s += "p" + sgl.gen("x", **options)

    return program.run(backend=sgl.Mock(text))


def test_a_state_gives_the_value_and_the_text():
    state = answer_of('{"x": 1, "y": 2.5}', type=Point)
    assert state["x"] == Point(x=1, y=2.5)
    assert json.loads(state.raw("x")) == {"x": 1, "y": 2.5}
    assert state.text() == 'p{"x": 1, "y": 2.5}'


def test_a_pydantic_class_as_json_schema_is_typed_and_a_dict_is_text():
    assert answer_of('{"x": 1, "y": 2}', json_schema=Point)["x"] == Point(x=1, y=2)
    schema = json.dumps({"type": "object"})
    assert answer_of('{"x": 1}', json_schema=schema)["x"] == '{"x": 1}'


def test_samples_are_parsed_each():
    mock = sgl.Mock(iter(["1", "2"]))

    @sgl.function
    def program(s):
        s += sgl.gen("x", type=int, n=2)

    state = program.run(backend=mock)
    assert (state["x"], state.raw("x"), state.text()) == ([1, 2], ["1", "2"], "1")


def test_dtype_keeps_the_values_as_texts():
    assert answer_of("12", dtype=int)["x"] == "12"
    for make, pattern in ((sgl.gen_int, "[0-9]"), (sgl.gen_string, '"')):
        assert pattern in make("x").constraint.pattern
    assert sgl.gen("x", dtype="bool").constraint == Regex("(True|False)")
    with pytest.raises(sgl.InvalidRequest, match="dtype"):
        sgl.gen("x", dtype=list)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("12345", {"type": int, "max_tokens": 3}),
        ('{"x": 1, "y": 2}', {"type": Point, "max_tokens": 7}),
        ("red", {"type": Colour, "max_tokens": 2}),
    ],
)
def test_a_cut_value_raises_incomplete_with_the_partial_text(text, options):
    state = answer_of(text, **options)
    with pytest.raises(sgl.Incomplete) as caught:
        state["x"]
    assert caught.value.text == text[: options["max_tokens"]] == state.raw("x")
    assert state.finish_reason("x") == "length"


def test_a_whole_json_value_at_the_limit_is_whole():
    text = '{"x": 1, "y": 2}'
    assert answer_of(text + "?", type=Point, max_tokens=len(text))["x"] == Point(x=1, y=2)


def test_a_text_that_breaks_the_constraint_is_not_passed_on():
    with pytest.raises(sgl.Incomplete):
        answer_of("nonsense", type=int)["x"]


def test_labels_become_choices():
    assert TypedValue.of(Colour).constraint == Choice(("red", "blue"))
    assert TypedValue.of(str).constraint is None


def test_json_stands_on_one_line_unless_whitespace_is_given():
    fixed = JsonSchema.of({"type": "object"}, separators=(", ", ": "))
    schema = '{"type": "object"}'
    assert sgl.gen("x", json_schema=schema).constraint == fixed
    assert sgl.gen("x", type=list[int]).constraint.separators == (", ", ": ")
    loose = sgl.gen("x", json_schema=schema, whitespace=3).constraint
    assert (loose.max_whitespace, loose.separators) == (3, None)
    assert sgl.gen("x", type=list[int], whitespace=0).constraint.max_whitespace == 0
    for options in ({"regex": "a"}, {}):
        with pytest.raises(sgl.InvalidRequest, match="whitespace"):
            sgl.gen("x", whitespace=1, **options)
