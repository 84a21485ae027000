"""openai-python on the default model: parse, stream, tools, decisions, log probabilities."""

from __future__ import annotations

import json

import openai
import pytest

from tests.clients.people import Person
from tests.server.live import Live

pytestmark = pytest.mark.model

ASK = [{"role": "user", "content": "Ada is in the red team. Who is it, as JSON?"}]


@pytest.fixture
def client(real: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{real.url}/v1", api_key="none", max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    [card] = client.models.list().data
    assert client.models.retrieve(card.id).id == card.id == "smollm2"


def test_parse(client: openai.OpenAI) -> None:
    made = client.chat.completions.parse(model="smollm2", messages=ASK, response_format=Person)
    assert isinstance(made.choices[0].message.parsed, Person)
    assert made.usage.completion_tokens_details.model_extra["forced_tokens"] > 0


def test_stream_with_parsing(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="smollm2", messages=ASK, response_format=Person, temperature=0
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Person)
    assert {"chunk", "content.delta", "content.done"} <= kinds


@pytest.mark.parametrize("stream", [False, True])
def test_tools(client: openai.OpenAI, stream: bool) -> None:
    fields = {
        "model": "smollm2",
        "messages": ASK,
        "tools": [openai.pydantic_function_tool(Person)],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0,
    }
    if stream:
        with client.chat.completions.stream(**fields) as events:
            message = events.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.parse(**fields).choices[0].message
    [call] = message.tool_calls
    assert isinstance(call.function.parsed_arguments, Person)


def test_responses(client: openai.OpenAI) -> None:
    made = client.responses.parse(
        model="smollm2", input=ASK[0]["content"], text_format=Person, temperature=0
    )
    assert isinstance(made.output_parsed, Person)
    with client.responses.stream(
        model="smollm2", input=ASK[0]["content"], text_format=Person, temperature=0
    ) as stream:
        assert any(event.type == "response.output_text.delta" for event in stream)
        assert stream.get_final_response().output_parsed == made.output_parsed


def test_decisions(client: openai.OpenAI) -> None:
    made = client.decisions.create(
        model="smollm2",
        input="The kettle arrived broken and I am very unhappy.",
        questions=[
            {"type": "predicate", "instructions": "Is the customer unhappy?"},
            {
                "type": "choice",
                "instructions": "What is it about?",
                "choices": [{"value": "a complaint"}, {"value": "praise"}],
            },
        ],
    )
    assert 0 <= made.answers[0].probability <= 1
    assert made.answers[1].choice in ("a complaint", "praise")
    assert sum(p.probability for p in made.answers[1].probabilities) == pytest.approx(1)


def test_completions_with_log_probabilities(client: openai.OpenAI) -> None:
    made = client.completions.create(
        model="smollm2",
        prompt="The capital of France is",
        max_tokens=4,
        temperature=0,
        echo=True,
        logprobs=2,
    )
    choice = made.choices[0]
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.token_logprobs[0] is None
    streamed = client.completions.create(
        model="smollm2", prompt="1 2 3 4", max_tokens=4, temperature=0, stream=True
    )
    assert "".join(part.choices[0].text for part in streamed).strip()


def test_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt", messages=ASK)
    assert caught.value.code == "model_not_found"
    assert caught.value.request_id
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="smollm2", messages=ASK, extra_body={"regex": "a(?=b", "seed": 3}
        )
    assert refused.value.param == "regex"
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": "x y " * 9000}]
        )


def test_async_streams_that_are_left(real: Live) -> None:
    """Leaving the client's own iterator frees the request."""
    import asyncio
    import time

    async def leave() -> None:
        async with openai.AsyncOpenAI(base_url=f"{real.url}/v1", api_key="none") as client:
            stream = await client.chat.completions.create(
                model="smollm2", messages=ASK, stream=True, extra_body={"ignore_eos": True}
            )
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
            await stream.close()

    asyncio.run(leave())
    end = time.monotonic() + 1
    while real.engine.stats()["kv_used_tokens"]:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_json_object(client: openai.OpenAI) -> None:
    made = client.chat.completions.create(
        model="smollm2", messages=ASK, response_format={"type": "json_object"}, max_tokens=300
    )
    if made.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(made.choices[0].message.content), dict)
