"""Time of a token beside other programs: alone, beside a busy loop, beside a second engine.

python benchmarks/contention.py                       # with the package's settings
GOMP_SPINCOUNT=300000 python benchmarks/contention.py # with libgomp's own
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

TOKENS = 32
PARAMS = {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
BUSY = [sys.executable, "-c", "while True: pass"]
ENGINE = [sys.executable, __file__, "--endless"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=6.0, help="for each case")
    parser.add_argument("--endless", action="store_true", help="generate until killed")
    options = parser.parse_args()
    if options.endless:
        measure(float("inf"))
    for name, beside in [("alone", None), ("a busy loop", BUSY), ("a second engine", ENGINE)]:
        print(f"{name:<18}{measured_beside(beside, options.seconds):8.1f} ms a token", flush=True)


def measured_beside(command: Sequence[str] | None, seconds: float) -> float:
    """Median milliseconds of a token while another program runs."""
    other = subprocess.Popen(command) if command else None
    try:
        return measure(seconds)
    finally:
        if other is not None:
            other.kill()
            other.wait()


def measure(seconds: float) -> float:
    """Median milliseconds of a token, the loading of the model not included."""
    import sglang_lite as sgl

    with sgl.Engine() as engine:
        engine.generate("The capital of France is", PARAMS)
        times = []
        end = time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            engine.generate("The capital of France is", PARAMS)
            times.append((time.perf_counter() - start) / TOKENS * 1e3)
    return statistics.median(times)


if __name__ == "__main__":
    print("GOMP_SPINCOUNT:", os.environ.get("GOMP_SPINCOUNT", "the package's"))
    main()
