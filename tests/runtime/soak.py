"""Thousands of requests of random shape on the toy model, with aborts and preemptions.

    python -m tests.runtime.soak [--requests 10000] [--seed 0]

Checks every greedy text against the model alone, the invariants at random points and at the end,
and that memory stays flat: within each of the rounds, and from the first round to the last.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import resource
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch

from sglang_lite.errors import EngineError
from sglang_lite.outputs import RequestOutput
from sglang_lite.runtime.engine import Engine
from sglang_lite.runtime.messages import GenerateRequest
from sglang_lite.sampling_params import SamplingParams
from tests.runtime.bench import Always
from tests.runtime.toy import expected_greedy, toy_engine

PATTERNS = ("[0-9]{2,8}", '\\{"a": (true|false), "b": "[a-f]*"\\}', "(yes|no|maybe)", "é+🎉?")


ROUNDS: tuple[dict[str, Any], ...] = (
    {"schedule_policy": "fcfs"},
    {"schedule_policy": "lpm", "enable_hierarchical_cache": True, "hicache_ratio": 3.0},
    {"schedule_policy": "lpm", "disable_overlap_schedule": False},
    {
        "schedule_policy": "dfs-weight",
        "disable_overlap_schedule": False,
        "enable_hierarchical_cache": True,
    },
)


class Soak:
    """A number of clients that send requests one after another."""

    def __init__(self, engine: Engine, requests: int, seed: int) -> None:
        self.engine = engine
        self.left = requests
        self.random = random.Random(seed)
        self.prefixes = [self.tokens(self.random.randrange(1, 150)) for _ in range(12)]
        self.counts = {"finished": 0, "aborted": 0, "greedy": 0, "constrained": 0, "checks": 0}

    def tokens(self, count: int) -> list[int]:
        return [self.random.randrange(94) for _ in range(count)]

    def request(self) -> GenerateRequest:
        draw = self.random
        prompt = draw.choice(self.prefixes)[: draw.randrange(1, 151)]
        prompt = [*prompt, *self.tokens(draw.choice((0, 1, 3, 40)))]
        kind = draw.random()
        fields: dict = {"max_new_tokens": draw.choice((0, 1, 5, 20, 80))}
        if kind < 0.4:
            fields["temperature"] = 0.0
        elif kind < 0.6:
            fields |= {"regex": draw.choice(PATTERNS), "temperature": draw.choice((0.0, 1.0))}
        elif kind < 0.8:
            fields |= {"temperature": 1.5, "top_p": 0.9, "n": draw.choice((1, 1, 3))}
        else:
            fields |= {"stop": ["a", "the"], "frequency_penalty": 0.5, "stop_regex": "[0-9]{3}"}
        logprobs = draw.random() < 0.15
        return GenerateRequest(
            tuple(prompt),
            SamplingParams.from_dict(fields),
            return_logprob=logprobs,
            logprob_start_len=draw.randrange(len(prompt)) if logprobs else -1,
            top_logprobs_num=draw.choice((0, 2)) if logprobs else 0,
            priority=draw.choice((0, 0, 0, 1)),
            cache_salt=draw.choice(("", "", "tenant")),
        )

    async def client(self) -> None:
        while self.left > 0:
            self.left -= 1
            request = self.request()
            stream = await self.engine.asubmit(request)
            abort_after = self.random.randrange(12) if self.random.random() < 0.2 else None
            outputs: list[RequestOutput] = []
            async for output in stream:
                outputs.append(output)
                if abort_after is not None and len(outputs) > abort_after:
                    stream.abort()
            self.verify(request, outputs)
            if self.random.random() < 0.01:
                await asyncio.to_thread(self.engine.check)
                self.counts["checks"] += 1

    def verify(self, request: GenerateRequest, outputs: list[RequestOutput]) -> None:
        params = request.sampling_params
        last = {output.index: output for output in outputs}
        assert len(last) == params.n
        for index, final in last.items():
            mine = [output for output in outputs if output.index == index]
            text = "".join(output.text for output in mine)
            tokens = [token for output in mine for token in output.token_ids]
            reason = final.finish_reason
            assert reason is not None
            assert final.usage.completion_tokens == len(tokens)
            self.counts["finished"] += 1
            if reason.type == "abort":
                self.counts["aborted"] += 1
            elif params.constraint is not None:
                self.counts["constrained"] += 1
                pattern = params.constraint.pattern  # type: ignore[union-attr]
                assert reason.type == "length" or re.fullmatch(pattern, text), (pattern, text)
            elif params.temperature == 0.0:
                self.counts["greedy"] += 1
                alone = expected_greedy(list(request.input_ids), params.max_new_tokens or 0)
                assert tokens == alone[: len(tokens)]
                assert len(tokens) == len(alone)
            elif params.stop:
                assert "a" not in text
                assert "the" not in text
            if request.return_logprob and reason.type != "abort":
                assert len(tokens) == sum(len(o.logprobs.tokens) for o in mine if o.logprobs)


def memory_bytes() -> int:
    """Resident memory now."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def run(engine: Engine, requests: int, seed: int, clients: int) -> None:
    soak = Soak(engine, requests, seed)
    started, memory_before = time.perf_counter(), 0
    tasks = [asyncio.create_task(soak.client()) for _ in range(clients)]
    while not all(task.done() for task in tasks):
        await asyncio.wait(tasks, timeout=2.0, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
        if not memory_before and soak.left < requests * 0.7:
            memory_before = memory_bytes()
    engine.check()
    assert engine.flush_cache()
    stats = engine.stats()
    assert stats["kv_available_tokens"] == stats["max_total_num_tokens"], "slots are lost"
    memory = memory_bytes()
    seconds = time.perf_counter() - started
    swapped = (
        f", {stats['host_cached_tokens_total']} swapped in"
        if engine.config.enable_hierarchical_cache
        else ""
    )
    print(
        f"  {requests} requests in {seconds:.0f} s: {soak.counts}, "
        f"{stats['num_retracted_reqs']} preemptions, {stats['evicted_tokens_total']} evicted"
        f"{swapped}, hit rate {stats['cache_hit_rate']:.0%}, "
        f"resident {memory_before / 1e6:.1f} -> {memory / 1e6:.1f} MB",
        flush=True,
    )
    assert memory - memory_before < 20e6, "memory grows"


def main() -> None:
    """Run the soak with a pool so small that requests preempt each other all the time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    after = []
    for options in ROUNDS:
        print(options)
        with toy_engine(330, 300, chunked_prefill_size=64, **options) as engine:
            # Its list of all rows would grow.
            engine.toy.computed = deque(maxlen=1)
            if (host := engine._loop.core.scheduler.host) is not None:
                # The toy computes faster than memory is copied.
                host.cost = Always()
            count = arguments.requests // len(ROUNDS)
            work = run(engine, count, arguments.seed, arguments.clients)
            try:
                asyncio.run(work)
            except EngineError:
                engine.check()
                raise
        after.append(memory_bytes())
    print("resident after each round:", ", ".join(f"{size / 1e6:.1f} MB" for size in after))
    assert after[-1] - after[0] < 20e6, "memory grows from round to round"


if __name__ == "__main__":
    main()
