"""pydantic-ai: typed output through tools and through the response format."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel

from tests.server.live import Live

pydantic_ai = pytest.importorskip("pydantic_ai")


class Person(BaseModel):
    name: str


def agent(live: Live, responses: bool = False, **options: object):
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{live.url}/v1", api_key="none")
    model = (OpenAIResponsesModel if responses else OpenAIChatModel)("toy", provider=provider)
    return pydantic_ai.Agent(model, model_settings={"temperature": 0}, **options)


@pytest.mark.parametrize("responses", [False, True])
def test_text(live: Live, responses: bool) -> None:
    assert agent(live, responses).run_sync("hi").output == "Hello"


def test_output_by_tool(live: Live) -> None:
    live.engine.typist.text = (
        '<tool_call>\n{"name": "final_result", "arguments": {"name": "Ada"}}\n</tool_call>'
    )
    assert agent(live, output_type=Person).run_sync("who?").output == Person(name="Ada")


def test_output_by_schema(live: Live) -> None:
    live.engine.typist.text = '{"name": "Ada"}'
    output_type = pydantic_ai.NativeOutput(Person)
    assert agent(live, output_type=output_type).run_sync("who?").output == Person(name="Ada")


@pytest.mark.parametrize("responses", [False, True])
def test_a_stream_that_fails_raises(failing: Live, responses: bool) -> None:
    async def read() -> None:
        async with agent(failing, responses).run_stream("hi") as answer:
            await answer.get_output()

    with pytest.raises(Exception, match="out of luck"):
        asyncio.run(read())
