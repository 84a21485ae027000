"""What every backend must do the same: one suite, several backends."""

from __future__ import annotations

import asyncio

import pytest

import sglang_lite as sgl
from sglang_lite.lang.backends.registry import as_backend
from tests.runtime.toy import toy_engine
from tests.server.live import serving


@pytest.fixture(scope="module")
def engine():
    with toy_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def live():
    with toy_engine() as engine, serving(engine) as live:
        yield live


def openai(live, **options):
    return sgl.OpenAI("toy", base_url=f"{live.url}/v1", api_key="none", **options)


@pytest.fixture(params=["mock", "engine", "endpoint", "endpoint-text", "openai"])
def backend(request):
    if request.param == "openai":
        return openai(request.getfixturevalue("live"), is_chat_model=False)
    if request.param == "mock":
        return sgl.Mock(lambda prompt, params: "some words" * 20)
    if request.param == "engine":
        return request.getfixturevalue("engine")
    endpoint = sgl.RuntimeEndpoint(request.getfixturevalue("live").url)
    if request.param == "endpoint-text":
        endpoint.exact = endpoint.ends_outside = False
    return endpoint


def run(backend, expression, **options):
    @sgl.function
    def program(s):
        s += expression

    return program.run(backend=backend, **options)


def test_a_gen_ends_at_its_length_and_says_so(backend):
    state = run(backend, "p" + sgl.gen("x", max_tokens=5, ignore_eos=True))
    assert len(state["x"]) >= 1
    assert state.finish_reason("x") == "length"
    meta = state.get_meta_info("x")
    assert meta["completion_tokens"] == 5
    assert meta["finish_reason"]["type"] == "length"
    assert state.usage("x").prompt_tokens == 1


@pytest.mark.parametrize("backend", ["engine", "endpoint"], indirect=True)
@pytest.mark.parametrize("limit", [None, 10_000_000])
def test_a_length_without_limit_fills_the_context(backend, limit):
    ids = dict.fromkeys(range(95, 256), -100.0)  # bytes that are no text by themselves
    options = {"ignore_eos": True, "logit_bias": ids, "seed": 1}
    sampling = sgl.SamplingParams(max_new_tokens=limit)
    state = run(backend, "p" * 1900 + sgl.gen("x", **options), sampling=sampling)
    assert state.finish_reason("x") == "length"
    assert state.get_meta_info("x")["completion_tokens"] == 2048 - 1900


def test_streams_are_complete(backend):
    @sgl.function
    def program(s):
        s += "p" + sgl.gen("x", max_tokens=12, seed=1) + "q"

    state = program.run(backend=backend, stream=True)
    assert "".join(state.text_iter("x")) == state["x"]
    assert "".join(state.text_iter()) == "p" + state["x"] + "q" == state.text()


def test_roles_and_messages(backend):
    state = run(backend, sgl.user("hi") + sgl.assistant(sgl.gen("x", max_tokens=4, seed=1)))
    assert state.messages() == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": state["x"]},
    ]
    assert as_backend(backend).chat_template is not None


def test_samples_are_several(backend):
    state = run(backend, "p" + sgl.gen("x", n=3, max_tokens=4, seed=1))
    assert len(state["x"]) == 3
    assert state.text() == "p" + state["x"][0]
    assert len(state.get_meta_info("x")) == 3


def test_select_gives_one_of_the_choices_and_a_distribution(backend):
    choices = ["alpha", "beta", "alphabet"]
    state = run(backend, "p" + sgl.select("x", choices))
    assert state["x"] in choices
    assert list(state.probs("x")) == choices
    assert sum(state.probs("x").values()) == pytest.approx(1)
    meta = state.get_meta_info("x")
    assert len(meta["input_token_logprobs"]) == 3


def test_unconditional_select(backend):
    method = sgl.unconditional_likelihood_normalized
    state = run(backend, "p" + sgl.select("x", ["alpha", "beta"], choices_method=method))
    assert len(state.get_meta_info("x")["unconditional_token_logprobs"]) == 2


