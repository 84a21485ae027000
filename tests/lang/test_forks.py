"""Forks: what a join brings back, and what happens to those that are not needed."""

from __future__ import annotations

import time

import pytest

import sglang_lite as sgl
from tests.runtime.toy import toy_engine


def numbered(prompt, params):
    return f"<{prompt}>"


def test_gather_publishes_lists_in_the_order_of_the_forks():
    @sgl.function
    def program(s):
        s += "p"
        forks = s.fork(3)
        forks += lambda i: str(i) + sgl.gen("x")
        joined = forks.join()
        return joined, s["x"], forks["x"], forks[1]["x"]

    joined, values, group, one = program.run(backend=sgl.Mock(numbered)).ret_value
    assert joined == {"x": ["<p0>", "<p1>", "<p2>"]}
    assert values == group == joined["x"]
    assert one == "<p1>"


def test_the_parents_text_is_not_changed_by_gathering():
    @sgl.function
    def program(s):
        s += "p"
        forks = s.fork(2)
        forks += ["a", "b" + sgl.gen("x")]
        forks.join()
        s += "q"
        return s["x"]

    state = program.run(backend=sgl.Mock("t"))
    assert state.text() == "pq"
    assert state.ret_value == [sgl.MISSING, "t"]


def test_rounds_in_a_loop_are_all_kept():
    @sgl.function
    def program(s):
        for i in range(3):
            forks = s.fork(2)
            forks += f"{i}" + sgl.gen("x")
            forks.join()
        return s["x"], s.all("x")

    last, every = program.run(backend=sgl.Mock(numbered)).ret_value
    assert last == ["<2>", "<2>"]
    assert every == [["<0>"] * 2, ["<1>"] * 2, ["<2>"] * 2]


def test_a_fork_that_makes_a_name_of_the_parent_again_is_gathered():
    @sgl.function
    def program(s):
        s += sgl.gen("x")
        forks = s.fork(2)
        forks[1].__iadd__("again" + sgl.gen("x"))
        forks.join()
        return s["x"]

    assert program.run(backend=sgl.Mock(["first", "second"])).ret_value == [sgl.MISSING, "second"]


def test_concatenation_appends_the_texts_and_keeps_ids():
    @sgl.function
    def program(s):
        s += "p:"
        forks = s.fork(2)
        forks += lambda i: f"[{i}" + sgl.gen("x") + "]"
        forks.join("concate_and_append")
        s += "end"

    state = program.run(backend=sgl.Mock("t"))
    assert state.text() == "p:[0t][1t]end"
    assert [p.text for p in state._executor.transcript.pieces if p.token_ids] == ["t", "t"]


def test_nested_forks_and_values_read_through_the_group():
    @sgl.function
    def program(s):
        outer = s.fork(2)
        for i, child in enumerate(outer):
            inner = child.fork(2)
            inner += lambda j, i=i: f"{i}{j}" + sgl.gen("x")
            inner.join()
        outer.join()
        return s["x"]

    assert program.run(backend=sgl.Mock(numbered)).ret_value == [
        ["<00>", "<01>"],
        ["<10>", "<11>"],
    ]


def test_copy_gives_values_back_without_lists():
    @sgl.function
    def program(s):
        s += "p"
        with s.copy() as c:
            c += "aside" + sgl.gen("x")
        s += "q"
        return s["x"]

    state = program.run(backend=sgl.Mock("t"))
    assert (state.ret_value, state.text()) == ("t", "pq")


def test_meta_info_and_usage_of_joined_variables_are_lists():
    @sgl.function
    def program(s):
        forks = s.fork(2)
        forks += lambda i: "p" * (i + 1) + sgl.gen("x")
        forks.join()
        return s.get_meta_info("x"), s.usage("x")

    meta, usage = program.run(backend=sgl.Mock("t")).ret_value
    assert [m["prompt_tokens"] for m in meta] == [1, 2]
    assert [u.completion_tokens for u in usage] == [1, 1]


