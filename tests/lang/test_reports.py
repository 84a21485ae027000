"""What users of such languages have reported, as the smallest programs that show it."""

from __future__ import annotations

import math
import warnings

import pytest

import sglang_lite as sgl
from sglang_lite.lang.choices import mean
from sglang_lite.lang.nodes import as_expression
from tests.runtime.toy import toy_engine
from tests.server.live import serving


def run(backend, expression, **options):
    @sgl.function
    def program(s):
        s += expression

    return program.run(backend=backend, **options)


@pytest.fixture(scope="module")
def toy():
    with toy_engine() as engine:
        yield engine


# Choices


GREETINGS = ("Hello", "Goodbye", "^*B^&A")


@pytest.mark.model
@pytest.mark.parametrize("role", [False, True])
def test_nonsense_of_many_tokens_does_not_win_by_sum_or_bytes(engine, role):
    asked = sgl.user("Greet me, please.") + sgl.assistant_begin()
    if not role:
        asked = as_expression("He came in, looked up at her and said, smiling:")
    for blank in ("", " "):
        literal = "" if role or blank else " "
        choices = [blank + choice for choice in GREETINGS]
        by_default = run(engine, asked + literal + sgl.select("x", choices))
        assert by_default["x"].strip() == "Hello"
        by_bytes = sgl.select("x", choices, choices_method=sgl.byte_mean)
        assert run(engine, asked + literal + by_bytes)["x"].strip() in GREETINGS[:2]


@pytest.mark.model
def test_the_default_takes_the_right_one_of_choices_of_unequal_lengths(engine):
    asked = "Q: What is the capital of France? A: "
    state = run(engine, asked + sgl.select("x", ["New York City", "Paris"]))
    assert state["x"] == "Paris"
    state = run(engine, "A word like 'sky' is '" + sgl.select("x", ["skill", "cloud"]))
    assert state["x"] == "cloud"


@pytest.mark.model
def test_a_blank_belongs_to_the_same_token_on_either_side_of_the_seam(engine):
    asked = "He came in, looked up at her and said, smiling:"
    inside = run(engine, asked + sgl.select("x", [f" {choice}" for choice in GREETINGS]))
    outside = run(engine, asked + " " + sgl.select("x", GREETINGS))
    assert inside["x"] == " " + outside["x"]
    expected = inside.get_meta_info("x")["normalized_prompt_logprobs"]
    assert outside.get_meta_info("x")["normalized_prompt_logprobs"] == pytest.approx(expected)


@pytest.mark.model
@pytest.mark.parametrize(
    ("prompt", "choices"),
    [(">>>", [" print", ">", "\n"]), ("foo", ["bar", " bar"]), ("A: ", ["42", " 42", "B"])],
)
def test_what_all_choices_share_is_not_scored(engine, prompt, choices):
    state = run(engine, prompt + sgl.select("x", choices))
    rows = state.get_meta_info("x")["input_token_logprobs"]
    prefix = engine.tokenizer.encode(prompt)
    whole = [engine.tokenizer.encode(prompt + choice) for choice in choices]
    shared = 0
    while all(ids[shared : shared + 1] == prefix[shared : shared + 1] != [] for ids in whole):
        shared += 1
    assert [[entry[1] for entry in row] for row in rows] == [ids[shared:] for ids in whole]


@pytest.mark.model
def test_the_gap_between_true_and_false_depends_on_the_prompt(engine):
    def gap(statement):
        asked = f"Statement: {statement}\nThis is" + sgl.select("x", [" true", " false"])
        scores = run(engine, asked).get_meta_info("x")["normalized_prompt_logprobs"]
        return scores[0] - scores[1]

    gaps = [gap(text) for text in ("Fire is hot.", "Fire is cold.", "Two and two are five.")]
    assert len({round(each, 3) for each in gaps}) == 3


KEYS = {"normalized_prompt_logprobs", "input_token_logprobs", "output_token_logprobs"}


@pytest.mark.parametrize(
    ("method", "more"),
    [
        (sgl.token_length_normalized, set()),
        (sgl.greedy_token_selection, {"greedy_logprob_matrix"}),
        (
            sgl.unconditional_likelihood_normalized,
            {"unconditional_token_logprobs", "normalized_unconditional_prompt_logprobs"},
        ),
    ],
)
def test_the_meta_info_of_a_select_keeps_its_keys_and_one_entry_for_each_token(toy, method, more):
    asked = "Pick" + sgl.select("x", ["A", "B", "C"], choices_method=method)
    meta = run(toy, asked).get_meta_info("x")
    assert set(meta) == KEYS | more
    assert [len(row) for row in meta["input_token_logprobs"]] == [1, 1, 1]
    assert [row[0][2] for row in meta["input_token_logprobs"]] == ["A", "B", "C"]