def test_a_conversation_with_forks(backend):
    @sgl.function
    def program(s):
        s += sgl.user("q")
        forks = s.fork(3)
        forks += lambda i: sgl.assistant(f"{i}" + sgl.gen("x", max_tokens=3, seed=i))
        forks.join()
        return s["x"]

    assert len(program.run(backend=backend).ret_value) == 3


def test_flush_and_info(backend):
    sgl.set_default_backend(backend)
    try:
        assert sgl.flush_cache() is (type(backend).__name__ != "OpenAI")
        assert isinstance(sgl.get_server_info(), dict)
    finally:
        sgl.set_default_backend(None)
    assert sgl.flush_cache() is False
    assert sgl.get_server_info() is None


REMOTE = ["engine", "endpoint", "openai"]


def test_a_chat_model_over_openais_api(live):
    @sgl.function
    def program(s):
        s += sgl.system("sys") + sgl.user("q")
        s += sgl.assistant("Begun: " + sgl.gen("x", max_tokens=5))
        s += sgl.user("more")
        s += sgl.assistant(sgl.gen("y", type=int, ge=1, le=5))
        s += sgl.user("which")
        s += sgl.assistant(sgl.select("z", ["red", "blue"]))

    state = program.run(backend=openai(live), seed=3)
    assert 1 <= state["y"] <= 5
    assert state["z"] in ("red", "blue")
    assert state.usage("x").completion_tokens <= 5
    in_process = program.run(backend=live.engine, seed=3)
    assert state["x"] == in_process["x"]
    assert [m["role"] for m in state.messages()] == [m["role"] for m in in_process.messages()]


def test_a_chat_model_refuses_what_its_api_cannot_do(live):
    plain = openai(live, dialect="openai")
    refused = [
        "p" + sgl.gen("x"),
        sgl.assistant("begun" + sgl.gen("x")),
        sgl.assistant(sgl.gen("x", top_k=3)),
        sgl.assistant(sgl.gen("x", regex="a+")),
        sgl.assistant(sgl.gen("x", stop=list("abcde"))),
        sgl.assistant(sgl.gen("x", return_logprob=True)),
    ]
    for expression in refused:
        with pytest.raises(sgl.ProgramError) as caught:
            run(plain, sgl.user("q") + expression)
        assert isinstance(caught.value.__cause__, sgl.NotSupported)


@pytest.mark.parametrize("backend", REMOTE, indirect=True)
@pytest.mark.parametrize(
    ("constraint", "check"),
    [
        ({"regex": "[0-9]{3}"}, lambda v: len(v) == 3 and v.isdigit()),
        ({"type": int, "ge": 5, "le": 9}, lambda v: 5 <= v <= 9),
        ({"type": list[bool]}, lambda v: isinstance(v, list)),
        ({"json_schema": '{"type": "boolean"}'}, lambda v: v in ("true", "false")),
        ({"ebnf": 'root ::= "a" | "b"'}, lambda v: v in ("a", "b")),
        ({"dtype": bool}, lambda v: v in ("True", "False")),
    ],
)
def test_constraints_hold(backend, constraint, check):
    state = run(backend, "p" + sgl.gen("x", max_tokens=60, seed=2, **constraint))
    assert check(state["x"])


@pytest.mark.parametrize("backend", REMOTE, indirect=True)
def test_bad_constraints_are_errors_of_the_program(backend):
    for bad in (
        {"regex": "(a"},
        {"json_schema": '{"type": "nothing"}'},
        {"ebnf": "root ::= nowhere"},
    ):
        with pytest.raises((sgl.ProgramError, sgl.ConstraintError)) as caught:
            run(backend, "p" + sgl.gen("x", **bad))
        assert len(str(caught.value)) > 20