def paced(prompt, params):
    return ["x"] * (1 if prompt.endswith("1") else 100)


def test_the_first_to_finish_wins_and_the_others_are_aborted():
    mock = sgl.Mock(paced, delay=0.005)

    @sgl.function
    def program(s):
        forks = s.fork(3)
        forks += lambda i: str(i) + sgl.gen("x")
        (winner,) = forks.first()
        s += "won: " + winner["x"]

    assert program.run(backend=mock).text() == "won: x"
    assert mock.aborted == 2


def test_first_raises_only_if_too_few_succeed():
    def answer(prompt, params):
        return "fine" if prompt == "2" else OSError("no " + prompt)

    @sgl.function
    def program(s, count):
        forks = s.fork(3)
        forks += lambda i: str(i) + sgl.gen("x")
        return [state["x"] for state in forks.first(count)]

    assert program.run(1, backend=sgl.Mock(answer)).ret_value == ["fine"]
    with pytest.raises(sgl.ProgramError, match="no "):
        program.run(2, backend=sgl.Mock(answer))
    with pytest.raises(sgl.InvalidRequest, match="count"):
        program.run(4, backend=sgl.Mock(answer))


def test_children_as_they_complete():
    @sgl.function
    def program(s):
        forks = s.fork(2)
        forks += lambda i: str(i) + sgl.gen("x")
        return [state.text()[0] for state in forks.as_completed()]

    assert program.run(backend=sgl.Mock(paced, delay=0.002)).ret_value == ["1", "0"]


def test_a_vote_takes_the_most_frequent_value():
    @sgl.function
    def program(s):
        forks = s.fork(5)
        forks += sgl.gen("x", type=int)
        return forks.vote("x"), s["x"]

    mock = sgl.Mock(iter(["7", "3", "7", "3", "3"]))
    assert program.run(backend=mock).ret_value == (3, 3)


def test_leaving_a_group_stops_its_children():
    mock = sgl.Mock(paced, delay=0.005)

    @sgl.function
    def program(s):
        with s.fork(2) as forks:
            forks += lambda i: str(i) + sgl.gen("x")
            forks[1].sync()
        return forks[1].text(), forks[1]["x"]

    assert program.run(backend=mock).ret_value == ("1x", "x")
    assert mock.aborted == 1


@pytest.mark.parametrize("way", ["leave", "first", "cancel"])
def test_branches_that_are_given_up_free_what_they_hold_in_the_engine(way):
    @sgl.function
    def program(s):
        s += "prompt"
        with s.fork(3) as forks:
            forks += lambda i: f"{i}" + sgl.gen("x", max_tokens=2 if i == 0 else 1800, **endless)
            forks[0].sync()
            if way == "first":
                assert forks.first() == [forks[0]]
            elif way == "cancel":
                forks.cancel()

    endless = {"ignore_eos": True}
    with toy_engine() as engine:
        program.run(backend=engine)
        for _ in range(200):
            if engine.stats()["num_running_reqs"] == 0:
                break
            time.sleep(0.01)
        assert engine.stats()["num_running_reqs"] == 0
        engine.check()


def test_wrong_uses_are_refused_at_the_call():
    @sgl.function
    def program(s):
        with pytest.raises(sgl.InvalidRequest, match="size"):
            s.fork(0)
        with pytest.raises(sgl.NotSupported):
            s.fork(2, position_ids_offset=[0, 1])
        forks = s.fork(2)
        with pytest.raises(sgl.InvalidRequest, match="mode"):
            forks.join("merge")
        with pytest.raises(sgl.InvalidRequest, match="expressions"):
            forks += ["only one"]
        with pytest.raises(IndexError):
            forks[2]
        forks[0] += "text"
        with pytest.raises(sgl.InvalidRequest, match="replaced"):
            forks[0] = forks[1]
        return len(forks)

    assert program.run(backend=sgl.Mock()).ret_value == 2
