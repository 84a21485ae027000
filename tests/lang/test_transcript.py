"""Segments, token ids and chat templates."""

from __future__ import annotations

import asyncio
import logging

import pytest

import sglang_lite as sgl
from sglang_lite.lang.chat_template import ChatTemplate, chatml, jinja
from sglang_lite.lang.transcript import Piece, Transcript, any_of, runs

LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set sys = messages[0]['content'] %}"
    "{% set rest = messages[1:] %}{% else %}{% set sys = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}<s>[INST] "
    "{% if loop.first and sys %}<<SYS>>\n{{ sys }}\n<</SYS>>\n\n{% endif %}"
    "{{ m['content'] }} [/INST]{% else %} {{ m['content'] }}</s>{% endif %}{% endfor %}"
)
MOVING_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{% set sys = messages[0]['content'] + '\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set sys = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if m['role'] == 'user' %}[INST] "
    "{% if loop.last or loop.nextitem is undefined %}{{ sys }}{% endif %}{{ m['content'] }}[/INST]"
    "{% else %}{{ m['content'] }}</s>{% endif %}{% endfor %}"
)
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if loop.last and m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def text_of(template, turns):
    """Build a conversation the way an executor does."""
    transcript = Transcript()
    for role, content in turns:
        transcript.open(role, template.prefix([m.role for m in transcript.messages], role))
        transcript.append(content)
        transcript.close(template.suffix([*(m.role for m in transcript.messages), role]))
    return transcript.text()


CONVERSATION = [("system", "be kind"), ("user", "hi"), ("assistant", "hello"), ("user", "bye")]


@pytest.mark.parametrize(
    ("source", "most"), [(LLAMA2, 4), (MOVING_SYSTEM, 2), (THINKING, 4), (None, 4)]
)
def test_prefixes_and_suffixes_rebuild_what_the_template_renders(source, most):
    render = chatml if source is None else jinja(source)
    template = ChatTemplate(render, "test")
    for turns in (CONVERSATION[1:], CONVERSATION[:2], CONVERSATION[:4], CONVERSATION[1:2]):
        if len(turns) > most:
            continue
        messages = [{"role": role, "content": content} for role, content in turns]
        assert text_of(template, turns) == render(messages, False)


def test_a_system_message_that_moves_stays_where_it_was():
    template = ChatTemplate(jinja(MOVING_SYSTEM), "moving")
    text = text_of(template, CONVERSATION)
    assert text == "[INST] be kind\n\nhi[/INST]hello</s>[INST] bye[/INST]"


def test_an_answer_that_the_model_writes_begins_with_the_generation_prompt():
    @sgl.function
    def program(s):
        s += sgl.user("hi") + sgl.assistant(sgl.gen("x")) + sgl.user("so")
        s += sgl.assistant("given") + sgl.user("bye")

    mock = sgl.Mock("yes")
    mock.chat_template = ChatTemplate(jinja(LLAMA2), "llama-2")
    text = program.run(backend=mock).text()
    assert text == (
        "<s>[INST] hi [/INST]yes</s><s>[INST] so [/INST] given</s><s>[INST] bye [/INST]"
    )
    streamed = program.run(backend=mock, stream=True)
    assert "".join(streamed.text_iter()) == text


def test_a_refused_conversation_is_an_error_with_the_templates_words():
    template = ChatTemplate(jinja(LLAMA2), "llama-2")
    with pytest.raises(sgl.InvalidRequest, match="roles must alternate"):
        template.prefix(["user"], "user")
    with pytest.raises(sgl.InvalidRequest, match="llama-2"):
        template.prefix([], "assistant")


def test_a_backend_without_a_template_warns_and_says_what_it_uses(caplog):
    mock = sgl.Mock("t")
    mock.chat_template = None

    @sgl.function
    def program(s):
        s += sgl.user("q") + sgl.assistant(sgl.gen("x"))

    with caplog.at_level(logging.WARNING, "sglang_lite"):
        program.run(backend=mock)
        program.run(backend=mock)
    assert [r.getMessage() for r in caplog.records] == [
        "backend mock has no chat template: using ChatML"
    ]


def test_a_state_tells_its_template():
    assert sgl.function(lambda s: s.template.name).run(backend=sgl.Mock()).ret_value == "chatml"


def test_control_tokens_count_only_where_the_template_wrote_them():
    control = any_of(["<|end|>", "<|end|>2"])
    pieces = [
        Piece("<|start|>user\n", True),
        Piece("a <|end|> b <|e"),
        Piece("nd|>2 c"),
        Piece("<|end|>", True),
    ]
    assert runs(pieces, control) == [
        ("<|start|>user\na ", True),
        ("<|end|>", False),
        (" b ", True),
        ("<|end|>2", False),
        (" c<|end|>", True),
    ]
    assert runs([], control) == []
    assert runs([Piece("plain")], any_of([])) == [("plain", True)]


class Characters:
    """An encoder: a token is a character; ``start`` is token 0."""

    async def encode(self, pieces, *, start):
        return (*([0] if start else []), *(ord(c) for piece in pieces for c in piece.text))


def prompt_of(transcript):
    return asyncio.run(transcript.prompt(Characters()))


def test_generated_ids_are_kept_and_only_new_literals_encoded():
    transcript = Transcript()
    transcript.append("ab")
    first = prompt_of(transcript)
    assert (first.input_ids, first.sealed) == ((0, 97, 98), 0)
    transcript.append_generated("xyz", [900, 901], first.input_ids, rest="!")
    transcript.append("c")
    second = prompt_of(transcript)
    assert second.input_ids == (0, 97, 98, 900, 901, 33, 99)
    assert second.sealed == 5
    assert [piece.text for piece in second.tail] == ["!", "c"]
    assert second.text == "abxyz!c"


def test_a_template_brings_its_own_beginning_of_text():
    transcript = Transcript()
    transcript.open("user", "U:")
    transcript.append("hi")
    assert prompt_of(transcript).input_ids == tuple(map(ord, "U:hi"))


def test_rollback_and_copies_are_independent():
    transcript = Transcript()
    transcript.append("kept")
    mark = transcript.mark()
    copy = transcript.copy()
    transcript.open("user", "U:")
    transcript.append_generated("x", [5], [1, 2])
    transcript.close(";")
    transcript.rollback(mark)
    assert (transcript.text(), transcript.messages, transcript.open_role) == ("kept", [], None)
    assert prompt_of(transcript).input_ids == prompt_of(copy).input_ids
    copy.append("more")
    assert transcript.text() == "kept"


def test_messages_agree_with_the_text_and_show_an_open_role():
    @sgl.function
    def program(s):
        s += sgl.user("  spaced\n")
        s += sgl.assistant_begin() + "half"
        return s.messages()

    state = program.run(backend=sgl.Mock())
    assert state.ret_value == [
        {"role": "user", "content": "  spaced\n"},
        {"role": "assistant", "content": "half", "partial": True},
    ]
    assert "  spaced\n" in state.text()
