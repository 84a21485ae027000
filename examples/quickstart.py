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
    s += sgl.user("How many legs does it have? Answer with a number.")
    s += sgl.assistant(sgl.gen("legs", type=int, ge=0, le=1000))
    s += sgl.user("Does it live in water or on land?")
    s += sgl.assistant(sgl.select("home", choices=["in water", "on land"]))


def main() -> None:
    """Run the program on the default model and print what it found."""
    with sgl.Engine() as engine:
        sgl.set_default_backend(engine)
        state = describe.run(animal="octopus", temperature=0)
        print(f"fact:  {state['fact']}")
        print(f"legs:  {state['legs']} ({type(state['legs']).__name__})")
        print(f"home:  {state['home']} {state.probs('home')}")

        print("\nstreamed: ", end="")
        streamed = describe.run(animal="eagle", temperature=0, stream=True)
        for text in streamed.text_iter("fact"):
            print(text, end="", flush=True)
        usage = streamed.usage("legs")
        print(f"\n\nof {usage.prompt_tokens} prompt tokens, {usage.cached_tokens} were cached")
        sgl.set_default_backend(None)


if __name__ == "__main__":
    main()
