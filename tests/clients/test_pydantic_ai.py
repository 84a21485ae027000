"""pydantic-ai: typed output through tools and through the response format."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from tests.server.live import Live

pydantic_ai = pytest.importorskip("pydantic_ai")


class Person(BaseModel):
    name: str


def agent(live: Live, **options: object):
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{live.url}/v1", api_key="none")
    model = OpenAIChatModel("toy", provider=provider)
    return pydantic_ai.Agent(model, model_settings={"temperature": 0}, **options)


def test_text(live: Live) -> None:
    assert agent(live).run_sync("hi").output == "Hello"


def test_output_by_tool(live: Live) -> None:
    live.engine.typist.text = (
        '<tool_call>\n{"name": "final_result", "arguments": {"name": "Ada"}}\n</tool_call>'
    )
    assert agent(live, output_type=Person).run_sync("who?").output == Person(name="Ada")


def test_output_by_schema(live: Live) -> None:
    live.engine.typist.text = '{"name": "Ada"}'
    output_type = pydantic_ai.NativeOutput(Person)
    assert agent(live, output_type=output_type).run_sync("who?").output == Person(name="Ada")
