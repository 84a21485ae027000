"""select: the methods on known numbers, and what a program sees of them."""

from __future__ import annotations

import math

import pytest

import sglang_lite as sgl
from sglang_lite.lang.choices import mean, softmax
from tests.runtime.toy import toy_engine
from tests.server.live import serving

# "organ" is one token; "organism" two; the third a word of eight tokens.
TOKENS = [[-0.1], [-0.1, -0.3], [-0.4, -0.25, -0.1, *[-0.01] * 5]]
CHOICES = ["organ", "organism", "antidisestablishmentarianism"]


def decide(method, tokens=TOKENS, choices=CHOICES, unconditional=None, means=None):
    entries = [[[value, i, None] for i, value in enumerate(row)] for row in tokens]
    alone = None
    if unconditional is not None:
        alone = [[[value, i, None] for i, value in enumerate(row)] for row in unconditional]
    return method(
        choices=choices,
        normalized_prompt_logprobs=means or [mean(row) for row in tokens],
        input_token_logprobs=entries,
        output_token_logprobs=[[] for _ in tokens],
        unconditional_token_logprobs=alone,
    )


def test_the_mean_takes_the_long_predictable_word():
    decision = decide(sgl.token_length_normalized, [*TOKENS[:2], [-0.15, *[-0.01] * 7]])
    assert decision.decision == CHOICES[2]
    assert decision.scores == pytest.approx([-0.1, -0.2, -0.0275])
    assert decide(sgl.token_length_normalized, means=[-0.1, -0.2, -0.05]).decision == CHOICES[2]
    assert set(decision.meta_info) == {
        "normalized_prompt_logprobs",
        "input_token_logprobs",
        "output_token_logprobs",
    }


def test_greedy_keeps_the_best_token_column_by_column():
    decision = decide(sgl.greedy_token_selection)
    assert decision.decision == "organ"
    matrix = decision.meta_info["greedy_logprob_matrix"]
    assert matrix[0] == pytest.approx([-0.1] * 8)
    assert matrix[1] == pytest.approx([-0.1, -0.3, *[-0.2] * 6])


def test_unconditional_takes_the_greatest_gain():
    alone = [[None], [None, -1.4], [None, *TOKENS[2][1:]]]
    decision = decide(sgl.unconditional_likelihood_normalized, unconditional=alone)
    assert decision.decision == "organism"
    assert decision.scores == pytest.approx([-0.1, 0.5, -0.05])
    assert decision.meta_info["normalized_unconditional_prompt_logprobs"][1] == -0.7


def test_sum_and_byte_mean():
    assert decide(sgl.sum_logprob).decision == "organ"
    scores = decide(sgl.byte_mean).scores
    assert scores == pytest.approx([-0.1 / 5, -0.4 / 8, -0.8 / 28])


@pytest.mark.parametrize(
    "method", [sgl.token_length_normalized, sgl.greedy_token_selection, sgl.sum_logprob]
)
def test_certain_impossible_and_empty_windows(method):
    assert decide(method, [[0.0], [-math.inf], [-2.0]]).decision == "organ"
    assert decide(method, [[-math.inf]] * 3).decision == "organ"
    assert decide(method, [[-1.0], [-1.0 + 1e-9], [-1.0]]).decision == "organ"


def test_an_empty_window_scores_zero():
    assert decide(sgl.token_length_normalized, [[-1.0], [], [-2.0]]).scores == [-1.0, 0.0, -2.0]


def test_softmax():
    assert softmax([0.0, math.log(3)]) == pytest.approx([0.25, 0.75])
    assert softmax([-math.inf, -math.inf]) == [0.5, 0.5]
    assert softmax([0.0, math.log(3)], temperature=1e-3) == pytest.approx([0, 1])


def scored(scores):
    return sgl.Mock(choose=lambda prompt, choices: [scores[c] for c in choices])


def test_select_appends_stores_and_gives_the_distribution():
    @sgl.function
    def program(s):
        s += "It is " + sgl.select("x", ["hot", "cold"]) + "."
        s += sgl.gen("y", choices=["a", "b"])

    state = program.run(backend=scored({"hot": -3.0, "cold": -1.0, "a": 0.0, "b": -1.0}))
    assert state.text() == "It is cold.a"
    assert state["x"] == "cold"
    expected = dict(zip(["hot", "cold"], softmax([-3, -1]), strict=True))
    assert state.probs("x") == pytest.approx(expected)
    assert state.get_meta_info("x")["normalized_prompt_logprobs"] == [-3.0, -1.0]


