"""``/v1/responses``, through the openai client where that is possible."""

from __future__ import annotations

import json

import openai
import pytest
from openai.types.responses import ResponseErrorEvent, ResponseFailedEvent
from pydantic import BaseModel, TypeAdapter

from sglang_lite.errors import EngineError
from sglang_lite.runtime.messages import FinishReason
from tests.server.live import Live, error_of, hello
from tests.server.scripted import Script

CALL = '<tool_call>\n{"name": "now", "arguments": {"zone": "UTC"}}\n</tool_call>'
NOW = {
    "type": "function",
    "name": "now",
    "parameters": {
        "type": "object",
        "properties": {"zone": {"type": "string"}},
        "required": ["zone"],
        "additionalProperties": False,
    },
    "strict": True,
}

ERROR_EVENT = TypeAdapter(ResponseErrorEvent)
FAILED_EVENT = TypeAdapter(ResponseFailedEvent)


@pytest.fixture
def client(live: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)


def test_text(live: Live, client: openai.OpenAI) -> None:
    made = client.responses.create(model="toy", input="hi", instructions="Be kind.")
    assert made.output_text == "Hello"
    assert made.status == "completed"
    assert made.usage.output_tokens == 5
    assert made.usage.total_tokens == made.usage.input_tokens + 5
    prompt = bytes(live.engine.requests[0].input_ids).decode()
    assert prompt == "<system>Be kind.\n<user>hi\n<assistant>"


def test_items(live: Live, client: openai.OpenAI) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "time?"}]},
        {"type": "function_call", "call_id": "c", "name": "now", "arguments": '{"zone": "UTC"}'},
        {"type": "function_call_output", "call_id": "c", "output": "12:00"},
    ]
    client.responses.create(model="toy", input=items, tools=[NOW])
    prompt = bytes(live.engine.requests[0].input_ids).decode()
    assert f"<assistant>{CALL}\n<user><tool_response>\n12:00" in prompt


class Person(BaseModel):
    name: str


def test_parse(live: Live, client: openai.OpenAI) -> None:
    live.engine.script = Script(('{"name": "Ada"}',))
    made = client.responses.parse(model="toy", input="who?", text_format=Person)
    assert made.output_parsed == Person(name="Ada")
    assert live.engine.requests[0].sampling_params.constraint is not None


def test_calls(live: Live, client: openai.OpenAI) -> None:
    live.engine.script = Script((f"Wait.\n{CALL}",))
    made = client.responses.create(model="toy", input="time?", tools=[NOW])
    assert [item.type for item in made.output] == ["message", "function_call"]
    assert made.output_text == "Wait."
    assert json.loads(made.output[1].arguments) == {"zone": "UTC"}


def test_stream(live: Live, client: openai.OpenAI) -> None:
    live.engine.script = Script(("Wa", "it.\n", CALL[:20], CALL[20:]))
    events = list(client.responses.create(model="toy", input="time?", tools=[NOW], stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type.removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert events[-1].response.output_text == "Wait."
    assert events[6].text == "Wait."
    assert json.loads(events[11].arguments) == {"zone": "UTC"}


def test_stream_helper(client: openai.OpenAI) -> None:
    with client.responses.stream(model="toy", input="hi") as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == "Hello"


def broken_off(live: Live, *pieces: str, **fields: object) -> list[dict]:
    """The events of a stream whose engine fails after ``pieces``."""
    live.engine.script = Script(pieces, fail=EngineError("out of luck"))
    text = live.post("/v1/responses", input="hi", stream=True, **fields).text
    assert text.endswith("\n\n")
    events = [part.split("\ndata: ") for part in text.removesuffix("\n\n").split("\n\n")]
    made = [json.loads(data) for _, data in events]
    assert [name for name, _ in events] == [f"event: {event['type']}" for event in made]
    assert [event["sequence_number"] for event in made] == list(range(len(made)))
    return made


def test_a_failure_in_a_stream_ends_with_its_typed_events(live: Live) -> None:
    *_, delta, error, failed = broken_off(live, "Hel", "lo")
    assert delta["type"] == "response.output_text.delta"
    message = "The engine failed on this request: out of luck"
    assert ERROR_EVENT.validate_python(error).type == "error"
    assert (error["code"], error["message"], error["param"]) == ("internal_error", message, None)
    assert error["error"]["message"] == message
    response = FAILED_EVENT.validate_python(failed).response
    assert (response.status, response.error.code) == ("failed", "server_error")
    assert response.error.message == message
    [item] = response.output
    assert (item.status, item.content[0].text) == ("incomplete", "Hello")


def test_a_failure_after_a_finished_item_leaves_it_finished(live: Live) -> None:
    *_, failed = broken_off(live, "Wait.\n", CALL[:45], tools=[NOW])
    output = failed["response"]["output"]
    assert [item["status"] for item in output] == ["completed", "incomplete"]
    assert (output[1]["type"], output[1]["name"]) == ("function_call", "now")


def test_a_failure_before_the_first_text(live: Live) -> None:
    events = broken_off(live)
    kinds = [event["type"] for event in events]
    assert kinds == ["response.created", "response.in_progress", "error", "response.failed"]
    assert events[-1]["response"]["output"] == []


def test_the_client_raises_when_a_stream_fails(live: Live, client: openai.OpenAI) -> None:
    live.engine.script = Script(("Hel",), fail=EngineError("out of luck"))
    events = client.responses.create(model="toy", input="hi", stream=True)
    with pytest.raises(openai.APIError, match="out of luck") as caught:
        list(events)
    assert caught.value.code == "internal_error"
    with (
        pytest.raises(openai.APIError, match="out of luck"),
        client.responses.stream(model="toy", input="hi") as stream,
    ):
        stream.get_final_response()


def test_length(live: Live, client: openai.OpenAI) -> None:
    live.engine.script = Script(("Hel",), FinishReason("length"))
    made = client.responses.create(model="toy", input="hi", max_output_tokens=3)
    assert made.status == "incomplete"
    assert made.incomplete_details.reason == "max_output_tokens"
    assert made.output_text == "Hel"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "function_call"}]}, "input.0.call_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"messages": hello()}, "messages"),
        ({"tools": [{"type": "web_search"}]}, None),
        ({"truncation": "auto"}, "truncation"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        (
            {
                "text": {
                    "format": {"type": "json_schema", "name": "x", "schema": {"$ref": "http://x"}}
                }
            },
            "text.format.schema",
        ),
    ],
)
def test_what_is_refused(live: Live, fields: dict, param: str | None) -> None:
    error = error_of(live.post("/v1/responses", **{"input": "hi", **fields}))
    if param is not None:
        assert error["param"] == param
