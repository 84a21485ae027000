"""Run by ``test_instructor.py`` in instructor's own environment: URL of the server, and a mode."""

import sys
from collections.abc import Iterable
from typing import Literal

import instructor
import openai
from pydantic import BaseModel, Field


class Person(BaseModel):
    """Somebody, as in ``people.py``: instructor's environment cannot import it."""

    name: str = Field(max_length=12)
    team: Literal["red", "blue"]


url, mode, model = sys.argv[1:]
client = instructor.from_openai(
    openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0),
    mode=instructor.Mode[mode],
)
many = mode == "PARALLEL_TOOLS"
made = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Who is it? Ada of the red team."}],
    response_model=Iterable[Person] if many else Person,
    temperature=0,
    max_retries=0,
)
for person in made if many else [made]:
    print(person.model_dump_json())
