"""What the language itself costs.

    python benchmarks/language.py nodes            # the interpreter's cost per node, no model
    python benchmarks/language.py batch --rows 1000   # run_batch against the same calls by hand

``batch`` runs ROWS x 3 gens through ``run_batch`` and straight on the engine (prompts as token
ids, the same texts, the same number in flight) in turns, so that a noisy machine is noisy for both;
the processor's time is the steadier clock.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

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


async def by_hand(engine: sgl.Engine, rows: int, tokens: int, limit: int) -> int:
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

    await asyncio.gather(*(row(number) for number in range(rows)))
    return total


def batch(rows: int, tokens: int, limit: int, rounds: int, model: str | None) -> None:
    """Alternate between both ways and compare the medians."""
    with sgl.Engine(model) as engine:
        times: dict[str, list[tuple[float, float]]] = {"engine": [], "run_batch": []}
        for _ in range(rounds):
            engine.flush_cache()
            begin = _clocks()
            expected = asyncio.run(by_hand(engine, rows, tokens, limit))
            times["engine"].append(_since(begin))
            engine.flush_cache()
            begin = _clocks()
            states = three_gens.run_batch(
                ((number,) for number in range(rows)),
                backend=engine,
                temperature=0,
                max_new_tokens=tokens,
                ignore_eos=True,
                max_concurrency=limit,
            )
            times["run_batch"].append(_since(begin))
            generated = sum(state.total_usage().completion_tokens for state in states)
            assert generated == expected, (generated, expected)
        print(f"{rows} rows x {GENS} gens x {tokens} tokens, {limit} in flight, {rounds} rounds")
        for number, clock in enumerate(("wall", "processor")):
            straight, through = (
                statistics.median(pair[number] for pair in times[name])
                for name in ("engine", "run_batch")
            )
            change = through / straight - 1
            print(
                f"{clock:10} engine {straight:8.2f} s   run_batch {through:8.2f} s  {change:+.1%}"
            )


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
    parser.add_argument("what", choices=["nodes", "batch"])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", help="a model's folder; the default model if left out")
    args = parser.parse_args()
    if args.what == "nodes":
        nodes(args.count)
    else:
        batch(args.rows, args.tokens, args.limit, args.rounds, args.model)


if __name__ == "__main__":
    main()
