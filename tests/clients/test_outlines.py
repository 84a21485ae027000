"""outlines' SGLang and vLLM models: a third party's view of the constraint dialects."""

from __future__ import annotations

import json
from typing import Literal

import openai
import pytest
from pydantic import BaseModel, Field

from tests.server.live import Live

outlines = pytest.importorskip("outlines")


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: Literal[1, 22]


def model(live: Live, kind: str) -> object:
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
    return getattr(outlines, f"from_{kind}")(client, "toy")


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_types(live: Live, kind: str) -> None:
    live.engine.typist.text = '{"name": "Ada", "age": 22}'
    text = model(live, kind)("who?", Person, max_tokens=200, temperature=0)
    assert Person.model_validate_json(text) == Person(name="Ada", age=22)
    assert model(live, kind)("which?", Literal["red", "blue"], max_tokens=20) in ("red", "blue")
    assert json.loads(model(live, kind)("how many?", int, max_tokens=50)) is not None


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_regex(live: Live, kind: str) -> None:
    text = model(live, kind)("?", outlines.types.Regex("[a-c]{3}!"), max_tokens=20, temperature=2)
    assert len(text) == 4
    assert set(text[:3]) <= set("abc")


def test_grammars(live: Live) -> None:
    lark = outlines.types.CFG('start: "yes" | "no"')
    assert model(live, "vllm")("?", lark, max_tokens=20, temperature=1) in ("yes", "no")


def test_plain_text_and_streams(live: Live) -> None:
    assert model(live, "sglang")("hi", temperature=0) == "Hello"
    assert "".join(model(live, "vllm").stream("hi", temperature=0)) == "Hello"
