"""Verdicts on the JSON Schema test suite.

    python benchmarks/schema_suite.py SUITE.jsonl [--order any|schema]

Every line of the file is a group: {"draft", "file", "description", "schema", "tests": [{"valid",
"data", "description"}]}.  Instances are written by ``json.dumps`` and fed byte by byte; an instance
counts as accepted if the text may end there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

from schema_verdicts import Case, Report, byte_vocabulary, judge

from sglang_lite.constrained.compiler import GrammarCompiler

DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}


def cases(path: str) -> Iterator[Case]:
    """The groups of the suite, each schema with the ``$schema`` of its draft."""
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            group = json.loads(line)
            schema = group["schema"]
            if isinstance(schema, dict):
                schema = {"$schema": DRAFTS[group["draft"]], **schema}
            name = f"{group['draft']}/{group['file']}: {group['description']}"
            tests = [(t["valid"], t["data"], t["description"]) for t in group["tests"]]
            yield Case(name, schema, tests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path")
    parser.add_argument("--order", choices=["any", "schema"], default="any")
    parser.add_argument("--seconds", type=int, default=10, help="time for one group")
    arguments = parser.parse_args()
    compiler, report = GrammarCompiler(byte_vocabulary()), Report()
    report.add(
        judge(compiler, case, arguments.order, arguments.seconds) for case in cases(arguments.path)
    )
    report.show()


if __name__ == "__main__":
    main()
