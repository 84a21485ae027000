"""Shared by the schema benchmarks: verdicts of the constraint engine over a byte vocabulary."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sglang_lite.constrained.compiler import GrammarCompiler
from sglang_lite.constrained.matcher import GrammarMatcher
from sglang_lite.constrained.vocabulary import Vocabulary
from sglang_lite.constraint import JsonSchema
from sglang_lite.errors import ConstraintError, UnsatisfiableSchema, UnsupportedSchema


class Case(NamedTuple):
    """A schema with its tests: (valid, data, description)."""

    name: str
    schema: Any
    tests: list[tuple[bool, Any, str]]


class Verdict(NamedTuple):
    """What became of one case (pass, over, under, refused, timeout), a line for each failure."""

    name: str
    outcome: str
    tests: Counter[str]
    lines: list[str]
    refusal: str | None
    seconds: float


class TimeoutReached(Exception):
    """A case took longer than allowed."""


@contextmanager
def at_most(seconds: int) -> Any:
    """Raise :class:`TimeoutReached` in this (main) thread after ``seconds`` of processor time."""

    def stop(*_: Any) -> None:
        raise TimeoutReached

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def byte_vocabulary() -> Vocabulary:
    """One token for each byte, and an end of text."""
    return Vocabulary([bytes((byte,)) for byte in range(256)] + [b"<end>"], eos_token_ids=[256])


def judge(compiler: GrammarCompiler, case: Case, order: Any, seconds: int) -> Verdict:
    """Try every test of ``case``: its text is accepted to the end and may end there."""
    tests: Counter[str] = Counter()
    lines: list[str] = []
    start = time.process_time()
    try:
        with at_most(seconds):
            accepted = _accepted(compiler, case, order)
    except TimeoutReached:
        return _no_verdict(case, "timeout", "timeout", start)
    except UnsupportedSchema as error:
        return _no_verdict(case, "refused", f"{error.keyword}: {error.reason}", start)
    except ConstraintError as error:
        return _no_verdict(case, "refused", f"{type(error).__name__}: {error}", start)
    for (valid, data, description), got in zip(case.tests, accepted, strict=True):
        outcome = "ok" if got is valid else ("over" if got else "under")
        tests[outcome] += 1
        if outcome != "ok":
            text = json.dumps(data, ensure_ascii=False)
            lines.append(f"{outcome}: {case.name}: {description}: {text[:120]}")
    worst = next((name for name in ("over", "under") if tests[name]), "pass")
    return Verdict(case.name, worst, tests, lines, None, time.process_time() - start)


def _accepted(compiler: GrammarCompiler, case: Case, order: Any) -> list[bool]:
    try:
        compiled = compiler.compile(JsonSchema.of(case.schema, property_order=order))
    except UnsatisfiableSchema:
        return [False] * len(case.tests)
    accepted = []
    for _, data, _ in case.tests:
        matcher = GrammarMatcher(compiled)
        text = json.dumps(data, ensure_ascii=False)
        accepted.append(matcher.accept_string(text) and matcher.is_completed())
    return accepted


def _no_verdict(case: Case, outcome: str, reason: str, start: float) -> Verdict:
    counts = Counter({outcome: len(case.tests)})
    return Verdict(case.name, outcome, counts, [], reason, time.process_time() - start)


@dataclass
class Report:
    """Sums over many verdicts."""

    cases: Counter[str] = field(default_factory=Counter)
    tests: Counter[str] = field(default_factory=Counter)
    refusals: dict[str, list[str]] = field(default_factory=dict)

    def add(self, verdicts: Iterable[Verdict]) -> None:
        """Count ``verdicts``, printing each wrong test and each case above a second."""
        for verdict in verdicts:
            self.cases[verdict.outcome] += 1
            self.tests.update(verdict.tests)
            if verdict.refusal is not None:
                self.refusals.setdefault(verdict.refusal[:100], []).append(verdict.name)
            for line in verdict.lines:
                print(line)
            if verdict.seconds > 1:
                print(f"slow: {verdict.name}: {verdict.seconds:.1f} s")

    def show(self) -> None:
        """Print refusals by keyword, then the sums."""
        for reason, names in sorted(self.refusals.items(), key=lambda entry: -len(entry[1])):
            print(f"refused {len(names):4d}  {reason}  ({names[0]})")
        for title, counts in (("cases", self.cases), ("tests", self.tests)):
            total = sum(counts.values())
            good = counts["pass"] + counts["ok"]
            shares = ", ".join(f"{name} {count}" for name, count in counts.most_common())
            print(f"{title}: {total}; right {100 * good / max(total, 1):.2f} %; {shares}")
