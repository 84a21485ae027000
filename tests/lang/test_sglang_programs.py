"""The kinds of programs that SGLang's own tests exercise, on the real model, in process and over
HTTP, unchanged in how they are written."""

from __future__ import annotations

import json
import re

import pytest

import sglang_lite as sgl
from tests.server.live import serving

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def live(engine):
    with serving(engine) as live:
        yield live


@pytest.fixture(params=["engine", "http"])
def backend(request, engine):
    if request.param == "engine":
        chosen = engine
    else:
        chosen = sgl.RuntimeEndpoint(request.getfixturevalue("live").url)
    sgl.set_default_backend(chosen)
    yield chosen
    sgl.set_default_backend(None)


def test_few_shot_qa_in_a_batch(backend):
    @sgl.function
    def few_shot_qa(s, question):
        s += "The following are questions with answers.\n\n"
        s += "Q: What is the capital of France?\nA: Paris\n"
        s += "Q: What is the capital of Germany?\nA: Berlin\n"
        s += "Q: What is the capital of Italy?\nA: Rome\n"
        s += "Q: " + question + "\n"
        s += "A:" + sgl.gen("answer", stop="\n", temperature=0)

    state = few_shot_qa.run(question="What is the capital of the United States?")
    assert state["answer"].strip()
    assert "\n" not in state["answer"]
    rows = [{"question": f"What is the capital of {c}?"} for c in ("Japan", "Spain")]
    states = few_shot_qa.run_batch(rows, temperature=0.1, num_threads=2)
    assert all(len(state["answer"]) > 0 for state in states)
    assert few_shot_qa.bind(question="x").trace().variables


def test_two_turns_with_role_calls_and_scopes(backend):
    @sgl.function
    def answer_two(s, question_1, question_2):
        s += sgl.system("You are a helpful assistant.")
        with s.user():
            s += question_1
        with s.assistant():
            s += sgl.gen("answer_1")
        s += sgl.user(question_2)
        s += sgl.assistant_begin()
        s += sgl.gen("answer_2")
        s += sgl.assistant_end()

    arguments = {"question_1": "Write one word about the sea.", "question_2": "And the sky?"}
    state = answer_two.run(**arguments, temperature=0.1, max_new_tokens=16)
    roles = [message["role"] for message in state.messages()]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert state["answer_1"] == state.messages()[2]["content"]


def test_select(backend):
    @sgl.function
    def true_or_false(s, statement):
        s += "Determine whether the statement below is True, False, or Unknown.\n"
        s += "Statement: The capital of France is Pairs.\nAnswer: True\n"
        s += "Statement: " + statement + "\n"
        s += "Answer:" + sgl.select("answer", ["True", "False", "Unknown"])

    state = true_or_false.run(statement="The capital of Germany is Berlin.")
    assert state["answer"] in ("True", "False", "Unknown")
    meta = state.get_meta_info("answer")
    assert len(meta["normalized_prompt_logprobs"]) == 3


def test_dtypes(backend):
    patterns = {int: r"[-+]?\d+", float: r"[-+]?\d*\.?\d+", bool: "True|False", str: r'"[\w\s]*"'}

    @sgl.function
    def dtype_gen(s):
        s += "Q: What is the full name of DNS?\n"
        for dtype in patterns:
            s += "A: " + sgl.gen(dtype.__name__, dtype=dtype, max_tokens=10) + "\n"
        s += "Twice: " + sgl.gen_int("a", max_tokens=4) + " and " + sgl.gen_int("b", max_tokens=4)

    state = dtype_gen.run(seed=1, temperature=0.3)
    for dtype, pattern in patterns.items():
        if state.finish_reason(dtype.__name__) == "stop":
            assert re.fullmatch(pattern, state[dtype.__name__])
    assert state["bool"] in ("True", "False")
    assert isinstance(int(state["a"] + state["b"]), int)


def test_json_by_scope_and_pieces(backend):
    string = r'"[\w ]{1,12}"'

    @sgl.function
    def character(s, name):
        s += f"{name} is a character.\n"
        with s.var_scope("json_output"):
            s += "{\n"
            s += '  "name": ' + sgl.gen("name", regex=string) + ",\n"
            s += '  "age": ' + sgl.gen("age", regex=r"[0-9]{1,3}") + "\n"
            s += "}"

    state = character.run(name="Hermione", max_new_tokens=20, temperature=0.3, seed=1)
    if all(state.finish_reason(n) == "stop" for n in ("name", "age")):
        loaded = json.loads(re.sub(r": 0+(\d)", r": \1", state["json_output"]))
        assert set(loaded) == {"name", "age"}
    assert state["json_output"].startswith("{\n")
    assert state["json_output"] in state.text()


