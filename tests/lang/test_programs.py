"""Running programs: arguments, batches, context, concurrency."""

from __future__ import annotations

import contextvars
import threading
import time

import pytest

import sglang_lite as sgl
from sglang_lite.lang.loop import BodyPool
from sglang_lite.sampling_params import SamplingParams

VARIABLE = contextvars.ContextVar("variable", default="unset")


@sgl.function
def ask(s, question, *, style="plain"):
    "Ask something."
    s += f"{question} ({style}): " + sgl.gen("answer")
    return s["answer"]


def echo(prompt, params):
    return f"<{prompt}>"


def test_a_program_keeps_its_name_and_documentation():
    assert ask.__name__ == "ask"
    assert ask.__doc__ == "Ask something."


def test_arguments_defaults_and_keyword_only():
    mock = sgl.Mock(echo)
    assert ask.run("q", backend=mock).ret_value == "<q (plain): >"
    assert ask(question="q", style="odd", backend=mock).ret_value == "<q (odd): >"
    with pytest.raises(TypeError, match="question"):
        ask.run(backend=mock)
    with pytest.raises(sgl.InvalidRequest, match=r"temprature.*did you mean temperature"):
        ask.run("q", temprature=0, backend=mock)


def test_program_parameters_win_over_sampling_names():
    @sgl.function
    def sample(s, question, n, stop=None):
        for _ in range(n):
            s += question + sgl.gen("x")
        return stop

    mock = sgl.Mock("t")
    state = sample.run(question="q", n=3, stop="mine", backend=mock, sampling={"stop": "S"})
    assert state.ret_value == "mine"
    assert len(mock.calls) == 3
    assert all(params.n == 1 and params.stop == ("S",) for _, params in mock.calls)


def test_bind_is_overridden_by_the_call_and_leaves_rows_alone():
    bound = ask.bind(style="bound")
    mock = sgl.Mock(echo)
    assert bound.run("q", backend=mock).ret_value == "<q (bound): >"
    assert bound.run("q", style="call", backend=mock).ret_value == "<q (call): >"
    rows = [{"question": "a"}, {"question": "b"}]
    states = bound.run_batch(rows, backend=mock)
    assert [s.ret_value for s in states] == ["<a (bound): >", "<b (bound): >"]
    assert rows == [{"question": "a"}, {"question": "b"}]
    assert ask.bind(question="x").run("positional", backend=mock).ret_value[1] == "p"
    with pytest.raises(sgl.InvalidRequest, match="nothing"):
        ask.bind(nothing=1)


def test_methods_and_any_name_of_the_state():
    class Asker:
        mark = "!"

        @sgl.function
        def ask(self, prompt, text):
            prompt += text + self.mark + sgl.gen("x")

    assert Asker().ask.run("hey", backend=sgl.Mock("y")).text() == "hey!y"


def test_every_sampling_parameter_reaches_the_backend():
    values = {
        "max_new_tokens": 7,
        "min_new_tokens": 2,
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.3,
        "repetition_penalty": 1.1,
        "stop": ("a", "b"),
        "stop_token_ids": (3,),
        "stop_regex": ("x+",),
        "no_stop_trim": True,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "seed": 11,
        "logit_bias": ((5, 1.0),),
        "stop_outside": True,
    }
    assert {*values, "constraint"} == set(SamplingParams.__dataclass_fields__)
    mock = sgl.Mock("t")

    @sgl.function
    def free(s):
        s += "p" + sgl.gen("x")

    free.run(backend=mock, **values)
    sent = mock.calls[-1][1]
    for name, value in values.items():
        if name != "seed":
            assert getattr(sent, name) == value, name
    assert sent.seed not in (None, 11)
    names = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
    unset = {"skip_special_tokens", "spaces_between_special_tokens"}
    at_gen = {names.get(k, k): v for k, v in values.items() if k not in unset}

    @sgl.function
    def given(s):
        s += "p" + sgl.gen("x", **at_gen)

    given.run(backend=mock)
    sent = mock.calls[-1][1]
    assert {k: getattr(sent, k) for k in values if k not in unset} == {
        k: v for k, v in values.items() if k not in unset
    }


def test_objects_of_the_caller_are_not_changed():
    stops, choices = ["a", "b"], ["x", "y"]

    @sgl.function
    def program(s):
        for _ in range(3):
            s += sgl.user("q") + sgl.assistant(sgl.gen("x", stop=stops))
            s += sgl.select("y", choices=choices)

    program.run(backend=sgl.Mock("t"))
    assert stops == ["a", "b"]
    assert choices == ["x", "y"]


