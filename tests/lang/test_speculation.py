"""Writing ahead on an API that is paid by the prompt."""

from __future__ import annotations

import pytest

import sglang_lite as sgl


class Api(sgl.Mock):
    """A completion API; ``begins_only``: a chat API that goes on with no message."""

    paid_by_prompt = True
    begins_only = False

    async def continues(self, prompt):
        return not (self.begins_only and prompt.messages and prompt.messages[-1].content)


class ChatApi(Api):
    begins_only = True


@sgl.function(num_api_spec_tokens=64)
def character(s, options=None):
    options = {"stop": "\n", **(options or {})}
    s += "Make one up.\nName:" + sgl.gen("name", **options)
    s += "\nBirthday:" + sgl.gen("birthday", **options)
    s += "\nJob:" + sgl.gen("job", **options) + "\n"


def values(state):
    return [state[name] for name in ("name", "birthday", "job")]


WRITTEN = " Ada\nBirthday: 1815\nJob: countess"


def test_three_gens_are_cut_out_of_one_answer():
    api = Api(WRITTEN)
    state = character.run(backend=api)
    assert values(state) == [" Ada", " 1815", " countess"]
    assert state.text() == f"Make one up.\nName:{WRITTEN}\n"
    ((prompt, params),) = api.calls
    assert prompt == "Make one up.\nName:"
    assert (params.stop, params.max_new_tokens) == ((), 128)
    assert [state.stop_reason(name) for name in ("name", "birthday", "job")] == ["\n", "\n", None]
    assert state.total_usage().completion_tokens == len(WRITTEN)
    assert state.usage("birthday").completion_tokens == 0


def test_bind_keeps_it_and_streams_come_out_whole():
    api = Api(WRITTEN)
    state = character.bind().run(backend=api, stream=True)
    assert "".join(state.text_iter("birthday")) == " 1815"
    assert "".join(state.text_iter()) == state.text()
    assert len(api.calls) == 1


ENDLESS = "a" * 500


@pytest.mark.parametrize(
    ("answers", "options", "expected"),
    [
        # Where the program goes another way, the model is asked again.
        ([" Ada\nBorn: 1815\n", " 1815\nJob: x"], {}, [" Ada", " 1815", " x"]),
        # The long answer was cut, and there is no stop in it.
        ([ENDLESS, "a", "b\nJob:c"], {}, ["a", "b", "c"]),
        # A text that may have more tokens than were asked for.
        (["long\n", "lo", "a\nJob:b"], {"max_tokens": 2}, ["lo", "a", "b"]),
        # What cannot be cut out of a longer answer.
        (["1", "2", "3"], {"type": int, "stop": None}, [1, 2, 3]),
        (["1", "2", "3"], {"min_tokens": 1}, ["1", "2", "3"]),
        ([["1"], ["2"], ["3"]], {"stop_regex": "x"}, ["1", "2", "3"]),
    ],
)
def test_when_the_model_is_asked_again(answers, options, expected):
    api = Api(answers)
    assert values(character.run(options, backend=api)) == expected
    assert len(api.calls) == len(answers)


def test_gens_with_other_parameters_do_not_share_an_answer():
    @sgl.function(num_api_spec_tokens=64)
    def program(s):
        s += sgl.gen("x", stop="\n") + "\n" + sgl.gen("y", stop="\n", temperature=0)

    assert program.run(backend=Api(["1\n2\n", "3"]))["y"] == "3"


def test_roles_forks_and_rollbacks_begin_anew():
    @sgl.function(num_api_spec_tokens=64)
    def program(s):
        s += sgl.assistant(sgl.gen("a", stop="\n")) + sgl.assistant(sgl.gen("b", stop="\n"))
        with s.scratch():
            s += sgl.gen("c", stop="\n")
        s += sgl.gen("d", stop="\n")
        (fork,) = s.fork(1)
        fork += sgl.gen("e", stop="\n")
        return [s[name] for name in "abcd"], fork["e"]

    api = Api([f"{name}\nmore\n" for name in "ABCDE"])
    assert program.run(backend=api).ret_value == (list("ABCD"), "E")


@sgl.function(num_api_spec_tokens=256)
def chat(s):
    s += sgl.user("Make one up.")
    s += sgl.assistant("Name:" + sgl.gen("name", stop="\n") + "\nJob:" + sgl.gen("job"))


def test_a_chat_api_that_only_begins_messages_writes_the_whole_one():
    api = ChatApi(["Sure! Name: X", "Name: Ada\nJob: countess"])
    state = chat.run(backend=api)
    assert (state["name"], state["job"]) == (" Ada", " countess")
    assert state.messages()[-1]["content"] == "Name: Ada\nJob: countess"
    assert state.total_usage().completion_tokens == len("Sure! Name: XName: Ada\nJob: countess")
    with pytest.raises(sgl.ProgramError, match="3 answers in turn do not begin with 'Name:'"):
        chat.run(backend=ChatApi("Sure!"))


def test_backends_that_cache_prompts_do_not_write_ahead():
    mock = sgl.Mock([" Ada", " 1815", " x"])
    assert values(character.run(backend=mock)) == [" Ada", " 1815", " x"]
