"""Hours in minutes: mixed load with clients that leave, against the engine behind its server.

python benchmarks/soak.py --minutes 10
OMP_NUM_THREADS=1 python benchmarks/soak.py --minutes 10    # on a machine with other work

Two OpenMP threads wait for each other at every operator: beside busy processes they were ten times
slower than one.  That hides leaks, because fewer requests run.

Ends with 1 if a slot leaked, an invariant broke, a request got a 5xx or memory kept growing.  Of
memory, the pool's pages that have been written and the compiled constraints are counted apart: both
fill up to a bound.  The rest must not grow by more than ``--tolerance`` from the middle to the end.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import httpx
from resident import Memory, growth

from sglang_lite.runtime.engine import Engine
from sglang_lite.runtime.server.config import ServerConfig
from sglang_lite.runtime.server.ports import bind
from sglang_lite.runtime.server.serve import ServerProcess

WORDS = ("river", "stone", "light", "seven", "north", "glass", "paper", "winter")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["a", "b"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}


def make_request(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """Some request, of which a few are wrong."""
    text = " ".join(chance.choices(WORDS, k=chance.randint(1, 60)))
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"{chance.choice(WORDS)} {text}"}],
        "max_tokens": chance.randint(1, 40),
        "temperature": chance.choice([0, 0.7, 1.5]),
        "n": chance.choice([1, 1, 1, 2, 4]),
        "stream": chance.random() < 0.6,
    }
    extra = chance.choice(
        [
            {},
            {"json_schema": SCHEMA},
            {"regex": f"[a-z]{{{chance.randint(1, 20)}}}"},
            {"guided_choice": chance.sample(WORDS, 3)},
            {"logprobs": True, "top_logprobs": 2},
            {"tools": [{"type": "function", "function": {"name": chance.choice(WORDS)}}]},
            {"stop": [chance.choice(WORDS)[:2]]},
            {"regex": "["},
            {"temperature": -1},
        ]
    )
    return "/v1/chat/completions", {**body, **extra}


async def client(url: str, seed: int, until: float, seen: Counter[str]) -> None:
    """Send requests until the time is up; leave a third of them at a random moment."""
    chance = random.Random(seed)
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as http:
        while time.monotonic() < until:
            path, body = make_request(chance)
            patience = chance.random() * 0.5 if chance.random() < 0.33 else 120.0
            try:
                response = await asyncio.wait_for(http.post(path, json=body), patience)
                seen[f"status {response.status_code}"] += 1
                if "internal_error" in response.text or '"server_error"' in response.text:
                    seen["errors in a stream"] += 1
            except (asyncio.TimeoutError, TimeoutError):
                seen["left"] += 1


async def load(url: str, clients: int, seconds: float, seed: int) -> Counter[str]:
    """All clients at once."""
    seen: Counter[str] = Counter()
    until = time.monotonic() + seconds
    await asyncio.gather(*(client(url, seed + i, until, seen) for i in range(clients)))
    return seen


def settled(engine: Engine) -> bool:
    """True once nothing runs and no slot is in use."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        stats = engine.stats()
        if not (stats["num_running_reqs"] or stats["num_queue_reqs"] or stats["kv_used_tokens"]):
            return True
        time.sleep(0.05)
    return False


def start(options: argparse.Namespace) -> tuple[Engine, ServerProcess, threading.Thread]:
    """The engine, with a cache of compiled constraints small enough to evict, and its server."""
    engine = Engine(options.model_path, max_total_tokens=options.max_total_tokens)
    compiler = engine.compiler
    compiler.limits = replace(compiler.limits, cache_bytes=options.grammar_mib * 2**20)
    server = ServerProcess(ServerConfig(), lambda: (engine, "model"), bind("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: asyncio.run(server.run()), daemon=True)
    thread.start()
    while server.server.phase != "ready":
        time.sleep(0.05)
    return engine, server, thread


def main() -> None:
    """Run, print a line per round, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-path", help="default: the default model")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--max-total-tokens", type=int, default=8192, help="few, to force eviction")
    parser.add_argument("--grammar-mib", type=int, default=8, help="few, to force eviction")
    parser.add_argument("--tolerance", type=float, default=8.0, help="MiB")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    engine, server, thread = start(options)
    failures: list[str] = []
    sizes: list[float] = []
    for number in range(options.rounds):
        seconds = 60 * options.minutes / options.rounds
        seed = options.seed + 1000 * number
        seen = asyncio.run(load(server.url, options.clients, seconds, seed))
        if not settled(engine):
            failures.append(f"round {number + 1}: slots are still in use: {engine.stats()}")
        engine.check()
        memory = Memory.of(engine)
        sizes.append(memory.rest)
        if seen["errors in a stream"] or any(name.startswith("status 5") for name in seen):
            failures.append(f"round {number + 1}: {dict(seen)}")
        counts = ", ".join(f"{name}: {count}" for name, count in sorted(seen.items()))
        print(f"round {number + 1}: {memory}; {counts}", flush=True)
    grown = growth(sizes)
    print(f"the rest grew by {grown:+.1f} MiB from the middle to the end")
    if grown > options.tolerance:
        failures.append(f"memory grows: {[round(size) for size in sizes]} MiB")
    server.stop()
    thread.join()
    print("\n".join(failures) or "sound")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
