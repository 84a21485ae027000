"""Speed and correctness of token masks on MaskBench schemas, against other engines.

    python benchmarks/masks.py maskbench.jsonl.gz --tokenizer FOLDER --sample quick

Every schema is compiled cold in every engine, in turn, in one process with the garbage collector
frozen; each of its test instances is walked token by token: fill the mask, test the token's bit,
commit.  A case passes if valid instances are accepted to the end and may stop there (EOS), and
invalid ones are not.  With ``--runs 2`` all is done in fresh processes and the smaller time of each
token counts, which takes out most of the noise of a shared machine.  An engine that compiles all
states in advance (outlines-core) runs each schema in a process of its own, limited in time
(``--seconds``) and memory (``--gigabytes``).
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import os
import pickle
import random
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from mask_engines import ENGINES

CLOCKS: dict[str, Callable[[], int]] = {
    "wall": time.perf_counter_ns,
    "cpu": time.thread_time_ns,
}


@dataclass
class Outcome:
    """One schema in one engine; times in ns."""

    verdict: str = "passed"
    detail: str = ""
    first_mask: int = 0
    states: int = 0
    cold: list[list[int]] = field(default_factory=list)
    warm: list[list[int]] = field(default_factory=list)


def read_cases(path: Path, sample: str, limit: int | None, every: int = 1) -> list[dict[str, Any]]:
    """The schemas of a sample: "quick", "second" (600 others, seeded) or "all"."""
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
    cases = [json.loads(line) for line in lines]
    if sample == "quick":
        cases = [case for case in cases if case["quick"]]
    elif sample == "second":
        others = [case for case in cases if not case["quick"] and case["tests"]]
        cases = random.Random(20260).sample(others, 600)
    return cases[::every][:limit]


class TimedOut(Exception):
    """A schema took longer than the watchdog allows."""


def on_alarm(*_: Any) -> None:
    raise TimedOut


def run_case(
    engine: Any, case: dict[str, Any], texts: list[tuple[bool, list[int]]], clock: Callable[[], int]
) -> Outcome:
    """Compile and walk all instances of one schema."""
    outcome = Outcome()
    signal.alarm(60)
    try:
        schema = json.dumps(case["schema"], ensure_ascii=False)
        started = clock()
        grammar = engine.compile(schema)
        engine.fill(engine.matcher(grammar))
        outcome.first_mask = clock() - started
        for times in (outcome.cold, outcome.warm):
            for valid, tokens in texts:
                accepted, spent = walk(engine, engine.matcher(grammar), tokens, clock)
                times.append(spent)
                if accepted != valid and outcome.verdict == "passed":
                    outcome.verdict = "over" if accepted else "under"
                    outcome.detail = f"instance {len(times) - 1}, token {len(spent)}"
        outcome.states = engine.states(grammar)
    except TimedOut:
        outcome.verdict = "timeout"
    except Exception as error:
        outcome.verdict = "refused" if outcome.first_mask == 0 else "crash"
        outcome.detail = f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.alarm(0)
    return outcome


def run_isolated(
    engine: Any,
    case: dict[str, Any],
    texts: list[tuple[bool, list[int]]],
    clock: Callable[[], int],
    seconds: float,
    gigabytes: float,
) -> Outcome:
    """The same in a forked process with limits, killed when its time is over."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit = now + int(gigabytes * (1 << 30))
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        with os.fdopen(send, "wb") as stream:
            pickle.dump(run_case(engine, case, texts, clock), stream)
        os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as stream:
        if not select.select([stream], [], [], seconds)[0]:
            os.kill(child, signal.SIGKILL)
            outcome = Outcome("timeout")
        else:
            data = stream.read()
            outcome = pickle.loads(data) if data else Outcome("crash", "died, out of memory?")
    os.waitpid(child, 0)
    return outcome


def walk(
    engine: Any, matcher: Any, tokens: list[int], clock: Callable[[], int]
) -> tuple[bool, list[int]]:
    """(accepted and may stop, ns per token)."""
    spent = []
    for token in tokens:
        started = clock()
        row = engine.fill(matcher)
        allowed = bool(row[token >> 5] >> (token & 31) & 1)
        if allowed:
            engine.accept(matcher, token)
        spent.append(clock() - started)
        if not allowed:
            return False, spent
    return engine.complete(matcher), spent


def measure(options: argparse.Namespace) -> dict[str, list[Outcome]]:
    """All cases in all engines, in turn."""
    from tokenizers import Tokenizer

    signal.signal(signal.SIGALRM, on_alarm)
    tokenizer = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))
    engines = {name: ENGINES[name](options.tokenizer, options.order) for name in options.engines}
    cases = read_cases(options.dataset, options.sample, options.limit, options.every)
    clock = CLOCKS[options.clock]
    found: dict[str, list[Outcome]] = defaultdict(list)
    gc.collect()
    gc.freeze()
    gc.disable()
    for number, case in enumerate(cases):
        texts = [
            (
                test["valid"],
                tokenizer.encode(
                    json.dumps(test["data"], ensure_ascii=False), add_special_tokens=False
                ).ids,
            )
            for test in case["tests"]
        ]
        for name, engine in engines.items():
            if getattr(engine, "isolated", False):
                limits = (options.seconds, options.gigabytes)
                found[name].append(run_isolated(engine, case, texts, clock, *limits))
            else:
                found[name].append(run_case(engine, case, texts, clock))
            gc.collect()
        if options.progress and number % 100 == 0:
            print(f"{number} of {len(cases)}", file=sys.stderr)
    return found


