"""Fork a prompt into branches that generate at the same time, and join what they found.

python examples/parallel_branches.py
"""

from __future__ import annotations

import sglang_lite as sgl

TOPICS = ["diet", "sleep", "exercise"]


@sgl.function
def advise(s):
    """Write one tip per topic in parallel, then choose the most important one."""
    s += sgl.system("You give short, practical advice.")
    s += sgl.user("How can I stay healthy? Give me one tip at a time.")
    forks = s.fork(len(TOPICS))
    forks += lambda i: sgl.assistant(
        f"My tip about {TOPICS[i]}: " + sgl.gen("tip", max_tokens=30, stop="\n")
    )
    forks.join()

    listed = "\n".join(f"- {topic}: {tip}" for topic, tip in zip(TOPICS, s["tip"], strict=True))
    s += sgl.assistant(listed)
    s += sgl.user("Which of these topics matters most?")
    s += sgl.assistant(sgl.select("best", choices=TOPICS))
    return forks


def main() -> None:
    """Run it and show how much of the branches' prompt came from the cache."""
    with sgl.Engine() as engine:
        state = advise.run(temperature=0, backend=engine)
        for topic, tip in zip(TOPICS, state["tip"], strict=True):
            print(f"{topic}: {tip}")
        print(f"most important: {state['best']}")
        for topic, fork in zip(TOPICS, state.ret_value, strict=True):
            usage = fork.usage("tip")
            print(f"{topic}: {usage.cached_tokens} of {usage.prompt_tokens} prompt tokens cached")


if __name__ == "__main__":
    main()
