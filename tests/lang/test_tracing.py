"""trace, check and cache."""

from __future__ import annotations

import threading

import pytest

import sglang_lite as sgl


@sgl.function
def few_shot(s, question, *, style="short"):
    s += "Q: one?\nA: two\n\nQ: " + question + "\nA:"
    s += sgl.gen("answer", max_tokens=4)
    forks = s.fork(2)
    forks += lambda i: f"{i}" + sgl.gen("more")
    forks.join()
    with s.user(), s.var_scope("whole"):
        s += "again: " + s["answer"]
    s += sgl.assistant(sgl.select("choice", ["a", "b"]))
    return s["more"]


def test_a_trace_lists_what_the_body_appended(capsys):
    trace = few_shot.trace()
    assert list(trace.variables) == ["answer", "more", "whole", "choice"]
    assert [len(child.nodes) for child in trace.children] == [2, 2]
    trace.last_node.print_graph_dfs()
    shown = capsys.readouterr().out
    for text in ["<argument question>", "gen('answer')", "user_begin", "select('choice')"]:
        assert text in shown
    assert few_shot.bind(question="known").trace().nodes[0].text.endswith("Q: known\nA:")


def test_a_dummy_in_an_f_string_raises():
    @sgl.function
    def program(s, question):
        s += f"Q: {question}"

    with pytest.raises(TypeError, match="question"):
        program.trace()
    assert program.trace(question="given").nodes[0].text == "Q: given"

    @sgl.function
    def reads(s):
        s += sgl.gen("x")
        s += f"{s['x']}"

    with pytest.raises(TypeError, match="'x'"):
        reads.trace()


def test_a_scope_that_an_exception_leaves_is_closed_in_a_trace_too():
    @sgl.function
    def program(s):
        try:
            with s.user():
                raise OSError
        except OSError:
            s += sgl.assistant("ok")

    assert program.check() == []


def test_tracing_in_one_thread_does_not_disturb_runs_in_another():
    mock = sgl.Mock("t")
    found = []

    @sgl.function
    def program(s):
        s += sgl.gen("x")

    def runs():
        found.extend(program(backend=mock)["x"] for _ in range(50))

    thread = threading.Thread(target=runs)
    thread.start()
    for _ in range(50):
        program.trace()
    thread.join()
    assert found == ["t"] * 50


def kinds(body, **options):
    return [problem.kind for problem in sgl.function(body).check(**options)]


def test_check_finds_nothing_in_a_good_program():
    def good(s, question, n):
        s += sgl.user(f"{question} {n}")
        s += sgl.assistant(sgl.gen("x", regex="[0-9]+!", stop="!"))
        with s.scratch():
            s += sgl.gen("y", type=int)
        s += f"so {s['x']} " + str(s["y"])

    assert kinds(good) == []


def test_check_finds_undefined_variables_with_their_line():
    def program(s):
        s += sgl.gen("x")
        s += s["y"]

    (problem,) = sgl.function(program).check()
    assert problem.kind == "undefined variable"
    assert "'x'" in problem.message
    assert problem.where.endswith(f":{program.__code__.co_firstlineno + 2}")


def test_check_tells_what_it_has_seen_before_it_cannot_go_on():
    def program(s):
        s += sgl.gen("x", regex="[0-9]", stop="\n")
        s += s["y"]

    assert sorted(kinds(program)) == ["undefined variable", "unreachable stop"]


def test_check_finds_wrong_expressions_roles_constraints_and_stops():
    def empty(s):
        s += sgl.select("x", [])

    def nested(s):
        s += sgl.user(sgl.assistant("x"))

    def outside(s):
        s += sgl.user(sgl.gen("x"))

    def malformed(s):
        s += sgl.gen("x", regex="(a")

    def unreachable(s):
        s += sgl.gen("x", regex="[0-9]{3}", stop=["\n", "5"])
        s += sgl.gen("y", type=bool, stop="maybe")

    def endless(s):
        s += sgl.gen("x")
        while s["x"] != "done":
            s += sgl.gen("x")

    assert kinds(empty) == ["wrong expression"]
    assert kinds(nested) == ["role"]
    assert kinds(outside) == ["role"]
    assert kinds(malformed) == ["constraint"]
    assert kinds(unreachable) == ["unreachable stop", "unreachable stop"]
    assert kinds(endless) == ["not checked"]


def test_check_compiles_constraints_without_a_backend():
    def unsupported(s):
        s += sgl.gen("x", json_schema={"type": "array", "uniqueItems": True})
        s += sgl.gen("y", ebnf="root ::= nowhere")

    def not_regular(s):
        s += sgl.gen("x", regex=r"(a)\1")

    found = sgl.function(unsupported).check()
    assert [problem.kind for problem in found] == ["constraint", "constraint"]
    assert "uniqueItems" in found[0].message
    assert kinds(not_regular) == ["constraint"]


def test_check_asks_a_backend_about_its_constraints():
    class Picky(sgl.Mock):
        def refuses(self, constraint):
            return "too long"

    def program(s):
        s += sgl.gen("x", regex="a+")

    (problem,) = sgl.function(program).check(backend=Picky())
    assert "too long" in str(problem)


def test_cache_computes_the_constant_beginning():
    @sgl.function
    def program(s, question):
        s += sgl.system("rules") + sgl.user_begin()
        s += "common part, " + question + sgl.user_end()
        s += sgl.assistant(sgl.gen("x"))

    mock = sgl.Mock()
    program.cache(backend=mock)
    ((prompt, params),) = mock.calls
    assert prompt == "<|im_start|>system\nrules<|im_end|>\n<|im_start|>user\ncommon part, "
    assert params.max_new_tokens == 0
    sgl.function(lambda s, q: s.__iadd__(q)).cache(backend=mock)
    assert len(mock.calls) == 1
