"""Load on a running server, in the field's usual figures; or the HTTP layer's own cost.

python benchmarks/serving.py --url http://127.0.0.1:30000 --concurrency 32 --requests 128
python benchmarks/serving.py --model-path FOLDER --rounds 3   # the engine directly and over HTTP
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import httpx

WORDS = [
    "the",
    "a",
    "of",
    "and",
    "sea",
    "city",
    "rain",
    "light",
    "stone",
    "river",
    "old",
    "bright",
    "walks",
    "sings",
    "under",
    "over",
    "with",
]


@dataclass
class Result:
    """One request: when it started, and when each piece of text came (seconds)."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    start: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    error: str = ""


Ask = Callable[[str, int], Awaitable[Result]]


async def ask_server(client: httpx.AsyncClient, prompt: str, tokens: int) -> Result:
    """One streamed ``/v1/completions`` request."""
    result = Result(start=time.perf_counter())
    body = {
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                result.error = (await response.aread()).decode()[:200]
                return result
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    result.error = event["error"]["message"]
                elif event["choices"]:
                    result.arrivals.append(time.perf_counter())
                elif event["usage"]:
                    result.prompt_tokens = event["usage"]["prompt_tokens"]
                    result.output_tokens = event["usage"]["completion_tokens"]
    except httpx.HTTPError as error:
        result.error = repr(error)
    return result


async def ask_engine(engine: object, prompt: str, tokens: int) -> Result:
    """The same request without HTTP."""
    from sglang_lite.runtime.messages import GenerateRequest
    from sglang_lite.sampling_params import SamplingParams

    result = Result(start=time.perf_counter())
    ids = engine.tokenizer.encode(prompt, add_special_tokens=True)
    params = SamplingParams(max_new_tokens=tokens, temperature=0.0, ignore_eos=True)
    async for output in await engine.asubmit(GenerateRequest(tuple(ids), params)):
        result.arrivals.append(time.perf_counter())
        result.prompt_tokens = output.usage.prompt_tokens
        result.output_tokens = output.usage.completion_tokens
    return result


async def load(ask: Ask, prompts: list[str], tokens: int, concurrency: int) -> list[Result]:
    """Send all prompts, so many at a time."""
    places = asyncio.Semaphore(concurrency)

    async def one(prompt: str) -> Result:
        async with places:
            return await ask(prompt, tokens)

    return list(await asyncio.gather(*(one(prompt) for prompt in prompts)))


def make_prompts(count: int, words: int, shared: float, seed: int) -> list[str]:
    """Prompts of random words, of which the first ``shared`` part is the same in all."""
    chance = random.Random(seed)
    head = [chance.choice(WORDS) for _ in range(int(words * shared))]
    return [
        " ".join([*head, *(chance.choice(WORDS) for _ in range(words - len(head)))])
        for _ in range(count)
    ]


def report(title: str, results: list[Result], seconds: float) -> float:
    """Print the usual lines; the output token throughput."""
    good = [result for result in results if not result.error]
    new = sum(result.output_tokens for result in good)
    read = sum(result.prompt_tokens for result in good)
    print(f"\n============ {title} ============")
    lines = {
        "Successful requests": len(good),
        "Failed requests": len(results) - len(good),
        "Benchmark duration (s)": seconds,
        "Total input tokens": read,
        "Total generated tokens": new,
        "Request throughput (req/s)": len(good) / seconds,
        "Output token throughput (tok/s)": new / seconds,
        "Total token throughput (tok/s)": (new + read) / seconds,
    }
    for name, value in lines.items():
        shown = f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"
        print(f"{name + ':':<40}{shown:>12}")
    gaps = [b - a for r in good for a, b in zip(r.arrivals, r.arrivals[1:], strict=False)]
    series = {
        "TTFT": [r.arrivals[0] - r.start for r in good if r.arrivals],
        "TPOT": [
            (r.arrivals[-1] - r.arrivals[0]) / (r.output_tokens - 1)
            for r in good
            if r.output_tokens > 1
        ],
        "ITL": gaps,
        "E2E latency": [r.arrivals[-1] - r.start for r in good if r.arrivals],
    }
    for name, values in series.items():
        if values:
            ordered = sorted(values)
            figures = {
                "Mean": statistics.fmean(ordered),
                "Median": statistics.median(ordered),
                "P99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
            }
            for label, value in figures.items():
                print(f"{f'{label} {name} (ms):':<40}{1000 * value:>12,.2f}")
    for result in results:
        if result.error:
            print(f"first error: {result.error}")
            break
    return new / seconds


async def over_http(url: str, options: argparse.Namespace, title: str) -> float:
    """The load over HTTP."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=url, timeout=None, limits=limits, trust_env=False
    ) as client:
        if options.flush:
            await client.post("/flush_cache")
        return await timed(title, functools.partial(ask_server, client), options)


async def timed(title: str, ask: Ask, options: argparse.Namespace) -> float:
    """Run the load and print its figures."""
    prompts = make_prompts(options.requests, options.input_len, options.shared, options.seed)
    start = time.perf_counter()
    results = await load(ask, prompts, options.output_len, options.concurrency)
    return report(title, results, time.perf_counter() - start)


def compare(options: argparse.Namespace) -> None:
    """The same load on the engine and through a server around it, in turns."""
    from sglang_lite.runtime.engine import Engine
    from sglang_lite.runtime.server.config import ServerConfig
    from sglang_lite.runtime.server.ports import bind
    from sglang_lite.runtime.server.serve import ServerProcess

    engine = Engine(options.model_path or None)
    sock = bind("127.0.0.1", 0)
    server = ServerProcess(ServerConfig(), lambda: (engine, "model"), sock)
    thread = threading.Thread(target=lambda: asyncio.run(server.run()), daemon=True)
    thread.start()
    while server.server.phase != "ready":
        time.sleep(0.05)
    direct, served, busy = [], [], []
    for number in range(options.rounds):
        engine.flush_cache()
        title, ask = f"engine, round {number + 1}", functools.partial(ask_engine, engine)
        direct.append(asyncio.run(timed(title, ask, options)))
        engine.flush_cache()
        before = cpu_seconds(thread)
        served.append(in_another_process(server.url, options))
        busy.append(cpu_seconds(thread) - before)
    server.stop()
    thread.join()
    ratios = [http / plain for http, plain in zip(served, direct, strict=True)]
    tokens = options.requests * options.output_len
    per_token = statistics.median(busy) / tokens
    share = per_token * statistics.median(served)
    print(
        f"\n{options.concurrency} streams: over HTTP {statistics.median(ratios):.3f} of the "
        f"engine's throughput ({', '.join(f'{ratio:.2f}' for ratio in sorted(ratios))})\n"
        f"HTTP's own thread: {1e6 * per_token:.0f} us of CPU per token, "
        f"{100 * share:.1f} % of one core at this rate"
    )


def cpu_seconds(thread: threading.Thread) -> float:
    """CPU time that a thread of this process has had."""
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def in_another_process(url: str, options: argparse.Namespace) -> float:
    """The load over HTTP; a client in this process would take turns with the server's Python."""
    names = ("requests", "concurrency", "input_len", "output_len", "shared", "seed")
    flags = [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in names]
    command = [sys.executable, __file__, f"--url={url}", *flags]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    print(output)
    found = re.search(r"Output token throughput.*?([\d.,]+)\n", output)
    return float(found[1].replace(",", "")) if found else 0.0


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a running server; without it, engine and HTTP are compared")
    parser.add_argument("--model-path", help="for the comparison (default: the default model)")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--input-len", type=int, default=64, help="words per prompt")
    parser.add_argument("--output-len", type=int, default=32, help="tokens per answer")
    parser.add_argument("--shared", type=float, default=0.5, help="part of the prompts in common")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--flush", action="store_true", help="empty the server's cache first")
    options = parser.parse_args()
    if options.url:
        asyncio.run(over_http(options.url, options, "Serving Benchmark Result"))
    else:
        compare(options)


if __name__ == "__main__":
    main()
