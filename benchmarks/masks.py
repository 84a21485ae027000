"""Speed and correctness of token masks on MaskBench schemas, against llguidance and xgrammar.

    python benchmarks/masks.py maskbench.jsonl.gz --tokenizer FOLDER --sample quick

Every schema is compiled cold in every engine, in turn, in one process with the garbage collector
frozen; each of its test instances is walked token by token: fill the mask, test the token's bit,
commit.  A case passes if valid instances are accepted to the end and may stop there (EOS), and
invalid ones are not.  With ``--runs 2`` all is done in fresh processes and the smaller time of each
token counts, which takes out most of the noise of a shared machine.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import pickle
import random
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


class Ours:
    """This package."""

    def __init__(self, folder: Path, order: str) -> None:
        from tokenizers import Tokenizer

        from sglang_lite.constrained import GrammarCompiler, Vocabulary, allocate_token_bitmask

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer, eos_token_ids=eos_of(folder))
        started = time.perf_counter()
        GrammarCompiler(self.vocabulary).prepare()
        self.setup = time.perf_counter() - started
        self.bitmask = allocate_token_bitmask(1, self.vocabulary.size)
        self.order = order
        self._compiler = GrammarCompiler

    def compile(self, schema: str) -> Any:
        return self._compiler(self.vocabulary).compile_json_schema(
            schema, property_order=self.order
        )

    def matcher(self, grammar: Any) -> Any:
        from sglang_lite.constrained import GrammarMatcher

        return GrammarMatcher(grammar)

    def fill(self, matcher: Any) -> np.ndarray:
        matcher.fill_next_token_bitmask(self.bitmask)
        return self.bitmask[0]

    def accept(self, matcher: Any, token: int) -> bool:
        return matcher.accept_token(token)

    def complete(self, matcher: Any) -> bool:
        return matcher.is_completed()

    def states(self, grammar: Any) -> int:
        return grammar.automaton.state_count


class LLGuidance:
    """llguidance, its defaults."""

    def __init__(self, folder: Path, order: str) -> None:
        import llguidance
        import llguidance.numpy as bitmasks

        text = (folder / "tokenizer.json").read_text()
        self.tokenizer = llguidance.LLTokenizer(text, eos_token=eos_of(folder)[0])
        self.bitmask = bitmasks.allocate_token_bitmask(1, self.tokenizer.vocab_size)
        self._fill = bitmasks.fill_next_token_bitmask
        self._matcher = llguidance.LLMatcher

    def compile(self, schema: str) -> Any:
        matcher = self._matcher(
            self.tokenizer, self._matcher.grammar_from_json_schema(schema), log_level=0
        )
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def matcher(self, grammar: Any) -> Any:
        return grammar.deep_copy()

    def fill(self, matcher: Any) -> np.ndarray:
        self._fill(matcher, self.bitmask, 0)
        return self.bitmask[0]

    def accept(self, matcher: Any, token: int) -> bool:
        return matcher.consume_token(token)

    def complete(self, matcher: Any) -> bool:
        return matcher.is_accepting()

    def states(self, grammar: Any) -> int:
        return 0


class XGrammar:
    """xgrammar, with open objects as the specification has them."""

    def __init__(self, folder: Path, order: str) -> None:
        import xgrammar
        from tokenizers import Tokenizer

        from sglang_lite.constrained import Vocabulary

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        vocabulary = Vocabulary.from_tokenizer(tokenizer, eos_token_ids=eos_of(folder))
        info = xgrammar.TokenizerInfo(
            vocabulary.token_bytes,
            vocab_type=xgrammar.VocabType.RAW,
            stop_token_ids=list(vocabulary.eos_token_ids),
        )
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.bitmask = xgrammar.allocate_token_bitmask(1, info.vocab_size)
        self.row = self.bitmask.numpy()[0]
        self._matcher = xgrammar.GrammarMatcher
        self.eos = vocabulary.eos_token_ids[0]

    def compile(self, schema: str) -> Any:
        return self.compiler.compile_json_schema(schema, strict_mode=False)

    def matcher(self, grammar: Any) -> Any:
        return self._matcher(grammar)

    def fill(self, matcher: Any) -> np.ndarray:
        if not matcher.fill_next_token_bitmask(self.bitmask, 0):
            self.row[:] = -1
        return self.row

    def accept(self, matcher: Any, token: int) -> bool:
        return matcher.accept_token(token)

    def complete(self, matcher: Any) -> bool:
        row = self.fill(matcher)
        return bool(row[self.eos >> 5] >> (self.eos & 31) & 1)

    def states(self, grammar: Any) -> int:
        return 0


ENGINES: dict[str, Any] = {"sglang_lite": Ours, "llguidance": LLGuidance, "xgrammar": XGrammar}


def eos_of(folder: Path) -> list[int]:
    """The EOS id that the folder's tokenizer_config.json names."""
    config = json.loads((folder / "tokenizer_config.json").read_text())
    name = config["eos_token"]
    name = name if isinstance(name, str) else name["content"]
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    return [token["id"] for token in added if token["content"] == name]


def read_cases(path: Path, sample: str, limit: int | None) -> list[dict[str, Any]]:
    """The schemas of a sample: "quick", "second" (600 others, seeded) or "all"."""
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
    cases = [json.loads(line) for line in lines]
    if sample == "quick":
        cases = [case for case in cases if case["quick"]]
    elif sample == "second":
        others = [case for case in cases if not case["quick"] and case["tests"]]
        cases = random.Random(20260).sample(others, 600)
    return cases[:limit]


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
    cases = read_cases(options.dataset, options.sample, options.limit)
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
        cases = read_cases(options.dataset, options.sample, options.limit)
        with options.failures.open("w") as file:
            for case, outcome in zip(cases, found[options.engines[0]], strict=True):
                if outcome.verdict != "passed":
                    file.write(f"{outcome.verdict}\t{case['id']}\t{outcome.detail}\n")


if __name__ == "__main__":
    main()
