"""litellm: answers, streams, schemas and its mapping of our errors."""

from __future__ import annotations

import json

import pytest

from tests.clients.people import ADA, ADA_JSON, Person, call
from tests.server.live import Live

litellm = pytest.importorskip("litellm")

ASK = [{"role": "user", "content": "hi"}]


def ask(live: Live, provider: str = "openai", **fields: object):
    fields = {"messages": ASK, "temperature": 0, **fields}
    name = f"{provider}/{live.process.server.model_name}"
    return litellm.completion(
        model=name, api_base=f"{live.url}/v1", api_key="none", num_retries=0, **fields
    )


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_answers_and_streams(live: Live, provider: str) -> None:
    answer = ask(live, provider)
    assert answer.choices[0].message.content == "Hello"
    assert answer.usage.completion_tokens == 6
    chunks = list(ask(live, provider, stream=True, stream_options={"include_usage": True}))
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == "Hello"


def test_schema(live: Live) -> None:
    live.engine.typist.text = ADA_JSON
    content = ask(live, response_format=Person).choices[0].message.content
    assert Person.model_validate_json(content) == ADA


def test_tools(live: Live) -> None:
    live.engine.typist.text = call("save")
    function = {"name": "save", "parameters": Person.model_json_schema()}
    choice = ask(live, tools=[{"type": "function", "function": function}]).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert json.loads(choice.message.tool_calls[0].function.arguments) == ADA.model_dump()


def test_errors_are_told_apart(live: Live) -> None:
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(live, messages=[{"role": "user", "content": "x" * 5000}])
    with pytest.raises(litellm.NotFoundError):
        litellm.completion("openai/gpt", ASK, api_base=f"{live.url}/v1", api_key="none")
    with pytest.raises(litellm.BadRequestError, match="regex"):
        ask(live, extra_body={"regex": "["})


@pytest.mark.model
def test_schema_on_the_default_model(real: Live) -> None:
    content = ask(real, response_format=Person).choices[0].message.content
    Person.model_validate_json(content)