def test_a_batch_runs_every_body_exactly_once():
    calls = []

    @sgl.function
    def program(s, i):
        calls.append({1: "one", 2: "two", 3: "three"}[i])
        s += sgl.gen("x")

    states = program.run_batch([{"i": 1}, {"i": 2}, {"i": 3}], backend=sgl.Mock("t"))
    assert sorted(calls) == ["one", "three", "two"]
    assert [state["x"] for state in states] == ["t"] * 3
    assert program.run_batch([], backend=sgl.Mock()) == []


def test_rows_as_tuples_and_wrong_rows():
    mock = sgl.Mock(echo)
    states = ask.run_batch([("a",), ["b"]], backend=mock)
    assert [s.ret_value for s in states] == ["<a (plain): >", "<b (plain): >"]
    for rows in ([{"question": "a"}, {"qestion": "b"}], [("a", "b", "c")], ["text"], "text"):
        count = len(mock.calls)
        with pytest.raises((sgl.InvalidRequest, TypeError)):
            ask.run_batch(rows, backend=mock)
        assert len(mock.calls) == count


@pytest.mark.parametrize("failure", ["body", "backend"])
def test_on_error_treats_body_and_backend_alike(failure):
    @sgl.function
    def program(s, i):
        if failure == "body" and i == 1:
            raise OSError("row 1")
        s += str(i) + sgl.gen("x")

    def answer(prompt, params):
        return OSError("row 1") if failure == "backend" and prompt == "1" else "fine"

    rows = [(0,), (1,), (2,)]
    with pytest.raises((OSError, sgl.ProgramError), match="row 1"):
        program.run_batch(rows, backend=sgl.Mock(answer))
    states = program.run_batch(rows, backend=sgl.Mock(answer), on_error="return")
    assert [state.error() is None for state in states] == [True, False, True]
    assert [states[0]["x"], states[2]["x"]] == ["fine", "fine"]
    with pytest.raises(sgl.ProgramError, match="row 1"):
        states[1]["x"]


def test_results_come_as_they_finish_with_their_numbers():
    def answer(prompt, params):
        time.sleep(0)
        return ["slow"] * 40 if prompt == "0" else ["quick"]

    @sgl.function
    def program(s, i):
        s += str(i) + sgl.gen("x", max_tokens=None)

    pairs = list(
        program.imap([(i,) for i in range(4)], backend=sgl.Mock(answer, delay=0.002), ordered=False)
    )
    assert {number: state["x"][:4] for number, state in pairs} == {
        0: "slow",
        1: "quic",
        2: "quic",
        3: "quic",
    }
    assert pairs[-1][0] == 0


def test_progress_is_told_and_shown(capsys):
    told = []
    rows = [(f"{i}",) for i in range(3)]
    ask.run_batch(rows, backend=sgl.Mock("t"), progress=lambda *state: told.append(state))
    ask.run_batch(iter(rows), backend=sgl.Mock("t"), progress=lambda *state: told.append(state))
    assert told == [(1, 3), (2, 3), (3, 3), (1, None), (2, None), (3, None)]
    ask.run_batch(rows, backend=sgl.Mock("t"), progress=True)
    assert "3/3" in capsys.readouterr().err
    ask.run_batch(rows, backend=sgl.Mock("t"), progress_bar=True)
    assert "3/3" in capsys.readouterr().err
    ask.run_batch(rows, backend=sgl.Mock("t"))
    assert capsys.readouterr().err == ""


def test_rows_are_taken_lazily_and_memory_is_bounded():
    taken = []

    def rows():
        for i in range(1000):
            taken.append(i)
            yield (i,)

    @sgl.function
    def program(s, i):
        s += str(i) + sgl.gen("x")

    results = program.run_batch(
        rows(), backend=sgl.Mock("t"), generator_style=True, max_concurrency=2
    )
    for _ in range(3):
        next(results)
    assert len(taken) <= 3 + 4 * 2
    results.close()


