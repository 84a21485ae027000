"""What the engine costs beside the model: scheduling, batch, sampling, text, grammar masks.

    python benchmarks/engine_host.py [--model PATH] [--threads 2] [--steps 64]

Runs decode steps of the default model with 1, 8 and 32 rows and measures the time inside
``model.forward`` and ``model.logits`` against that of whole steps.  The host's part is taken as
CPU time of the engine's thread, so that other load on the machine doesn't count.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
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
    "JSON, temperature": ({"temperature": 1.0}, SCHEMA),
}


class Meter:
    """Measures the steps of an engine that compute exactly ``rows`` rows.

    ``samples`` has (wall seconds in the model, the host's CPU seconds) of each.
    """

    def __init__(self, engine: Engine, rows: int) -> None:
        self.core, self.rows = engine._loop.core, rows
        self.samples: list[tuple[float, float]] = []
        self.wall = self.cpu = 0.0

    def __enter__(self) -> Meter:
        core, model = self.core, self.core.model
        self.original = core.step, model.forward, model.logits
        core.step, model.forward, model.logits = (  # type: ignore[method-assign]
            self._step,
            self._timed(model.forward),
            self._timed(model.logits),
        )
        return self

    def __exit__(self, *exc_info: object) -> None:
        core, model = self.core, self.core.model
        core.step, model.forward, model.logits = self.original  # type: ignore[method-assign]

    def _step(self) -> None:
        self.wall = self.cpu = 0.0
        started = time.thread_time()
        self.original[0]()
        host = time.thread_time() - started - self.cpu
        if len(self.core.scheduler.running) == self.rows:
            self.samples.append((self.wall, host))

    def _timed(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def timed(argument: Any) -> Any:
            wall, cpu = time.perf_counter(), time.thread_time()
            result = function(argument)
            self.wall += time.perf_counter() - wall
            self.cpu += time.thread_time() - cpu
            return result

        return timed


def measure(engine: Engine, rows: int, kind: str, steps: int) -> tuple[float, float]:
    """Medians of (model milliseconds, host milliseconds) per decode step."""
    fields, constraint = KINDS[kind]
    params = SamplingParams(
        max_new_tokens=steps, ignore_eos=constraint is None, constraint=constraint, **fields
    )
    text = "A list of people and their ages, one after another. " * 16
    prompt = tuple(engine.tokenizer.encode(text))
    prompts = [(*prompt[: -1 - i % 8], 5 + i) for i in range(rows)]
    with Meter(engine, rows) as meter:
        for stream in [engine.submit(GenerateRequest(ids, params)) for ids in prompts]:
            for _ in stream:
                pass
    # The first steps compute prompts.
    model, host = zip(*meter.samples[len(meter.samples) // 4 :], strict=True)
    return 1000 * statistics.median(model), 1000 * statistics.median(host)


def main() -> None:
    """Print one line for each number of rows and kind of request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=None, help="model folder (default: the default model)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=64)
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
