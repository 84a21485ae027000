"""Every example runs from the command line, as its first lines say, and prints what it promises."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

EXPECTED = {
    "quickstart.py": [r"fact: +\S", r"year: +\d{4} \(int\)", r"home: +(in|on) ", r"cached"],
    "json_extraction.py": [r"Person\(name='.*北京|Person\(name='王伟'", r"Person\(.*'London'\)"],
    "parallel_branches.py": [
        r"most important: (diet|sleep|exercise)",
        r"of \d+ prompt tokens cached",
    ],
    "openai_client.py": [r"answer: +\S", r"stream: +\S", r"City\(name="],
}


def test_every_example_is_covered():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXPECTED)


@pytest.mark.model
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_example(name):
    command = [sys.executable, str(ROOT / "examples" / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for pattern in EXPECTED[name]:
        assert re.search(pattern, done.stdout), f"{pattern!r} is not in:\n{done.stdout}"
