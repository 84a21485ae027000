"""What a state tells about its variables."""

from __future__ import annotations

import pytest

import sglang_lite as sgl
from tests.runtime.toy import toy_engine
from tests.server.live import serving


def run(body, backend=None, **options):
    return sgl.function(body).run(backend=backend or sgl.Mock("t"), **options)


def test_a_name_is_in_the_state_as_soon_as_it_was_submitted():
    def program(s):
        assert "x" not in s
        s += sgl.gen("x")
        assert "x" in s
        with s.var_scope("scope"):
            assert "scope" in s

    run(program, sgl.Mock("t", delay=0.02))


def test_setting_a_variable_comes_after_a_pending_gen_of_it():
    def program(s):
        s += sgl.gen("x")
        s["x"] = 5
        s.set_var("y", None)
        return s["x"], s.all("x"), s["y"], s.get_meta_info("x")

    assert run(program).ret_value == (5, ["t", 5], None, None)


def test_the_last_value_of_a_name_and_all_of_them():
    def program(s):
        for _ in range(3):
            s += sgl.gen("x")

    state = run(program, sgl.Mock(["1", "2", "3"]))
    assert (state["x"], state.all("x"), state.text()) == ("3", ["1", "2", "3"], "123")
    with pytest.raises(KeyError):
        state.all("y")


def test_unnamed_gens_are_text_only():
    def program(s):
        s += sgl.gen() + sgl.gen() + sgl.select(choices=["a", "b"])

    state = run(program)
    assert state.text() == "tta"
    assert "variables: " in repr(state)


def test_nested_and_overlapping_scopes():
    def program(s):
        with s.var_scope("outer"):
            s += "a"
            with s.var_scope("inner"):
                s += sgl.gen("x")
            s += "b"

    state = run(program)
    assert (state["outer"], state["inner"]) == ("atb", "t")


def test_repr_never_waits():
    def program(s):
        s += sgl.gen("x")
        return repr(s)

    assert "'x'" not in run(program, sgl.Mock("t", delay=0.05)).ret_value


def test_usage_is_summed_over_forks():
    def program(s):
        s += "pp" + sgl.gen("x")
        forks = s.fork(2)
        forks += sgl.gen("y")
        forks.join()

    state = run(program)
    assert state.usage("x").sampled_tokens == 1
    assert state.total_usage().prompt_tokens == 2 + 3 + 3
    assert state.total_usage().completion_tokens == 3


def test_samples_stream_with_their_index():
    def program(s):
        s += sgl.gen("x", n=2)

    state = run(program, sgl.Mock(iter([["a", "b"], "c"])), stream=True)
    assert list(state.text_iter("x")) == ["a", "b"]
    assert state["x"] == ["ab", "c"]
    assert state.finish_reason("x") == ["stop", "stop"]


@pytest.mark.parametrize("over_http", [False, True])
def test_log_probabilities_in_the_meta_info(over_http):
    def program(s):
        s += "abc" + sgl.gen(
            "x",
            max_tokens=4,
            ignore_eos=True,
            return_logprob=True,
            logprob_start_len=1,
            top_logprobs_num=2,
            return_text_in_logprobs=True,
        )

    with toy_engine() as engine, serving(engine) as live:
        backend = sgl.RuntimeEndpoint(live.url) if over_http else engine
        state = run(program, backend, temperature=0, seed=1)
        meta = state.get_meta_info("x")
        assert [entry[2] for entry in meta["input_token_logprobs"]] == ["b", "c"]
        assert len(meta["output_token_logprobs"]) == 4
        assert all(entry[0] <= 0 for entry in meta["output_token_logprobs"])
        assert all(isinstance(entry[2], str) for entry in meta["output_token_logprobs"])
        assert [len(row) for row in meta["output_top_logprobs"]] == [2] * 4
        plain = run(lambda s: s.__iadd__("abc" + sgl.gen("x", return_logprob=True)), backend)
        assert plain.get_meta_info("x")["output_token_logprobs"][0][2] is None


def test_select_computes_the_common_prefix_once():
    prefix, choices = "the common prefix " * 20, ["alpha", "beta", "gamma", "delta"]

    def program(s):
        s += prefix + sgl.select("x", choices)

    with toy_engine() as engine:
        state = run(program, engine)
        computed = sum(_computed(engine))
        own = sum(map(len, choices)) + len(choices)
        assert len(prefix) <= computed <= len(prefix) + own
        assert state["x"] in choices


def _computed(engine):
    """New tokens of every row that the model was given."""
    return [end - start for start, end in engine.toy.computed]


def test_forks_of_forks_share_what_they_have_in_common():
    def program(s):
        s += "p" * 200
        outer = s.fork(2)
        for i, child in enumerate(outer):
            child += f"{i}" * 50
            inner = child.fork(3)
            inner += lambda j: f"{j}" + sgl.gen("x", max_tokens=2)
            inner.join()
        outer.join()

    with toy_engine() as engine:
        run(program, engine, temperature=0)
        assert sum(_computed(engine)) <= 200 + 2 * 50 + 6 * (1 + 2) + 6
        engine.check()