@pytest.mark.parametrize("choices", [["a", "aa"], ["Ja", "Nein"], ["one two", "one three"]])
def test_every_list_of_choices_is_legal(toy, choices):
    for method in (sgl.token_length_normalized, sgl.greedy_token_selection, sgl.sum_logprob):
        state = run(toy, "P:" + sgl.select("x", choices, choices_method=method))
        assert state["x"] in choices
        assert sum(state.probs("x").values()) == pytest.approx(1)


def test_several_tokens_are_scored_after_their_own_beginning(toy):
    """With another choice's beginning before them, the second tokens would score otherwise."""
    state = run(toy, "P:" + sgl.select("x", ["ab", "cb"], choices_method=sgl.sum_logprob))
    rows = state.get_meta_info("x")["input_token_logprobs"]
    for choice, row in zip(("ab", "cb"), rows, strict=True):
        request = {"max_new_tokens": 0}
        start = {"return_logprob": True, "logprob_start_len": 2}
        alone = toy.generate("P:" + choice, request, **start)["meta_info"]["input_token_logprobs"]
        assert [entry[0] for entry in row] == pytest.approx([entry[0] for entry in alone])


def test_one_good_first_token_does_not_decide_under_the_mean():
    tokens = [[-1.0, -6.0], [-1.5, -0.1]]
    decisions = {
        method: method(
            choices=["skill", "cloud"],
            normalized_prompt_logprobs=[mean(row) for row in tokens],
            input_token_logprobs=[[[v, 0, None] for v in row] for row in tokens],
            output_token_logprobs=[[], []],
            unconditional_token_logprobs=None,
        ).decision
        for method in (sgl.greedy_token_selection, sgl.token_length_normalized, sgl.sum_logprob)
    }
    assert list(decisions.values()) == ["skill", "cloud", "cloud"]


def test_impossible_choices_warn_nobody():
    mock = sgl.Mock(choose=lambda prompt, choices: [-math.inf, -0.5, -math.inf])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = run(mock, sgl.select("x", ["HTR2C", "NR3C1", "HTR2A"]))
        assert state["x"] == "NR3C1"
        assert state.probs("x") == {"HTR2C": 0.0, "NR3C1": 1.0, "HTR2A": 0.0}


# Generations


def test_a_blank_before_a_regex_is_no_reason_to_warn(toy, caplog):
    @sgl.function
    def program(s, i):
        s += f"{i}: " + sgl.gen("x", regex="[0-9]{2}")

    program.run_batch([(i,) for i in range(5)], backend=toy)
    assert not caplog.records


def test_samples_share_the_computation_of_their_prompt(toy):
    toy.flush_cache()
    state = run(toy, "A prompt of more than a few tokens: " + sgl.gen("x", n=4, max_tokens=3))
    assert len(state["x"]) == 4
    computed = [usage.prompt_tokens - usage.cached_tokens for usage in state.usage("x")]
    assert sorted(computed) == [1, 1, 1, max(computed)]


def test_a_length_that_does_not_fit_is_cut_to_the_room(toy):
    with toy_engine(context_length=40) as small:
        state = run(small, "x" * 30 + sgl.gen("x", max_tokens=200, ignore_eos=True))
    assert len(state._executor.transcript.ids) == 40
    assert state.finish_reason("x") == "length"


@pytest.mark.parametrize(
    ("stops", "text", "stop"),
    [
        ("when it hit", "the day ", "when it hit"),
        (["me", "hit", "day"], "the ", "day"),
    ],
)
def test_the_earliest_stop_wins_and_nothing_of_it_stays(toy, stops, text, stop):
    state = run(toy, "x" + sgl.gen("x", regex="the day when it hit me", stop=stops) + "|")
    assert (state["x"], state.stop_reason("x")) == (text, stop)
    assert state.text() == f"x{text}|"


def test_min_tokens_holds_for_stop_texts_too(toy):
    state = run(toy, "x" + sgl.gen("x", regex="abcabcabc", stop="c", min_tokens=4))
    assert state["x"] == "abcab"


def test_usage_tells_what_a_constraint_cost_in_process_and_over_http(toy):
    with toy_engine() as engine, serving(engine) as live:
        for backend in (toy, sgl.RuntimeEndpoint(live.url)):
            usage = run(backend, "x" + sgl.gen("x", regex="(yes|no), [a-z]{3}!")).usage("x")
            assert usage.compile_s > 0
            assert 0 < usage.ttft_s <= usage.e2e_s
            assert 0 < usage.forced_tokens < usage.completion_tokens
