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


def test_whitespace_that_dialects_dispute_stands_in_no_text():
    """U+FEFF is whitespace for ECMA-262 only, U+0085 and U+001C for Python's ``re`` only."""
    disputed = ['"\ufeff"', '"\x85"', r'"\u001c"', r'"\uFEFF"']
    space, other = ({"type": "string", "pattern": rf"^\{letter}$"} for letter in "sS")
    assert not any(holds(schema, text) for schema in (space, other) for text in disputed)
    assert holds(space, '"\u00a0"') and not holds(other, '"\u00a0"')
    assert holds(other, '"a"') and not holds(space, '"a"')
    refused = {"type": "string", "not": {"pattern": r"^\s$"}}
    assert holds(refused, '"ab"') and not holds(refused, '"\ufeff"')
    assert holds({"type": "string", "pattern": r"^\\s.$"}, '"\\\\s\ufeff"')
