"""What shared prefixes save, on the default model: forks, chat turns, and a prefix on the host.

python benchmarks/prefix.py [--runs 5] [--threads 2]

* fork(8): eight branches over a new prefix of 1,024 tokens, against one prefill of it plus the
  branches over the cached prefix.
* third turn: the last of three chat turns with and without what the first two left in the tree.
* swap: a prefix of 1,024 tokens that was evicted, copied back from the host against computed again.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

import torch

from sglang_lite.runtime.engine import Engine

PREFIX, BRANCHES, TOKENS = 1024, 8, 16
GREEDY = {"temperature": 0, "ignore_eos": True}


class Prompts:
    """Random tokens: no two prompts share a prefix."""

    def __init__(self) -> None:
        self._draw = random.Random(0)

    def new(self, length: int) -> list[int]:
        """A prompt that nobody has seen."""
        return [self._draw.randrange(1000, 40_000) for _ in range(length)]


def timed(action: Callable[[], object]) -> float:
    """Milliseconds that it takes."""
    started = time.perf_counter()
    action()
    return 1e3 * (time.perf_counter() - started)


def generate(engine: Engine, prompts: list[list[int]], count: int) -> Callable[[], object]:
    """A batch of requests, to be timed."""
    params = {**GREEDY, "max_new_tokens": count}
    return lambda: engine.generate(input_ids=prompts, sampling_params=params)


def forks(engine: Engine, prompts: Prompts) -> dict[str, float]:
    """Eight branches, cold, against a prefill and eight branches over it."""
    endings = [prompts.new(8) for _ in range(BRANCHES)]
    cold, warm = prompts.new(PREFIX), prompts.new(PREFIX)
    together = timed(generate(engine, [cold + ending for ending in endings], TOKENS))
    prefill = timed(generate(engine, [warm], 1))
    branches = timed(generate(engine, [warm + ending for ending in endings], TOKENS))
    return {"fork(8), ms": together, "one prefill, ms": prefill, "8 branches, ms": branches,
            "fork / (prefill + branches)": together / (prefill + branches)}  # fmt: skip


def third_turn(engine: Engine, prompts: Prompts) -> dict[str, float]:
    """Time to the third turn's first token, after the first two and without them."""
    turns = [prompts.new(400), prompts.new(60), prompts.new(60)]
    history: list[int] = []
    for turn in turns[:2]:
        history += turn
        history += generate(engine, [history], 40)()[0]["output_ids"]  # type: ignore[index]
    last = history + turns[2]
    before = engine.stats()["computed_tokens_total"]
    cached = timed(generate(engine, [last], 1))
    computed = engine.stats()["computed_tokens_total"] - before
    engine.flush_cache()
    cold = timed(generate(engine, [last], 1))
    return {"third turn, ms": cached, "without the first two, ms": cold,
            "tokens computed": computed, "new tokens": len(turns[2])}  # fmt: skip


def swap(engine: Engine, prompts: Prompts) -> dict[str, float]:
    """A prefix comes back from host memory; another prefix of its length is computed."""
    evicted, fresh = prompts.new(PREFIX), prompts.new(PREFIX)
    generate(engine, [evicted], 1)()
    for _ in range(3):
        generate(engine, [prompts.new(900)], 1)()
    computed = timed(generate(engine, [fresh], 1))
    before = engine.stats()["host_cached_tokens_total"]
    swapped = timed(generate(engine, [evicted], 1))
    assert engine.stats()["host_cached_tokens_total"] - before == PREFIX - 1
    return {"1k from the host, ms": swapped, "1k computed, ms": computed,
            "host / computed": swapped / computed}  # fmt: skip


def report(
    engine: Engine, measure: Callable[[Engine, Prompts], dict[str, float]], runs: int
) -> None:
    """Median of several runs, after one to warm up."""
    prompts = Prompts()
    results = [measure(engine, prompts) for _ in range(runs + 1)][1:]
    for name in results[0]:
        print(f"| {name} | {statistics.median(result[name] for result in results):.2f} |")


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print("| median | |\n|---|---|")
    with Engine(max_total_tokens=8192) as engine:
        report(engine, forks, arguments.runs)
        report(engine, third_turn, arguments.runs)
    options = {"enable_hierarchical_cache": True, "hicache_ratio": 4.0}
    with Engine(max_total_tokens=2048, **options) as engine:
        report(engine, swap, arguments.runs)
        for name in ("swap_seconds_per_token", "prefill_seconds_per_token"):
            print(f"| {name.replace('_', ' ')}, µs | {1e6 * engine.stats()[name]:.1f} |")


if __name__ == "__main__":
    main()
