"""The body of ``/v1/decisions``: questions about one shared input."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from sglang_lite.runtime.server.schemas.chat import ContentPart
from sglang_lite.runtime.server.schemas.responses import InputItem
from sglang_lite.runtime.server.schemas.wire import Many, WireModel

MAX_QUESTIONS = 400


class Question(WireModel):
    """What the kinds of questions share."""

    instructions: str | Many[ContentPart]
    name: str | None = None

    @property
    def text(self) -> str:
        """The instructions as one string."""
        if isinstance(self.instructions, str):
            return self.instructions
        return "".join(part.text or "" for part in self.instructions)


class Predicate(Question):
    """How likely is the statement?"""

    type: Literal["predicate"]


class Option(WireModel):
    """One option of a choice; True and "true" are two values."""

    value: str | bool
    description: str | None = None


class ChoiceQuestion(Question):
    """Which option?"""

    type: Literal["choice"]
    choices: Many[Option] = Field(min_length=2, max_length=255)

    @model_validator(mode="after")
    def _check(self) -> Self:
        values = [(type(option.value), option.value) for option in self.choices]
        if len(set(values)) < len(values):
            raise PydanticCustomError("duplicate", "choices must be unique", {"field": "choices"})
        return self


class Level(WireModel):
    """One level of a scale."""

    label: str
    description: str | None = None


class ScoreQuestion(Question):
    """Which level of an ordered scale?  The lowest counts 0."""

    type: Literal["score"]
    levels: Many[Level] = Field(min_length=2, max_length=10)


AnyQuestion = Annotated[Predicate | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")]


class DecisionRequest(WireModel):
    """The body of ``POST /v1/decisions``."""

    model: str | None = None
    input: str | Annotated[Many[InputItem], Field(min_length=1)]
    questions: Many[AnyQuestion] = Field(min_length=1, max_length=MAX_QUESTIONS)
    ignored: ClassVar[frozenset[str]] = frozenset(
        {"prompt_cache_key", "prompt_cache_options", "safety_identifier"}
    )

    def messages(self) -> list[dict[str, Any]]:
        """The input as chat messages."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        return [item.message() for item in self.input]
