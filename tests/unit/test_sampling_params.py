"""Every sampling parameter is validated once, and the error says what is accepted."""

import math

import pytest

from sglang_lite.constraint import Choice, Grammar, JsonSchema, Regex
from sglang_lite.errors import InvalidRequest
from sglang_lite.sampling_params import SamplingParams


def test_defaults_are_sglangs():
    params = SamplingParams()
    assert (params.max_new_tokens, params.temperature, params.top_p, params.top_k) == (
        128,
        1,
        1,
        -1,
    )
    assert params.stop == () and params.n == 1 and not params.ignore_eos


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", True),
        ("temperature", "hot"),
        ("temperature", 10**400),
        ("top_p", 0),
        ("top_p", math.nan),
        ("top_p", 1.5),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", -0.1),
        ("frequency_penalty", 2.1),
        ("presence_penalty", -3),
        ("repetition_penalty", 0),
        ("n", 0),
        ("n", 1_000_000),
        ("max_new_tokens", -1),
        ("min_new_tokens", 200),
        ("stop", ""),
        ("stop", [None]),
        ("stop", ["x"] * 3 + [str(i) for i in range(40)]),
        ("stop_token_ids", [None]),
        ("stop_token_ids", [-1]),
        ("seed", 2**63),
        ("seed", 1.0),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {1: 101}),
        ("logit_bias", {1: 10**400}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1.5: 1}),
        ("logit_bias", {True: 1}),
        ("logit_bias", {1: "2"}),
        ("logit_bias", [1, 2]),
        ("min_p", 1.1),
        ("repetition_penalty", 2.1),
        ("min_new_tokens", -1),
        ("no_stop_trim", "yes"),
        ("skip_special_tokens", 0),
        ("stop_regex", ""),
        ("ignore_eos", 1),
        ("stop_outside", 1),
    ],
)
def test_bad_values_are_refused_by_name(field, value):
    with pytest.raises(InvalidRequest) as error:
        SamplingParams.from_dict({field: value})
    assert error.value.field == field
    assert field in str(error.value)


def test_one_string_is_a_list_of_one_and_duplicates_go():
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(stop=["a", "b", "a"]).stop == ("a", "b")


def test_the_callers_list_is_not_kept():
    stops = ["a"]
    params = SamplingParams(stop=stops)
    stops.append("b")
    assert params.stop == ("a",)


def test_unknown_names_are_refused_with_the_nearest_known_one():
    with pytest.raises(InvalidRequest, match="did you mean temperature"):
        SamplingParams.from_dict({"temprature": 0.5})
    with pytest.raises(InvalidRequest, match="did you mean json_schema"):
        SamplingParams.from_dict({"json_shema": "{}"})


def test_none_counts_as_not_given():
    assert SamplingParams.from_dict({"temperature": None, "stop": None}) == SamplingParams()
    assert SamplingParams.from_dict(None) == SamplingParams()


def test_aliases_mean_the_same_and_may_not_clash():
    assert SamplingParams.from_dict({"max_tokens": 3}).max_new_tokens == 3
    assert SamplingParams.from_dict({"sampling_seed": 3}).seed == 3
    with pytest.raises(InvalidRequest, match="only one of"):
        SamplingParams.from_dict({"max_tokens": 3, "max_new_tokens": 3})


def test_constraints_under_sglangs_names():
    def constraint(**fields):
        return SamplingParams.from_dict(fields).constraint

    assert constraint(regex="a+") == Regex("a+")
    assert constraint(regex="") is None
    assert constraint(ebnf='root ::= "a"') == Grammar('root ::= "a"', "ebnf")
    assert constraint(choices=["a", "b"]) == Choice(("a", "b"))
    assert constraint(json_schema={"type": "integer"}) == JsonSchema('{"type": "integer"}')
    assert constraint(json_schema="$$ANY$$") == JsonSchema('{"type": "object"}')


def test_two_constraints_are_refused():
    with pytest.raises(InvalidRequest, match="only one constraint"):
        SamplingParams.from_dict({"regex": "a", "json_schema": "{}"})


def test_greedy():
    assert SamplingParams(temperature=0).greedy
    assert SamplingParams(temperature=1e-7).greedy
    assert SamplingParams(top_k=1).greedy
    assert not SamplingParams().greedy