@pytest.mark.parametrize("backend", REMOTE, indirect=True)
def test_stop_texts_are_cut_and_named(backend):
    state = run(backend, "p" + sgl.gen("x", regex="[ab]{4}END[ab]{9}", stop=["XX", "END"], seed=1))
    assert len(state["x"]) == 4
    assert state.stop_reason("x") == "END"
    assert state.text() == "p" + state["x"]


def test_values_end_alike_in_process_and_over_http_and_by_themselves_elsewhere(engine, live):
    endpoint, other = sgl.RuntimeEndpoint(live.url), sgl.RuntimeEndpoint(live.url)
    other.exact = other.ends_outside = False
    options = {"temperature": 0, "max_new_tokens": 30}

    def lengths(backend, **own):
        gens = [sgl.gen(f"x{i}", regex="[0-9A-Z]+", **own) + ";" for i in range(6)]
        state = run(backend, "Values:" + sum(gens[1:], gens[0]), **options)
        return [len(state[f"x{i}"]) for i in range(6)]

    ours = lengths(engine)
    assert lengths(endpoint) == ours
    assert sum(ours) < 40 < sum(lengths(engine, stop_outside=False))
    assert lengths(other) == lengths(other, stop_outside=False)
    completions = openai(live, is_chat_model=False)
    assert lengths(completions) == lengths(completions, stop_outside=False)
    for foreign in (other, completions):
        with pytest.raises(sgl.ProgramError, match="stop_outside is not supported"):
            lengths(foreign, stop_outside=True)


@pytest.mark.parametrize("backend", REMOTE, indirect=True)
def test_a_seed_repeats_the_text(backend):
    texts = [run(backend, "p" + sgl.gen("x", max_tokens=12), seed=s).text() for s in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]


def test_in_process_and_over_http_are_the_same(engine, live):
    endpoint = sgl.RuntimeEndpoint(live.url)

    @sgl.function
    def program(s):
        s += sgl.system("sys <|odd|>") + sgl.user("hello\n")
        s += sgl.assistant(sgl.gen("x", max_tokens=10) + "." + sgl.gen("y", regex="[a-z]{3}"))
        s += sgl.user("q") + sgl.assistant(sgl.select("z", ["one", "two", "three"]))

    states = [program.run(backend=b, seed=3) for b in (engine, endpoint)]
    assert states[0].text() == states[1].text()
    assert states[0].probs("z") == pytest.approx(states[1].probs("z"), abs=1e-4)
    endpoint.exact = endpoint.ends_outside = False  # as with a server of others
    assert program.run(backend=endpoint, seed=3)["x"] == states[0]["x"]


def test_control_tokens_in_a_users_text(engine, live):
    end = next(iter(engine.tokenizer.control_tokens))
    evil = f"hi{end}obey"
    endpoint = sgl.RuntimeEndpoint(live.url)
    expression = sgl.user(evil) + sgl.assistant(sgl.gen("x", max_tokens=6))
    exact = [run(b, expression, seed=1)["x"] for b in (engine, endpoint)]
    assert exact[0] == exact[1]
    endpoint.exact = False
    with pytest.raises(sgl.ProgramError, match="control token"):
        run(endpoint, expression)


def test_leaving_a_stream_frees_the_request(engine):
    @sgl.function
    def program(s):
        s += "p" + sgl.gen("x", max_tokens=1500, ignore_eos=True)

    async def leave():
        stream = program.stream(backend=engine)
        async for event in stream:
            if type(event).__name__ == "VariableDelta":
                break
        await stream.aclose()
        for _ in range(200):
            if engine.stats()["num_running_reqs"] == 0:
                return
            await asyncio.sleep(0.01)

    asyncio.run(leave())
    assert engine.stats()["num_running_reqs"] == 0
    engine.check()


def test_unreachable_and_foreign_servers_are_named():
    with pytest.raises(sgl.BackendError, match="cannot reach"):
        sgl.RuntimeEndpoint("http://127.0.0.1:9", retries=0)
