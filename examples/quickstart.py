"""A prompt program on a real model: generate, constrain, choose, and read the values.

python examples/quickstart.py
"""

from __future__ import annotations

import sglang_lite as sgl


@sgl.function
def describe(s, animal: str):
    """Ask about one animal, in three ways."""
    s += sgl.system("You answer briefly.")
    s += sgl.user(f"Tell me one fact about the {animal}.")
    s += sgl.assistant(sgl.gen("fact", max_tokens=40, stop="\n"))
    s += sgl.user("In which year did people first walk on the Moon?")
    s += sgl.assistant("It was in " + sgl.gen("year", type=int, ge=1000, le=2100) + ".")
    s += sgl.user(f"Does the {animal} live in water or on land?")
    s += sgl.assistant("It lives " + sgl.select("home", choices=["in water", "on land"]) + ".")


def main() -> None:
    """Run the program on the default model and print what it found."""
    with sgl.Engine() as engine:
        sgl.set_default_backend(engine)
        state = describe.run(animal="octopus", temperature=0)
        print(f"fact:  {state['fact']}")
        print(f"year:  {state['year']} ({type(state['year']).__name__})")
        chances = ", ".join(f"{choice} {p:.0%}" for choice, p in state.probs("home").items())
        print(f"home:  {state['home']} ({chances})")

        print("\nstreamed: ", end="")
        streamed = describe.run(animal="eagle", temperature=0, stream=True)
        for text in streamed.text_iter("fact"):
            print(text, end="", flush=True)
        usage = streamed.usage("year")
        print(f"\n\nof {usage.prompt_tokens} prompt tokens, {usage.cached_tokens} were cached")
        sgl.set_default_backend(None)


if __name__ == "__main__":
    main()
