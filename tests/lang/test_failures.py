"""A failure surfaces everywhere, names its place, and nothing ever waits for what cannot come."""

from __future__ import annotations

import threading

import pytest

import sglang_lite as sgl
from sglang_lite.lang.variable import Failure


class Boom(Exception):
    pass


@sgl.function
def two_gens(s):
    s += "a" + sgl.gen("x")
    s += "b" + sgl.gen("y")


def test_the_failed_run_raises_with_program_node_variable_and_line():
    with pytest.raises(sgl.ProgramError) as caught:
        two_gens.run(backend=sgl.Mock({"x": Boom("no power"), "y": "never"}))
    error = caught.value
    assert (error.program, error.variable) == ("two_gens", "x")
    assert error.where.endswith(f"test_failures.py:{two_gens.func.__code__.co_firstlineno + 2}")
    assert isinstance(error.__cause__, Boom)
    assert "no power" in str(error)


def test_every_waiter_of_a_failed_state_raises_the_cause():
    state = two_gens.run(backend=sgl.Mock({"x": Boom("no power")}), stream=True)
    reads = [
        lambda: state["x"],
        lambda: state["y"],
        lambda: state["unknown"],
        state.text,
        state.messages,
        state.sync,
        lambda: state.get_meta_info("y"),
        lambda: list(state.text_iter()),
        lambda: list(state.text_iter("x")),
    ]
    for read in reads:
        with pytest.raises(sgl.ProgramError) as caught:
            read()
        assert isinstance(caught.value.__cause__, Boom)
    assert isinstance(state.error(), sgl.ProgramError)
    assert "failed" in repr(state)


def test_the_body_reads_a_later_variable_of_a_failed_state():
    @sgl.function
    def program(s):
        s += sgl.gen("x") + "and" + sgl.gen("y")
        return s["y"]

    with pytest.raises(sgl.ProgramError, match="gen\\('x'\\)"):
        program.run(backend=sgl.Mock({"x": Boom("no"), "y": "never"}))


def test_appending_to_a_failed_state_is_refused():
    @sgl.function
    def program(s):
        s += sgl.gen("x")
        with pytest.raises(sgl.ProgramError):
            s.sync()
        s += "more"

    with pytest.raises(sgl.ProgramError, match="no power"):
        program.run(backend=sgl.Mock(Boom("no power")))


def test_an_exception_of_the_body_passes_through_and_aborts_the_request():
    mock = sgl.Mock([["x"] * 1000], delay=0.05)

    @sgl.function
    def program(s):
        s += sgl.gen("x")
        raise Boom("mine")

    with pytest.raises(Boom, match="mine"):
        program.run(backend=mock)
    assert len(mock.calls) == mock.aborted


def test_a_missing_variable_is_a_key_error_with_the_known_names():
    @sgl.function
    def program(s):
        s += sgl.gen("x")
        with pytest.raises(KeyError, match="'x'"):
            s["other"]
        with pytest.raises(KeyError, match="'x'"):
            s.get_meta_info("other")

    state = program.run(backend=sgl.Mock("text"))
    with pytest.raises(KeyError, match="'x'"):
        state["other"]


def test_wrong_expressions_fail_at_the_call():
    @sgl.function
    def program(s, value):
        s += value

    for value in (None, 5, b"bytes"):
        with pytest.raises(sgl.InvalidRequest):
            program.run(value, backend=sgl.Mock())
    with pytest.raises(sgl.InvalidRequest):
        sgl.gen("x") + 5


@pytest.mark.parametrize(("regex", "position"), [("x(a", 1), (r"x(a)\1", 4), ("[z-a]", 1)])
def test_a_regex_that_nothing_can_enforce_fails_at_the_call_with_its_position(regex, position):
    with pytest.raises(sgl.InvalidRegex) as caught:
        sgl.gen("x", regex=regex)
    assert caught.value.position == position


