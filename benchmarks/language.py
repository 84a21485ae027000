"""What the language itself costs.

    python benchmarks/language.py nodes            # the interpreter's cost per node, no model
    python benchmarks/language.py batch --rows 1000   # run_batch against the same calls by hand
    python benchmarks/language.py layout           # whitespace in JSON: time and right answers
    python benchmarks/language.py ends             # how long values get, by how they may end

``batch`` runs ROWS x 3 gens through ``run_batch`` and straight on the engine (prompts as token
ids, the same texts, the same number in flight) in turns, so that a noisy machine is noisy for both;
the processor's time is the steadier clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time

from pydantic import BaseModel, Field

import sglang_lite as sgl

GENS = 3


def nodes(count: int) -> None:
    """Time programs of ``count`` nodes on the mock backend."""
    mock = sgl.Mock("answer")

    @sgl.function
    def literals(s):
        for _ in range(count):
            s += "literal "

    @sgl.function
    def gens(s):
        for _ in range(count):
            s += sgl.gen("x")

    @sgl.function
    def pairs(s):
        for _ in range(count // 2):
            s += "literal " + sgl.gen("x")
            s["x"]

    @sgl.function
    def forks(s):
        group = s.fork(count)
        group += sgl.gen("x")
        group.join()

    for name, program in [
        ("literal", literals),
        ("gen, run ahead", gens),
        ("literal + gen, read each time", pairs),
        ("fork with a gen, joined", forks),
    ]:
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            program.run(backend=mock)
            times.append(time.perf_counter() - begin)
        print(f"{name:32} {statistics.median(times) / count * 1e6:8.1f} us per node")


@sgl.function
def three_gens(s, number):
    """Three gens, each after the answer of the last."""
    s += f"Item {number}:"
    for i in range(GENS):
        s += sgl.gen(f"x{i}") + f"\nNext {i}:"


async def by_hand(engine: sgl.Engine, rows: range, tokens: int, limit: int) -> int:
    """The same requests straight on the engine; returns the number of generated tokens."""
    from sglang_lite.runtime.messages import GenerateRequest

    params = sgl.SamplingParams(max_new_tokens=tokens, temperature=0, ignore_eos=True)
    gate = asyncio.Semaphore(limit)
    total = 0

    async def row(number: int) -> None:
        nonlocal total
        async with gate:
            ids = engine.tokenizer.encode(f"Item {number}:")
            for i in range(GENS):
                stream = await engine.asubmit(GenerateRequest(tuple(ids), params))
                async for output in stream:
                    ids += output.token_ids
                    total += len(output.token_ids)
                ids += engine.tokenizer.encode(f"\nNext {i}:")

    await asyncio.gather(*(row(number) for number in rows))
    return total


def by_batch(engine: sgl.Engine, rows: range, tokens: int, limit: int) -> int:
    """The rows through ``run_batch``; returns the number of generated tokens."""
    states = three_gens.run_batch(
        ((number,) for number in rows),
        backend=engine,
        temperature=0,
        max_new_tokens=tokens,
        ignore_eos=True,
        max_concurrency=limit,
    )
    return sum(state.total_usage().completion_tokens for state in states)


def batch(args: argparse.Namespace) -> None:
    """Alternate between both ways, piece by piece, and compare the sums of each round."""
    rounds = []
    with sgl.Engine(args.model) as engine:
        ways = {
            "engine": lambda rows: asyncio.run(by_hand(engine, rows, args.tokens, args.limit)),
            "run_batch": lambda rows: by_batch(engine, rows, args.tokens, args.limit),
        }
        for way in ways.values():
            way(range(args.limit))  # the first steps set things up
        for _ in range(args.rounds):
            spent = {name: [0.0, 0.0] for name in ways}
            for start in range(0, args.rows, args.piece):
                piece = range(start, min(start + args.piece, args.rows))
                counts = set()
                # Who begins changes, so that what the machine does slowly cancels out.
                order = list(ways)[:: -1 if start // args.piece % 2 else 1]
                for name in order:
                    engine.flush_cache()
                    begin = _clocks()
                    counts.add(ways[name](piece))
                    spent[name] = [a + b for a, b in zip(spent[name], _since(begin), strict=True)]
                assert len(counts) == 1, counts
            rounds.append(spent)
    print(
        f"{args.rows} rows x {GENS} gens x {args.tokens} tokens, {args.limit} in flight, in turns "
        f"of {args.piece} rows, {args.rounds} rounds"
    )
    for number, clock in enumerate(("wall", "processor")):
        changes = [spent["run_batch"][number] / spent["engine"][number] - 1 for spent in rounds]
        straight, through = (
            statistics.median(spent[name][number] for spent in rounds) for name in ways
        )
        print(
            f"{clock:10} engine {straight:8.2f} s   run_batch {through:8.2f} s   "
            f"{statistics.median(changes):+.1%} ({', '.join(f'{each:+.1%}' for each in changes)})"
        )


class Person(BaseModel):
    """What is asked of each text."""

    name: str = Field(max_length=40)
    age: int = Field(ge=0, le=150)
    city: str = Field(max_length=40)
    likes: list[str] = Field(max_length=3)


NAMES = ["Ada Lovelace", "Bo", "王伟", "Zoë Ñandú", "Grace Hopper", "Иван Петров"]
CITIES = ["London", "New York", "北京", "Zürich", "Łódź"]
LIKES = [["tea"], ["chess", "running"], ["old maps", "rain", "jazz"]]
PEOPLE = [
    Person(name=NAMES[i % 6], age=20 + i, city=CITIES[i % 5], likes=LIKES[i % 3]) for i in range(30)
]

LAYOUTS: dict[str, dict[str, object]] = {
    "up to 16 blanks in a gap": {"max_whitespace": 16},
    "up to 1 blank in a gap": {"max_whitespace": 1},
    "compact": {"max_whitespace": 0},
    'fixed ", " and ": "': {"separators": (", ", ": ")},
}


@sgl.function
def extract(s: sgl.ProgramState, person: Person) -> None:
    """Ask for a record whose fields are known."""
    likes = " and ".join(person.likes)
    text = f"{person.name} is {person.age} years old, lives in {person.city} and likes {likes}."
    s += sgl.user(f"Extract name, age, city and likes as JSON.\n\nText: {text}")
    s += sgl.assistant(sgl.gen("person", max_tokens=200))


def layout(model: str | None) -> None:
    """Extraction under each layout: how much is sampled, how long it takes, what is right."""
    fields = list(Person.model_fields)
    with sgl.Engine(model) as engine:
        print("layout                    complete  right fields  sampled  tokens  seconds")
        for name, options in LAYOUTS.items():
            constraint = sgl.JsonSchema.of(Person, max_digits=18, **options)
            sampling = sgl.SamplingParams(temperature=0, constraint=constraint)
            engine.flush_cache()
            extract.run(PEOPLE[0], backend=engine, sampling=sampling)  # compiled once
            begin = time.perf_counter()
            states = [extract.run(p, backend=engine, sampling=sampling) for p in PEOPLE]
            seconds = time.perf_counter() - begin
            complete = [state.finish_reason("person") == "stop" for state in states]
            right = sum(
                _field(state["person"], field) == getattr(person, field)
                for person, state in zip(PEOPLE, states, strict=True)
                for field in fields
            )
            usages = [state.usage("person") for state in states]
            tokens = sum(usage.completion_tokens for usage in usages)
            sampled = sum(usage.sampled_tokens for usage in usages)
            print(
                f"{name:25} {sum(complete):3} of {len(PEOPLE)}  {right:4} of "
                f"{len(PEOPLE) * len(fields)}  {sampled / tokens:7.0%}  {tokens:6}  {seconds:7.1f}"
            )


@sgl.function
def values(s: sgl.ProgramState, a: int, b: int) -> None:
    """Values in the middle of a text, as programs ask for them."""
    with s.copy() as c:
        c += f"Q: What is {a}+{b}? A: " + sgl.gen_int("sum")
    with s.copy() as c:
        c += f"The book has {a * b} pages and was published in 19"
        c += sgl.gen("year", regex="[0-9]+")
    with s.copy() as c:
        c += f'Item {a}{b}: the capital of France is "'
        c += sgl.gen("quoted", regex=r'[^"\n]*')
    with s.copy() as c:
        c += f"Pi is about 3.14159. {a}.5 plus {b}.25 is " + sgl.gen("float", dtype=float)


def ends(model: str | None, prompts: int) -> None:
    """The lengths of values that end at EOS only, and those of the same values by default."""
    rows = [(3 + i // 5, 4 + i % 5) for i in range(prompts)]
    with sgl.Engine(model) as engine:
        found = [
            values.run_batch(rows, backend=engine, temperature=0, stop_outside=outside)
            for outside in (False, None)
        ]
    print(f"{prompts} prompts; characters: median (most)")
    for name in ("sum", "year", "quoted", "float"):
        told = []
        for states in found:
            lengths = [len(state[name]) for state in states]
            told.append(f"{statistics.median(lengths):g} ({max(lengths)})")
        print(f"{name:8} EOS only {told[0]:12} default {told[1]}")


def _field(text: str, name: str) -> object:
    try:
        return json.loads(text)[name]
    except (ValueError, KeyError):
        return None


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(begin: tuple[float, float]) -> tuple[float, float]:
    wall, processor = _clocks()
    return wall - begin[0], processor - begin[1]


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["nodes", "batch", "layout", "ends"])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--piece", type=int, default=200, help="rows that are run one way in a row")
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", help="a model's folder; the default model if left out")
    args = parser.parse_args()
    if args.what == "nodes":
        nodes(args.count)
    elif args.what == "layout":
        layout(args.model)
    elif args.what == "ends":
        ends(args.model, args.prompts)
    else:
        batch(args)


if __name__ == "__main__":
    main()
