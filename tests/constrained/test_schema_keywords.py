"""What each keyword means; the cases are the lines of ``schema_keywords.jsonl``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.constrained.schemas import holds, holds_value

LINES = (Path(__file__).parent / "schema_keywords.jsonl").read_text("utf-8").splitlines()
CASES = [json.loads(line) for line in LINES]


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_keyword(case):
    def accepted(value):
        return holds_value(case["schema"], value, property_order="any")

    assert [value for value in case["accepted"] if not accepted(value)] == []
    assert [value for value in case["refused"] if accepted(value)] == []


SPELLINGS = [
    ({"type": "integer"}, ["0", "-1", "10"], ["1.0", "-0", "01", "1e3", "+1"]),
    ({"type": "number", "minimum": 0, "maximum": 10}, ["1", "1.5", "0.25"], ["1e0", "01.5", ".5"]),
    ({"const": 1.5}, ["1.5"], ["15e-1", "1.50"]),
    ({"const": "é"}, ['"é"'], [r'"\u00e9"']),
    ({"enum": ["a/b"]}, ['"a/b"'], [r'"a\/b"']),
    ({"type": "string"}, ['"é"', r'"\u00e9"', r'"\/"'], []),
    (
        {"properties": {"é": {"type": "null"}}},
        ['{"é": null}'],
        [r'{"\u00e9": null}', r'{"\u00e9": 1}'],
    ),
]


@pytest.mark.parametrize(("schema", "accepted", "refused"), SPELLINGS)
def test_documented_spellings(schema, accepted, refused):
    assert [text for text in accepted if not holds(schema, text)] == []
    assert [text for text in refused if holds(schema, text)] == []
