"""Reasoning, scratch and attempts."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sglang_lite as sgl
from sglang_lite.lang.reasoning import ReasoningSplitter

TEXT = "<think>\nwhy <b> so\n</think>\n\nBecause.\n"


@given(st.lists(st.integers(0, len(TEXT)), max_size=8))
def test_the_split_does_not_depend_on_the_deltas(cuts):
    places = sorted({0, len(TEXT), *cuts})
    splitter = ReasoningSplitter("<think>", "</think>")
    parts = []
    for low, high in itertools.pairwise(places):
        parts += splitter.feed(TEXT[low:high])
    parts += splitter.finish()
    assert (splitter.reasoning, splitter.answer) == ("why <b> so", "Because.\n")
    for part, whole in [("reasoning", splitter.reasoning), ("answer", splitter.answer)]:
        assert "".join(text for kind, text in parts if kind == part) == whole


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("just an answer", "", "just an answer"),
        ("thought</think>answer", "thought", "answer"),
        ("<think>never closed", "never closed", ""),
        ("<think></think>answer", "", "answer"),
        ("<thin", "", "<thin"),
        ("", "", ""),
    ],
)
def test_missing_tags(text, reasoning, answer):
    splitter = ReasoningSplitter("<think>", "</think>")
    splitter.feed(text)
    splitter.finish()
    assert (splitter.reasoning, splitter.answer) == (reasoning, answer)


@pytest.mark.parametrize("outside", [True, False])
def test_reasoning_leaves_the_text_and_has_a_variable(outside):
    @sgl.function
    def program(s):
        s += sgl.user("q")
        if outside:
            s += sgl.separate_reasoning(sgl.assistant(sgl.gen("a", n=2)), model_type="qwen3")
        else:
            s += sgl.assistant(sgl.separate_reasoning(sgl.gen("a", n=2), model_type="qwen3"))
        return s["a"], s["a_reasoning_content"]

    mock = sgl.Mock(["<think>one</think>1", "<think>two</think>2"])
    state = program.run(backend=mock)
    assert state.ret_value == (["1", "2"], ["one", "two"])
    assert state.messages()[-1]["content"] == "1"


def test_reasoning_streams_under_its_own_name():
    @sgl.function
    def program(s):
        s += sgl.separate_reasoning(sgl.gen("a"), open="[[", close="]]")

    state = program.run(backend=sgl.Mock([["[[hm", "m]", "] yes", "!"]]), stream=True)
    assert list(state.text_iter("a_reasoning_content")) == ["hm", "m"]
    assert list(state.text_iter("a")) == ["yes", "!"]
    assert "".join(state.text_iter()) == "yes!"


def test_reasoning_needs_an_expression_and_a_known_family():
    with pytest.raises(sgl.InvalidRequest, match="expr"):
        sgl.separate_reasoning()
    with pytest.raises(sgl.InvalidRequest, match="qwen3"):
        sgl.separate_reasoning(sgl.gen("a"), model_type="unknown")


def test_scratch_text_vanishes_and_its_values_stay():
    @sgl.function
    def program(s):
        s += "kept "
        with s.scratch():
            s += "notes " + sgl.gen("x")
        s += "then " + sgl.gen("y")
        return s["x"]

    mock = sgl.Mock({"x": "X", "y": "Y"})
    state = program.run(backend=mock)
    assert (state.ret_value, state.text()) == ("X", "kept then Y")
    assert [prompt for prompt, _ in mock.calls] == ["kept notes ", "kept then "]


def test_attempts_roll_back_text_variables_and_roles():
    @sgl.function
    def program(s):
        s += "start"
        for attempt in s.attempt(retries=3):
            with attempt:
                s += sgl.user_begin() + sgl.gen("x")
                attempt.check(s["x"] == "good", feedback="(be good)")
                s += sgl.user_end()
        s += "end"
        return s["x"], s.all("x"), attempt.number

    mock = sgl.Mock(["bad", "worse", "good"])
    state = program.run(backend=mock)
    assert state.ret_value == ("good", ["good"], 2)
    assert state.text() == "start<|im_start|>user\ngood<|im_end|>\nend"
    assert [m["content"] for m in state.messages()] == ["good"]
    prompts = [prompt for prompt, _ in mock.calls]
    assert prompts[0] == "start<|im_start|>user\n"
    assert prompts[1] == prompts[2] == "start(be good)<|im_start|>user\n"


def test_feedback_inside_an_open_message_leaves_it_when_it_is_closed():
    @sgl.function
    def program(s):
        s += sgl.user_begin() + "a "
        for attempt in s.attempt(retries=1):
            with attempt:
                s += "b " + sgl.gen("x") + sgl.user_end() + sgl.assistant_begin() + "c"
                attempt.check(s["x"] == "good", feedback="(hint) ")
        s += "d" + sgl.assistant_end()

    state = program.run(backend=sgl.Mock(["bad", "good"]))
    assert [m["content"] for m in state.messages()] == ["a b good", "cd"]
    assert "hint" not in state.text()


def test_the_last_attempt_raises():
    @sgl.function
    def program(s):
        s += "start"
        try:
            for attempt in s.attempt(retries=1):
                with attempt:
                    s += sgl.gen("x")
                    attempt.check(False, feedback="no")
        except sgl.CheckFailed as error:
            return str(error), "x" in s

    state = program.run(backend=sgl.Mock("bad"))
    assert state.ret_value == ("no", False)
    assert state.text() == "start"


def test_an_incomplete_value_is_tried_again_and_other_errors_pass():
    @sgl.function
    def program(s):
        for attempt in s.attempt(retries=1):
            with attempt:
                s += sgl.gen("x", type=int, max_tokens=3)
                value = s["x"]
        return value

    assert program.run(backend=sgl.Mock(["12345", "12"])).ret_value == 12

    @sgl.function
    def failing(s):
        for attempt in s.attempt(retries=1):
            with attempt:
                s += "lost"
                raise OSError("mine")

    with pytest.raises(OSError, match="mine"):
        failing.run(backend=sgl.Mock())


def test_feedback_can_stay():
    @sgl.function
    def program(s):
        for attempt in s.attempt(retries=1, keep_feedback=True):
            with attempt:
                s += sgl.gen("x")
                attempt.check(s["x"] == "good", feedback="(hint) ")

    assert program.run(backend=sgl.Mock(["bad", "good"])).text() == "(hint) good"
    with pytest.raises(sgl.InvalidRequest, match="retries"):
        sgl.function(lambda s: s.attempt(retries=-1)).run(backend=sgl.Mock())


def test_attempts_in_an_async_program():
    @sgl.function
    async def program(s):
        for attempt in s.attempt(retries=2):
            async with attempt:
                s += sgl.gen("x")
                attempt.check(await s["x"] == "good")

    async def main():
        return await program(backend=sgl.Mock(["bad", "good"]))

    assert asyncio.run(main()).text() == "good"
