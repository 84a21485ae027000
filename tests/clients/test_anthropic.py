"""anthropic's Python client: create, stream, parse, tools, count_tokens, errors."""

from __future__ import annotations

import json

import pytest

from tests.clients.people import ADA_JSON, Person, call
from tests.server.live import Live, hello

anthropic = pytest.importorskip("anthropic")

TOOL = {
    "name": "register",
    "description": "Note a person.",
    "input_schema": Person.model_json_schema(),
}
FIELDS = {"model": "toy", "max_tokens": 200, "messages": hello()}
GREEDY = {"extra_body": {"temperature": 0}}
"""Newer versions of the client have no such argument of their own."""


@pytest.fixture
def client(live: Live) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0)


def test_create_and_stream(client: anthropic.Anthropic) -> None:
    made = client.messages.create(**FIELDS, system="Be kind.", **GREEDY)
    assert made.content[0].text == "Hello"
    assert made.stop_reason == "end_turn"
    with client.messages.stream(**FIELDS, **GREEDY) as stream:
        assert "".join(stream.text_stream) == "Hello"
        final = stream.get_final_message()
    assert final.content[0].text == made.content[0].text
    assert final.usage.output_tokens == made.usage.output_tokens == len("Hello") + 1


def test_stop_sequences(live: Live, client: anthropic.Anthropic) -> None:
    live.engine.typist.text = "One. Two."
    made = client.messages.create(**FIELDS, **GREEDY, stop_sequences=["."])
    assert (made.content[0].text, made.stop_sequence) == ("One", ".")


def test_parse(live: Live, client: anthropic.Anthropic) -> None:
    live.engine.typist.text = ADA_JSON
    made = client.messages.parse(**FIELDS, **GREEDY, output_format=Person)
    assert isinstance(made.parsed_output, Person)
    with client.messages.stream(**FIELDS, **GREEDY, output_format=Person) as stream:
        assert stream.get_final_message().parsed_output == made.parsed_output


def test_tools(live: Live, client: anthropic.Anthropic) -> None:
    live.engine.typist.text = call("register")
    fields = {**FIELDS, **GREEDY, "tools": [TOOL], "tool_choice": {"type": "any"}}
    fields["tool_choice"]["disable_parallel_tool_use"] = True
    made = client.messages.create(**fields)
    [block] = made.content
    assert made.stop_reason == "tool_use"
    assert block.input == json.loads(ADA_JSON)
    with client.messages.stream(**fields) as stream:
        [streamed] = stream.get_final_message().content
    assert streamed.input == block.input
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "done"}
    messages = [
        *hello(),
        {"role": "assistant", "content": made.content},
        {"role": "user", "content": [result]},
    ]
    again = client.messages.create(**{**FIELDS, "messages": messages, "tools": [TOOL]})
    assert again.role == "assistant"


def test_a_cut_call_is_the_same_in_both_modes(live: Live, client: anthropic.Anthropic) -> None:
    live.engine.typist.text = call("register")
    fields = {**FIELDS, **GREEDY, "tools": [TOOL], "tool_choice": {"type": "any"}}
    for limit in range(60, 80, 3):
        made = client.messages.create(**{**fields, "max_tokens": limit})
        with client.messages.stream(**{**fields, "max_tokens": limit}) as stream:
            final = stream.get_final_message()
        assert [block.input for block in made.content] == [block.input for block in final.content]
        assert made.stop_reason == final.stop_reason


def test_count_tokens(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model="toy", messages=hello(), tools=[TOOL])
    made = client.messages.create(**FIELDS, tools=[TOOL])
    usage = made.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_errors(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**{**FIELDS, "max_tokens": 0})
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert json.loads(json.dumps(caught.value.body))["type"] == "error"
    with pytest.raises(anthropic.NotFoundError, match="toy"):
        client.messages.create(**{**FIELDS, "model": "other"})


@pytest.mark.model
def test_the_default_model(real: Live) -> None:
    client = anthropic.Anthropic(base_url=real.url, api_key="none", max_retries=0)
    question = "Ada is in the red team. Who is it, as JSON?"
    fields = {**FIELDS, "model": "smollm2", "messages": hello(question)}
    made = client.messages.parse(**fields, **GREEDY, output_format=Person)
    assert isinstance(made.parsed_output, Person)
    choice = {"type": "tool", "name": "register", "disable_parallel_tool_use": True}
    with client.messages.stream(**fields, **GREEDY, tools=[TOOL], tool_choice=choice) as stream:
        [block] = stream.get_final_message().content
    Person.model_validate(block.input)