def test_spliced_values_and_tool_results(backend):
    @sgl.function
    def expert(s, question):
        s += sgl.user("Name one expert for: " + question)
        s += sgl.assistant("An expert is" + sgl.gen("expert", max_tokens=6, stop=["."]) + ".")
        s += sgl.user("What would" + s["expert"] + " say?")
        with s.assistant(), s.var_scope("said"):
            s += "The sum is " + str(17 + 25) + sgl.gen("rest", max_tokens=6)

    state = expert.run(question="sums", temperature=0)
    assert "What would" + state["expert"] in state.text()
    assert state["said"] == "The sum is 42" + state["rest"]


def test_react_loop_with_computed_names(backend):
    @sgl.function
    def react(s, question):
        s += "Question: " + question + "\n"
        for i in range(1, 3):
            s += f"Thought {i}:" + sgl.gen(f"thought_{i}", stop="\n", max_tokens=8) + "\n"
            s += f"Act {i}: " + sgl.select(f"act_{i}", ["Search", "Finish"]) + "\n"
            if s[f"act_{i}"] == "Finish":
                break

    state = react.run(question="Who wrote Hamlet?", temperature=0)
    assert state["act_1"] in ("Search", "Finish")


def test_parallel_decoding_and_encoding(backend):
    @sgl.function
    def decoding(s, topic):
        s += "Act as a helpful assistant about " + topic + ".\n"
        forks = s.fork(3)
        for i in range(3):
            forks[i] += f"Tip {i + 1}:" + sgl.gen("tip", max_tokens=8, stop=["\n\n"])
        forks.join()
        for i in range(3):
            s += f"Tip {i + 1}:" + forks[i]["tip"] + "\n"
        s += "Summary:" + sgl.gen("summary", max_tokens=8)

    state = decoding.run(topic="health", temperature=0)
    assert state.text().count("Tip ") >= 3
    assert len(state["tip"]) == 3

    @sgl.function
    def encoding(s, contexts):
        forks = s.fork(len(contexts))
        forks += lambda i: f"Note {i}: {contexts[i]}\n"
        forks.join(mode="concate_and_append")
        s += "So:" + sgl.gen("x", max_tokens=4)

    state = encoding.run(contexts=["one", "two"], temperature=0)
    assert state.text().startswith("Note 0: one\nNote 1: two\nSo:")


def test_streaming_with_and_without_a_variable(backend):
    @sgl.function
    def qa(s, question):
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen("answer"))

    state = qa.run(question="Say hi.", max_new_tokens=12, temperature=0, stream=True)
    assert "".join(state.text_iter("answer")) == state["answer"]
    assert "".join(state.text_iter()) == state.text()


def test_regex_min_tokens_and_a_parameter_named_n(backend):
    ip = r"((25[0-5]|2[0-4]\d|[01]?\d\d?).){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"

    @sgl.function
    def parallel_sample(s, question, n):
        s += question + sgl.gen("ip", temperature=0, regex=ip, max_tokens=32)
        forks = s.fork(n)
        forks += sgl.gen("x", max_tokens=6, min_tokens=4)
        forks.join()

    state = parallel_sample.run(question="Q: What is the IP address of DNS?\nA: ", n=2)
    assert re.fullmatch(ip, state["ip"])
    assert len(state["x"]) == 2
    assert all(usage.completion_tokens >= 4 for usage in state.usage("x"))


def test_completion_speculation_spends_fewer_prompt_tokens(live):
    def gen_character(s):
        s += "Construct a character within the following format:\n"
        s += "Name: Steve Jobs.\nBirthday: February 24, 1955.\nJob: Apple CEO.\n"
        s += "\nPlease generate new Name, Birthday and Job.\n"
        s += "Name:" + sgl.gen("name", stop="\n")
        s += "\nBirthday:" + sgl.gen("birthday", stop="\n")
        s += "\nJob:" + sgl.gen("job", stop="\n") + "\n"

    openai = sgl.OpenAI("toy", is_chat_model=False, base_url=f"{live.url}/v1", api_key="none")
    states, spent = [], []
    for program in (
        sgl.function(num_api_spec_tokens=64)(gen_character),
        sgl.function(gen_character),
    ):
        openai.token_usage.reset()
        states.append(program.run(backend=openai, temperature=0))
        spent.append(openai.token_usage.prompt_tokens)
    assert spent[0] < spent[1]
    assert states[0].text() == states[1].text()


def test_chat_completion_speculation(live):
    @sgl.function(num_api_spec_tokens=64)
    def gen_character(s):
        for name, job in [("Steve Jobs", "Apple CEO"), ("Ada Lovelace", "mathematician")]:
            s += sgl.user("Name and job of somebody, please.")
            s += sgl.assistant(f"Name: {name}\nJob: {job}")
        s += sgl.user("Name and job of somebody, please.")
        s += sgl.assistant("Name:" + sgl.gen("name", stop="\n") + "\nJob:" + sgl.gen("job"))

    openai = sgl.OpenAI("toy", base_url=f"{live.url}/v1", api_key="none", dialect="openai")
    state = gen_character.run(backend=openai, temperature=0)
    said = f"Name:{state['name']}\nJob:{state['job']}"
    assert state.messages()[-1]["content"] == said
    assert "\n" not in state["name"]
    assert state.usage("job").prompt_tokens == 0
