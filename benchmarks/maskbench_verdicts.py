"""Verdicts on MaskBench: valid instances accepted to the end, invalid ones not.

    python benchmarks/maskbench_verdicts.py MASKBENCH.jsonl[.gz] [--order any|schema] [--limit N]
        [--workers N]

Every line of the file is {"id", "schema", "tests": [{"valid", "data"}]}.  Instances are written by
``json.dumps(data, ensure_ascii=False)``.  The instances' keys mostly come in the order of the
schema; where they do not, only ``--order any`` accepts them.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice

from schema_verdicts import Case, Report, Verdict, byte_vocabulary, judge

from sglang_lite.constrained.compiler import GrammarCompiler


def cases(path: str) -> Iterator[Case]:
    """The schemas that have tests."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            entry = json.loads(line)
            if entry["tests"]:
                tests = [(test["valid"], test["data"], "") for test in entry["tests"]]
                yield Case(entry["id"], entry["schema"], tests)


def verdict(case: Case, order: str, seconds: int) -> Verdict:
    """One case with a compiler of its own, as its cache would only fill the memory."""
    return judge(GrammarCompiler(_VOCABULARY), case, order, seconds)


_VOCABULARY = byte_vocabulary()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path")
    parser.add_argument("--order", choices=["any", "schema"], default="any")
    parser.add_argument("--limit", type=int, default=None, help="only the first N schemas")
    parser.add_argument("--seconds", type=int, default=10, help="time for one schema")
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    judged = partial(verdict, order=arguments.order, seconds=arguments.seconds)
    chosen = islice(cases(arguments.path), arguments.limit)
    report = Report()
    if arguments.workers == 1:
        report.add(map(judged, chosen))
    else:
        with ProcessPoolExecutor(arguments.workers) as pool:
            report.add(pool.map(judged, chosen, chunksize=16))
    report.show()


if __name__ == "__main__":
    main()
