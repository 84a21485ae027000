"""What ten thousand waiting requests cost a step of the engine.

    python -m benchmarks.waiting [--requests 10000]

One request runs on a model double that costs nothing, and no other fits beside it: the head of the
queue is looked at in every step, and in vain.  CPU time of whole steps, medians.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from sglang_lite.runtime.policy import POLICIES
from tests.runtime.bench import Bench


def step_milliseconds(policy: str, waiting: int, steps: int = 60) -> float:
    """The median step beside a queue of so many requests."""
    bench = Bench(
        slots=4000,
        context_length=4000,
        schedule_policy=policy,
        max_running_requests=2,
        max_queued_requests=waiting + 2,
    )
    bench.submit([1, 2, 3], 3000, exact=True)
    bench.core.step()
    for i in range(waiting):
        bench.submit([i % 90, 1, 2, 3], 3900, exact=True)
    times = []
    for _ in range(steps):
        started = time.thread_time()
        bench.core.step()
        times.append(time.thread_time() - started)
    return 1000 * statistics.median(times)


def main() -> None:
    """Print one line for each policy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    waiting = parser.parse_args().requests
    torch.set_num_threads(1)
    for policy in POLICIES:
        alone, beside = step_milliseconds(policy, 0), step_milliseconds(policy, waiting)
        print(f"{policy:10} {alone:.2f} ms, with {waiting:,} waiting {beside:.2f} ms")


if __name__ == "__main__":
    main()
