"""What the clients' tests ask for."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class Person(BaseModel):
    """Somebody."""

    name: str = Field(max_length=12)
    team: Literal["red", "blue"]


ADA = Person(name="Ada", team="red")
ADA_JSON = '{"name": "Ada", "team": "red"}'


def call(name: str, arguments: str = ADA_JSON) -> str:
    """A call as the model double writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
