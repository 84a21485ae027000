"""dspy: a typed signature, through its adapters, on the default model."""

from __future__ import annotations

from typing import Literal

import pytest

from tests.server.live import Live

dspy = pytest.importorskip("dspy")
pytestmark = pytest.mark.model


class Sort(dspy.Signature):
    """Sort a message."""

    message: str = dspy.InputField()
    kind: Literal["complaint", "praise"] = dspy.OutputField()
    stars: Literal[1, 2, 3, 4, 5] = dspy.OutputField()


class Ours(dspy.LM):
    """dspy looks into a catalogue for what a model can do, and ours is in none."""

    supports_response_schema = True
    supported_params = frozenset({"response_format", "tools", "tool_choice", "max_tokens"})


@pytest.fixture
def lm(real: Live):
    return Ours(
        "openai/smollm2",
        api_base=f"{real.url}/v1",
        api_key="none",
        cache=False,
        max_tokens=200,
        temperature=0,
        num_retries=0,
    )


def test_typed_output_by_schema(lm) -> None:
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        made = dspy.Predict(Sort)(message="The kettle arrived broken!")
    assert made.kind in ("complaint", "praise")
    assert made.stars in (1, 2, 3, 4, 5)


def test_plain_question(lm) -> None:
    [answer] = lm("Say hello.")
    assert (answer["text"] if isinstance(answer, dict) else answer).strip()
