"""What adversarial constraints cost: those of the tests, and long ones.

    python -m benchmarks.bombs

Each is compiled in turn in this process: processor time, the most memory that it took above what
was there before, and the outcome.  Memory is read from /proc, so this needs Linux.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path

from sglang_lite.constrained import GrammarCompiler, Vocabulary
from sglang_lite.constraint import Constraint
from sglang_lite.errors import GrammarTooComplex
from tests.constrained.bombs import COMPILED, LARGE, REFUSED


def memory(field: str) -> float:
    """VmRSS or VmHWM (the largest so far) in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) / 1000
    raise OSError(f"/proc/self/status has no {field}")


def measure(constraint: Constraint) -> tuple[float, float, str]:
    """(seconds, MB, outcome) of one compilation by a compiler with nothing in its cache."""
    gc.collect()
    compiler = GrammarCompiler(VOCABULARY)
    Path("/proc/self/clear_refs").write_text("5")  # forget the largest so far
    before = memory("VmRSS")
    started = time.thread_time()
    try:
        compiler.compile(constraint)
        outcome = "compiled"
    except GrammarTooComplex as error:
        outcome = f"refused: {error}"
    return time.thread_time() - started, memory("VmHWM") - before, outcome


VOCABULARY = Vocabulary([bytes((byte,)) for byte in range(256)] + [b""], eos_token_ids=[256])


def main() -> None:
    refused = {name: constraint for name, (constraint, _) in REFUSED.items()}
    print("| constraint | seconds | MB | outcome |\n|---|---|---|---|")
    for name, constraint in [*COMPILED.items(), *LARGE.items(), *refused.items()]:
        seconds, size, outcome = measure(constraint)
        print(f"| {name} | {seconds:.2f} | {size:.0f} | {outcome} |", flush=True)


if __name__ == "__main__":
    main()
