"""Cost of the radix tree's operations as the tree grows: none of them may depend on its size.

python benchmarks/radix_tree.py [--tokens 1000000]
"""

from __future__ import annotations

import argparse
import random
import time
from array import array
from collections.abc import Callable

import numpy as np

from sglang_lite.runtime.kv_pool import KVPool
from sglang_lite.runtime.radix_tree import RadixTree


def microseconds(action: Callable[[], object], times: int = 200) -> float:
    """Fastest of several runs of ``times`` calls, per call."""
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(times):
            action()
        best = min(best, (time.perf_counter() - started) / times)
    return 1e6 * best


def main() -> None:
    """Fill a tree with conversations that share prompts, and measure on the way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1_000_000)
    arguments = parser.parse_args()
    draw = random.Random(0)
    tree, pool = RadixTree(), KVPool(arguments.tokens + 10_000)
    systems = [array("i", (draw.randrange(50_000) for _ in range(500))) for _ in range(20)]
    known: list[array[int]] = []
    print(f"{'tokens':>9}{'nodes':>8}  match 1k    miss    insert 1k  lock    evict 1k  (µs)")
    sizes = [10_000, 100_000, arguments.tokens]
    while sizes:
        while tree.evictable < sizes[0]:
            tokens = draw.choice(systems) + array("i", (draw.randrange(50_000) for _ in range(524)))
            slots = pool.allocate(len(tokens))
            assert slots is not None
            own = slots.copy()
            _, present = tree.insert(tokens, slots, 800)
            pool.release(own[:present])
            known.append(tokens)
        report(tree, pool, known, draw)
        sizes.pop(0)


def report(tree: RadixTree, pool: KVPool, known: list[array[int]], draw: random.Random) -> None:
    """One line of the table."""
    target, unknown = draw.choice(known), array("i", [99_999] * 1024)
    node = tree.match(target, len(target)).node
    fresh = iter(range(100_000, 10**9))

    def insert() -> None:
        tree.insert(array("i", [next(fresh)]) + target, np.arange(1025), 1025)

    def evict() -> None:
        tree.evict(1000)

    def lock() -> None:
        tree.lock(node)
        tree.unlock(node)

    matched = microseconds(lambda: tree.match(target, len(target)))
    missed = microseconds(lambda: tree.match(unknown, 1024))
    locked = microseconds(lock)
    count, tokens = sum(1 for _ in tree.nodes()), tree.evictable
    tree.lock(node)
    inserted = microseconds(insert, 50)
    # What was just inserted is evicted again, so that the tree keeps its size.
    evicted = microseconds(evict, 40)
    tree.unlock(node)
    line = f"{matched:>10.1f}{missed:>8.1f}{inserted:>13.1f}{locked:>6.1f}{evicted:>12.1f}"
    print(f"{tokens:>9,}{count:>8}{line}")


if __name__ == "__main__":
    main()
