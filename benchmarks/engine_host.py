"""What the engine costs beside the model: scheduling, batch, sampling, text, grammar masks.

    python benchmarks/engine_host.py [--model PATH] [--threads 2] [--steps 40]

Runs decode steps of the default model with 1, 8 and 32 rows and measures the time inside
``model.forward`` and ``model.logits`` against that of whole steps.  The host's part is taken as
CPU time of the engine's thread, so that other load on the machine doesn't count.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

from sglang_lite.constraint import Constraint, JsonSchema
from sglang_lite.runtime.engine import Engine
from sglang_lite.runtime.messages import GenerateRequest
from sglang_lite.sampling_params import SamplingParams

SCHEMA = JsonSchema(
    '{"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}, '
    '"age": {"type": "integer"}}, "required": ["name", "age"]}, "minItems": 200}'
)
KINDS: dict[str, tuple[dict[str, Any], Constraint | None]] = {
    "greedy": ({"temperature": 0.0}, None),
    "temperature": ({"temperature": 1.0}, None),
    "top-p, penalties": ({"temperature": 0.8, "top_p": 0.9, "frequency_penalty": 0.5}, None),
    "JSON Schema": ({"temperature": 0.0}, SCHEMA),
}


class Timer:
    """Wraps a function and adds up the wall and CPU time spent in it."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.wall = self.cpu = 0.0

    def __call__(self, argument: Any) -> Any:
        wall, cpu = time.perf_counter(), time.thread_time()
        result = self.function(argument)
        self.wall += time.perf_counter() - wall
        self.cpu += time.thread_time() - cpu
        return result


def measure(engine: Engine, rows: int, kind: str, steps: int) -> tuple[float, float]:
    """Medians of (model milliseconds, host milliseconds) per step."""
    fields, constraint = KINDS[kind]
    core = engine._loop.core
    forward, logits = Timer(core.model.forward), Timer(core.model.logits)
    core.model.forward, core.model.logits = forward, logits  # type: ignore[method-assign]
    params = SamplingParams(
        max_new_tokens=steps + 40, ignore_eos=constraint is None, constraint=constraint, **fields
    )
    prompt = engine.tokenizer.encode("A list of people and their ages, one after another. " * 16)
    original, samples = core.step, []

    def step() -> None:
        wall = time.perf_counter()
        cpu, inside, before = time.thread_time(), forward.cpu + logits.cpu, forward.wall + logits.wall
        original()
        host = time.thread_time() - cpu - (forward.cpu + logits.cpu - inside)
        if len(core.scheduler.running) == rows and time.perf_counter() > wall:
            samples.append((forward.wall + logits.wall - before, host))

    core.step = step  # type: ignore[method-assign]
    try:
        streams = [
            engine.submit(GenerateRequest((*prompt[: -1 - i % 8], 5 + i), params)) for i in range(rows)
        ]
        for stream in streams:
            for _ in stream:
                pass
    finally:
        core.step = original  # type: ignore[method-assign]
        core.model.forward, core.model.logits = forward.function, logits.function  # type: ignore[method-assign]
    samples = samples[len(samples) // 4 :]
    model, host = zip(*samples, strict=True)
    return 1000 * statistics.median(model), 1000 * statistics.median(host)


def main() -> None:
    """Print one line for each number of rows and kind of request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=None, help="model folder (default: the default model)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--dtype", default="auto")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with Engine(arguments.model, dtype=arguments.dtype, max_total_tokens=16384) as engine:
        print(f"{'rows':>4}  {'kind':18}{'model ms':>9}{'host ms':>9}{'host share':>12}")
        for kind in KINDS:
            for rows in (1, 8, 32):
                model, host = measure(engine, rows, kind, arguments.steps)
                share = host / (model + host)
                print(f"{rows:>4}  {kind:18}{model:>9.2f}{host:>9.3f}{share:>11.1%}", flush=True)


if __name__ == "__main__":
    main()
