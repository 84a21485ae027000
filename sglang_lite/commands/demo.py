"""``sglang-lite demo``: one prompt program, what it made, what it saved, and how fast it was."""

from __future__ import annotations

import time
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import sglang_lite as sgl
from sglang_lite.runtime.default_model import resolve_model_path

MESSAGE = (
    "Hello, my name is Maria Santos and I live in Lisbon. My tea kettle, order 1815, arrived "
    "broken yesterday. Please send me a new one soon, I am having guests on Friday!"
)
TONES = ("friendly", "formal", "funny")
BAR = 22
"""Characters of the longest bar."""


class Ticket(BaseModel):
    """What a shop needs to know about a message."""

    name: str
    city: str
    order: int
    urgent: bool


@sgl.function
def answer(s: Any, message: str) -> None:
    """Understand a message in two ways, then draft answers in parallel."""
    s += sgl.system("You work for a shop and answer its customers briefly.")
    s += sgl.user(f"A customer writes: {message}\nWhat is it about?")
    s += sgl.assistant("It is " + sgl.select("topic", ["a question", "a complaint", "praise"]))
    s += sgl.user("Extract the facts as JSON.")
    s += sgl.assistant(sgl.gen("ticket", type=Ticket, max_tokens=100))
    drafts = s.fork(len(TONES))
    for seed, (tone, draft) in enumerate(zip(TONES, drafts, strict=True)):
        draft += sgl.user(f"Write a {tone} answer to {s['ticket'].name}, in one sentence.")
        draft += sgl.assistant(
            sgl.gen("draft", max_tokens=40, stop="\n", temperature=0.8, top_p=0.95, seed=seed)
        )
    drafts.join()
    for tone, text in zip(TONES, drafts["draft"], strict=True):
        s.set_var(tone, text)


def run_demo(model_path: str | None) -> None:
    """Fetch the model if need be, run the program twice, print everything."""
    console = Console()
    folder = resolve_model_path(model_path)
    with console.status("Loading the model …"):
        engine = sgl.Engine(folder)
    with engine:
        console.print(Panel(Text(MESSAGE, style="italic"), title="the message", title_align="left"))
        runs = []
        for note in ("Running the program …", "Running it again, with a warm cache …"):
            with console.status(note):
                runs.append(_measure(engine))
        _print_results(console, runs[0][0])
        _print_savings(console, [numbers for _, numbers in runs])


def _measure(engine: Any) -> tuple[Any, dict[str, float]]:
    """Run the program once; its state, and what the engine counted meanwhile."""
    before, start = engine.stats(), time.perf_counter()
    state = answer.run(message=MESSAGE, temperature=0, backend=engine)
    state.sync()
    seconds, after = time.perf_counter() - start, engine.stats()
    names = ("prompt", "cached", "computed", "generation", "forced")
    numbers = {
        name: after[f"{name}_tokens_total"] - before[f"{name}_tokens_total"] for name in names
    }
    return state, {**numbers, "seconds": seconds}


def _print_results(console: Console, state: Any) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 1, 0))
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("topic", "select", Text(state["topic"]))
    table.add_row("ticket", "gen(type=Ticket)", Text(repr(state["ticket"])))
    for tone in TONES:
        table.add_row(tone, "fork + gen", Text(str(state[tone]).strip()))
    console.print(table)


def _print_savings(console: Console, runs: list[dict[str, float]]) -> None:
    """One bar for what a plain engine would compute, one for each run."""
    plain = max(numbers["prompt"] + numbers["generation"] for numbers in runs)
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("", "tokens computed", "", "cached", "forced", "time", "new tok/s"):
        is_text = heading in ("", "tokens computed")
        table.add_column(
            heading, justify="left" if is_text else "right", header_style="dim", no_wrap=True
        )
    table.add_row("without reuse", *_bar(plain, plain, "red"))
    for name, numbers in zip(("first run", "second run"), runs, strict=True):
        speed = numbers["generation"] / numbers["seconds"]
        table.add_row(
            name,
            *_bar(numbers["computed"], plain, "green"),
            f"{numbers['cached']:,.0f}",
            f"{numbers['forced']:,.0f}",
            f"{numbers['seconds']:.2f} s",
            f"{speed:.0f}",
        )
    console.print(table)
    console.print(
        "\nPrompts shared their prefixes in the radix tree; tokens that the schema left no choice "
        "about were never sampled.",
        style="dim",
    )


def _bar(value: float, longest: float, style: str) -> tuple[Text, str]:
    length = max(1, round(BAR * value / max(longest, 1)))
    return Text("█" * length, style=style), f"{value:,.0f}"