def test_streams_deliver_what_was_produced_and_then_raise():
    state = two_gens.run(backend=sgl.Mock({"x": ["one ", "two ", Boom("late")]}), stream=True)
    pieces = []
    with pytest.raises(sgl.ProgramError, match="late"):
        pieces.extend(state.text_iter("x"))
    assert pieces == ["one ", "two "]


def test_an_exception_of_the_body_comes_out_of_the_stream():
    @sgl.function
    def program(s):
        s += "hello" + sgl.gen("x")
        s.sync()
        raise Boom("in the body")

    state = program.run(backend=sgl.Mock("there"), stream=True)
    pieces = []
    with pytest.raises(sgl.ProgramError, match="in the body") as caught:
        pieces.extend(state.text_iter())
    assert "".join(pieces) == "hellothere"
    assert isinstance(caught.value.__cause__, Boom)
    assert isinstance(state.error(), sgl.ProgramError)


def failing_child(prompt, params):
    return Boom("child 1") if prompt.endswith("1") else "fine"


def test_join_raises_for_a_failed_fork():
    @sgl.function
    def program(s):
        forks = s.fork(3)
        forks += lambda i: f"{i}" + sgl.gen("x")
        with pytest.raises(sgl.ProgramError, match="child 1"):
            forks.join()
        s += "went on"

    assert program.run(backend=sgl.Mock(failing_child)).text() == "went on"


def test_join_keeps_positions_of_failed_and_missing():
    @sgl.function
    def program(s):
        forks = s.fork(3)
        forks += lambda i: f"{i}" + sgl.gen("x")
        forks[2].set_var("y", 7)
        forks.join(errors="keep")
        return s["x"], s["y"]

    x, y = program.run(backend=sgl.Mock(failing_child)).ret_value
    assert x[0] == x[2] == "fine"
    assert isinstance(x[1], Failure)
    assert "child 1" in str(x[1].error)
    assert y == [sgl.MISSING, x[1], 7]


def test_a_fork_that_nobody_joins_still_fails_the_run():
    @sgl.function
    def program(s):
        s.fork(2)[1].__iadd__(sgl.gen("x"))

    with pytest.raises(sgl.ProgramError, match="alone"):
        program.run(backend=sgl.Mock(Boom("alone")))


def test_a_failed_parent_fails_its_forks():
    @sgl.function
    def program(s):
        s += sgl.gen("x")
        forks = s.fork(2)
        forks += "child" + sgl.gen("y")
        forks.join()

    with pytest.raises(sgl.ProgramError, match="parent"):
        program.run(backend=sgl.Mock(Boom("parent")))


def test_nested_roles_and_wrong_ends_are_errors():
    @sgl.function
    def nested(s):
        s += sgl.user_begin() + sgl.assistant("x")

    @sgl.function
    def wrong_end(s):
        s += sgl.user_begin() + "x" + sgl.assistant_end()

    for program in (nested, wrong_end):
        with pytest.raises(sgl.ProgramError, match="user"):
            program.run(backend=sgl.Mock())


def test_scopes_close_when_the_body_catches_an_exception():
    @sgl.function
    def program(s):
        try:
            with s.user(), s.var_scope("said"):
                s += "half"
                raise Boom
        except Boom:
            pass
        s += sgl.assistant("ok")
        return s["said"]

    state = program.run(backend=sgl.Mock())
    assert state.ret_value == "half"
    assert [m["content"] for m in state.messages()] == ["half", "ok"]


def test_no_thread_outlives_forks_that_are_returned_unjoined():
    @sgl.function
    def program(s):
        forks = s.fork(4)
        forks += sgl.gen("x")
        return forks

    forks = program.run(backend=sgl.Mock("text")).ret_value
    assert [fork["x"] for fork in forks] == ["text"] * 4
    alive = [thread for thread in threading.enumerate() if not thread.daemon]
    assert alive == [threading.main_thread()]
