"""langchain-openai: structured output by every method, tools, streams, errors."""

from __future__ import annotations

import openai
import pytest
from pydantic import BaseModel

from tests.server.live import Live

langchain_openai = pytest.importorskip("langchain_openai")


class Person(BaseModel):
    """A person."""

    name: str


@pytest.fixture
def chat(live: Live):
    return langchain_openai.ChatOpenAI(
        base_url=f"{live.url}/v1", api_key="none", model="toy", max_retries=0, temperature=0
    )


def test_text_and_stream(chat) -> None:
    assert chat.invoke("hi").content == "Hello"
    assert "".join(chunk.content for chunk in chat.stream("hi")) == "Hello"
    assert chat.invoke("hi").usage_metadata["output_tokens"] == 6


@pytest.mark.parametrize("method", ["json_schema", "json_mode", "function_calling"])
def test_structured_output(live: Live, chat, method: str) -> None:
    live.engine.typist.text = '{"name": "Ada"}'
    if method == "function_calling":
        call = '{"name": "Person", "arguments": {"name": "Ada"}}'
        live.engine.typist.text = f"<tool_call>\n{call}\n</tool_call>"
    made = chat.with_structured_output(Person, method=method).invoke("who? (json)")
    assert made == Person(name="Ada")


def test_tools(live: Live, chat) -> None:
    live.engine.typist.text = (
        '<tool_call>\n{"name": "Person", "arguments": {"name": "Ada"}}\n</tool_call>'
    )
    made = chat.bind_tools([Person]).invoke("who?")
    assert made.tool_calls[0]["args"] == {"name": "Ada"}
    assert made.response_metadata["finish_reason"] == "tool_calls"


def test_a_prompt_that_is_too_long_is_recognised(chat) -> None:
    with pytest.raises(openai.BadRequestError, match="context_length_exceeded"):
        chat.invoke("x" * 5000)


@pytest.mark.parametrize("responses", [False, True])
def test_a_stream_that_fails_raises(failing: Live, responses: bool) -> None:
    chat = langchain_openai.ChatOpenAI(
        base_url=f"{failing.url}/v1",
        api_key="none",
        model="toy",
        max_retries=0,
        use_responses_api=responses,
        store=False,
    )
    chunks = chat.stream("hi")
    with pytest.raises(openai.APIError, match="out of luck"):
        list(chunks)