def merge(runs: list[dict[str, list[Outcome]]]) -> dict[str, list[Outcome]]:
    """The smaller time of each token over several runs."""
    first = runs[0]
    for other in runs[1:]:
        for name, outcomes in first.items():
            for mine, theirs in zip(outcomes, other[name], strict=True):
                mine.first_mask = min(mine.first_mask, theirs.first_mask)
                for kind in ("cold", "warm"):
                    pairs = zip(getattr(mine, kind), getattr(theirs, kind), strict=True)
                    setattr(mine, kind, [list(map(min, a, b)) for a, b in pairs])
    return first


QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999)


def shared(found: dict[str, list[Outcome]]) -> Iterator[int]:
    """Cases that every engine compiled."""
    for index, outcomes in enumerate(zip(*found.values(), strict=True)):
        if all(o.verdict in ("passed", "over", "under") for o in outcomes):
            yield index


def report(found: dict[str, list[Outcome]], options: argparse.Namespace) -> str:
    """Tables in Markdown."""
    title = f"{options.tokenizer.name}, sample {options.sample}, {options.order} order, "
    lines = [f"### {title}{options.clock} clock, {options.runs} run(s)", ""]
    lines += ["| engine | passed | refused | over | under | timeout | crash |", "|---" * 7 + "|"]
    for name, outcomes in found.items():
        counts = Counter(outcome.verdict for outcome in outcomes)
        kinds = ("passed", "refused", "over", "under", "timeout", "crash")
        lines.append(f"| {name} | " + " | ".join(str(counts[k]) for k in kinds) + " |")
    both = list(shared(found))
    head = ["avg", *(f"p{100 * q:g}" for q in QUANTILES), "max", "first p50", "first p99"]
    for kind in ("cold", "warm"):
        lines += ["", f"µs per token, {kind}, {len(both)} schemas that all accept:", ""]
        lines += ["| | tokens | " + " | ".join(head) + " |", "|---" * (len(head) + 2) + "|"]
        figures = {}
        for name, outcomes in found.items():
            times, firsts = [], [outcomes[index].first_mask / 1000 for index in both]
            for index in both:
                runs = zip(*(getattr(o[index], kind) for o in found.values()), strict=True)
                # Tokens that every engine walked: an instance refused early counts up to there.
                cut = [min(map(len, run)) for run in runs]
                rows = getattr(outcomes[index], kind)
                times += [t / 1000 for row, n in zip(rows, cut, strict=True) for t in row[:n]]
            values = np.array(times)
            row = [values.mean(), *np.quantile(values, QUANTILES), values.max()]
            figures[name] = [*row, *np.quantile(firsts, (0.5, 0.99))]
            shown = " | ".join(f"{v:.1f}" if v < 100 else f"{v:,.0f}" for v in figures[name])
            lines.append(f"| {name} | {len(values)} | {shown} |")
        names = list(figures)
        for other in names[1:]:
            ratios = [a / b for a, b in zip(figures[names[0]], figures[other], strict=True)]
            shown = " | ".join(f"{ratio:.2f}" for ratio in ratios)
            lines.append(f"| ratio to {other} | | {shown} |")
    states = [outcome.states for outcome in next(iter(found.values()))]
    p50, p99 = np.quantile(states, (0.5, 0.99))
    lines += ["", f"States per grammar: p50 {p50:.0f}, p99 {p99:.0f}, max {max(states)}."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--sample", choices=("quick", "second", "all"), default="quick")
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES)[:2])
    parser.add_argument("--order", choices=("schema", "any"), default="schema")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--runs", type=int, default=1, help="fresh processes")
    parser.add_argument("--limit", type=int, help="only the first so many schemas")
    parser.add_argument("--every", type=int, default=1, help="only each so many-th schema")
    parser.add_argument("--seconds", type=float, default=5, help="for an isolated engine's schema")
    parser.add_argument("--gigabytes", type=float, default=4, help="for an isolated engine")
    parser.add_argument("--failures", type=Path, help="write what did not pass to this file")
    parser.add_argument("--progress", action="store_true")
    parser.add_argument("--dump", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.runs > 1:
        runs = []
        for _ in range(options.runs):
            with tempfile.NamedTemporaryFile() as file:
                command = [sys.executable, *sys.argv, "--runs", "1", "--dump", file.name]
                subprocess.run(command, check=True)
                runs.append(pickle.load(file))
        found = merge(runs)
    else:
        found = dict(measure(options))
    if options.dump:
        options.dump.write_bytes(pickle.dumps(found))
        return
    print(report(found, options))
    if options.failures:
        cases = read_cases(options.dataset, options.sample, options.limit, options.every)
        with options.failures.open("w") as file:
            for case, outcome in zip(cases, found[options.engines[0]], strict=True):
                if outcome.verdict != "passed":
                    file.write(f"{outcome.verdict}\t{case['id']}\t{outcome.detail}\n")


if __name__ == "__main__":
    main()