def test_one_choice_needs_no_model():
    mock = sgl.Mock()

    @sgl.function
    def program(s):
        s += sgl.select("x", ["only"])

    state = program.run(backend=mock)
    assert (state["x"], state.probs("x"), mock.calls) == ("only", {"only": 1.0}, [])


def test_temperature_draws_from_the_distribution_reproducibly():
    @sgl.function
    def program(s):
        for _ in range(200):
            s += sgl.select("x", ["a", "b"], temperature=1.0)
        return s.all("x")

    mock = scored({"a": math.log(0.25), "b": math.log(0.75)})
    first = program.run(backend=mock, seed=1).ret_value
    assert first == program.run(backend=mock, seed=1).ret_value
    assert 25 <= first.count("a") <= 75


@pytest.mark.parametrize(
    ("after", "expected"), [("\n", "\n"), (None, "\n"), ("role", "<|im_end|>\n")]
)
def test_a_choice_that_begins_another_is_scored_with_what_follows(after, expected):
    suffixes = []

    class Recording(sgl.Mock):
        async def score(self, prompt, choices, *, suffix, unconditional):
            suffixes.append(suffix)
            return await super().score(prompt, choices, suffix=suffix, unconditional=unconditional)

    @sgl.function
    def program(s, nested):
        choice = sgl.select("x", ["no", "not sure"] if nested else ["no", "yes"])
        if after == "role":
            s += sgl.assistant(choice)
        else:
            s += choice if after is None else choice + after

    program.run(True, backend=Recording())
    program.run(False, backend=Recording())
    assert suffixes == [expected, ""]


@pytest.mark.parametrize("over_http", [False, True])
def test_a_neutral_context_stands_in_the_prompts_place(over_http):
    pmi = sgl.unconditional_likelihood_normalized
    choices = ["alpha", "beta"]

    def scores(backend, context, method):
        @sgl.function
        def program(s):
            s += context + sgl.select("x", choices, choices_method=method)

        return program.run(backend=backend).get_meta_info("x")

    with toy_engine() as engine, serving(engine) as live:
        backend = sgl.RuntimeEndpoint(live.url) if over_http else engine
        found = scores(backend, "prompt ", pmi.given("Answer: "))["unconditional_token_logprobs"]
        direct = scores(backend, "Answer: ", sgl.sum_logprob)["input_token_logprobs"]
        alone = scores(backend, "prompt ", pmi)["unconditional_token_logprobs"]
    for one, other in zip(found, direct, strict=True):
        assert [e[0] for e in one] == pytest.approx([e[0] for e in other], abs=1e-4)
    assert [row[0][0] for row in alone] == [None, None]


def test_an_empty_choice_needs_a_terminator():
    with pytest.raises(sgl.InvalidRequest, match="terminator"):
        sgl.select("x", ["", "s"], terminator="")
    state = sgl.function(lambda s: s.__iadd__("word" + sgl.select("x", ["", "s"]))).run(
        backend=scored({"": -1.0, "s": -2.0})
    )
    assert (state["x"], state.text()) == ("", "word")


def test_wrong_choices_fail_at_the_call():
    for choices in (None, [], "abc", ["a", 1], ["a", "a"]):
        with pytest.raises(sgl.InvalidRequest, match="choices"):
            sgl.select("x", choices)
    with pytest.raises(sgl.InvalidRequest, match="choices"):
        sgl.gen("x", choices=[])
    others = {
        "regex": "a",
        "n": 2,
        "ge": 1,
        "max_length": 3,
        "whitespace": 0,
        "seed": 1,
        "heal": True,
    }
    others |= {"logit_bias": {1: 1}, "no_stop_trim": True, "stop_outside": True}
    for name, value in others.items():
        with pytest.raises(sgl.InvalidRequest, match=name):
            sgl.gen("x", choices=["a"], **{name: value})
    for temperature in (-1, float("nan")):
        with pytest.raises(sgl.InvalidRequest, match="temperature"):
            sgl.gen("x", choices=["a"], temperature=temperature)
    with pytest.raises(sgl.InvalidRequest, match="choices_method"):
        sgl.gen("x", choices=["a"], choices_method="mean")
    with pytest.raises(sgl.InvalidRequest, match="temperature"):
        sgl.select("x", ["a"], temperature=-1)
    with pytest.raises(sgl.InvalidRequest, match="choices_method"):
        sgl.select("x", ["a"], choices_method="mean")