def test_nested_batches_and_forks_cannot_deadlock_at_concurrency_1():
    mock = sgl.Mock("t")

    @sgl.function
    def inner(s, i):
        forks = s.fork(3)
        forks += sgl.gen("x")
        forks.join()
        return s["x"]

    @sgl.function
    def outer(s, i):
        states = inner.run_batch([(j,) for j in range(4)], backend=mock, max_concurrency=1)
        s += "".join(state.ret_value[0] for state in states)
        return inner.run(1, backend=mock).ret_value

    states = outer.run_batch([(i,) for i in range(4)], backend=mock, max_concurrency=1)
    assert [state.text() for state in states] == ["tttt"] * 4


def test_the_body_pool_lends_places_and_retires_threads():
    pool = BodyPool(limit=1, idle_s=0.05)
    inner, outer = threading.Event(), threading.Event()

    def waits_for_another():
        pool.submit(inner.set)
        with pool.waiting():
            inner.wait(5)
        outer.set()

    pool.submit(waits_for_another)
    assert outer.wait(5)
    assert inner.is_set()


def test_threads_stay_bounded_with_many_rows_and_forks():
    peak = [0]

    def answer(prompt, params):
        peak[0] = max(peak[0], threading.active_count())
        return "t"

    @sgl.function
    def program(s, i):
        forks = s.fork(4)
        forks += sgl.gen("x")
        forks.join()
        return s["x"]

    before = threading.active_count()
    states = program.run_batch([(i,) for i in range(200)], backend=sgl.Mock(answer, delay=0.001))
    assert all(state.ret_value == ["t"] * 4 for state in states)
    assert peak[0] <= before + 64 + 2


def test_context_variables_are_visible_everywhere():
    seen = []

    def answer(prompt, params):
        seen.append(VARIABLE.get())
        return "t"

    @sgl.function
    def program(s, i):
        seen.append(VARIABLE.get())
        forks = s.fork(2)
        forks += sgl.gen("x")
        forks.join()

    VARIABLE.set("mine")
    program.run(0, backend=sgl.Mock(answer))
    program.run_batch([(1,), (2,)], backend=sgl.Mock(answer))
    program.run(3, backend=sgl.Mock(answer), stream=True).sync()
    assert seen == ["mine"] * 12


def test_programs_from_several_threads_at_once():
    mock = sgl.Mock(echo)
    found = {}

    def work(i):
        found[i] = ask.run(str(i), backend=mock).ret_value

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: f"<{i} (plain): >" for i in range(16)}


def test_eager_runs_wait_at_every_append():
    @sgl.function
    def program(s):
        s += "a" + sgl.gen("x")
        return len(mock.calls)

    mock = sgl.Mock("t")
    assert program.run(backend=mock, use_thread=False).ret_value == 1


def test_seeds_differ_by_gen_fork_and_row_and_repeat():
    @sgl.function
    def program(s, i):
        s += sgl.gen("x") + sgl.gen("y")
        forks = s.fork(2)
        forks += sgl.gen("z")
        forks.join()

    def seeds():
        mock = sgl.Mock("t")
        program.run_batch([(0,), (1,)], backend=mock, seed=3)
        return sorted(params.seed for _, params in mock.calls)

    assert seeds() == seeds()
    assert len(set(seeds())) == 8


def test_arguments_stand_where_sglang_has_them():
    mock = sgl.Mock("7")

    @sgl.function
    def program(s):
        s += sgl.gen("a", 5, 1, 2, "x") + sgl.gen_int("b", 6, 2, ["y"]) + sgl.gen_string("c", 7, 1)

    program.run(backend=mock)
    sent = [(p.max_new_tokens, p.min_new_tokens, p.n, p.stop) for _, p in mock.calls if p]
    assert sent == [(5, 1, 2, ("x",)), (6, 0, 2, ("y",)), (7, 0, 1, ())]
    assert sgl.OpenAI("m", None, api_key="none").is_chat_model


def test_unsupported_arguments_are_refused():
    with pytest.raises(sgl.NotSupported):
        sgl.image("x.png")
    with pytest.raises(sgl.NotSupported):
        sgl.video("x.mp4", 3)
    with pytest.raises(sgl.NotSupported, match="empty_cache"):
        sgl.flush_cache(sgl.Mock(), empty_cache=False)
    assert sgl.flush_cache(sgl.Mock(), empty_cache=True)
    with pytest.raises(sgl.InvalidRequest, match="num_api_spec_tokens"):
        sgl.function(num_api_spec_tokens=0)
    with pytest.raises(sgl.InvalidRequest):
        sgl.function(lambda: None)
    with pytest.raises(sgl.InvalidRequest, match="backend"):
        ask.run("q", backend="http://nowhere")
