"""Extract records from several texts at once: a Pydantic model is the constraint and the result.

python examples/json_extraction.py
"""

from __future__ import annotations

from pydantic import BaseModel, Field

import sglang_lite as sgl

TEXTS = [
    "Ada Lovelace, aged 36, lived in London.",
    "My name is 王伟, I am 28 years old and I live in 北京.",
    "Zoë 🎨 is a painter of 41 from Zürich.",
    "Grace Hopper retired at 79 in Arlington.",
]


class Person(BaseModel):
    """What each text says about somebody."""

    name: str = Field(max_length=40)
    age: int = Field(ge=0, le=150)
    city: str = Field(max_length=40)


@sgl.function
def extract(s, text: str):
    """One text to one Person."""
    s += sgl.user(f"Extract name, age and city as JSON.\n\nText: {text}")
    s += sgl.assistant(sgl.gen("person", type=Person, max_tokens=200))


def main() -> None:
    """Extract all texts in one batch; the instruction's tokens are computed once."""
    with sgl.Engine() as engine:
        states = extract.run_batch(
            [{"text": text} for text in TEXTS],
            temperature=0,
            backend=engine,
            progress_bar=True,
            on_error="return",
        )
        for text, state in zip(TEXTS, states, strict=True):
            person: Person = state["person"]
            print(f"{text}\n  -> {person!r}")


if __name__ == "__main__":
    main()
