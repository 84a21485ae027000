"""The examples run from the command line and print what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("quickstart", ["fact:", "legs:", "(int)", "home:", "were cached"]),
        ("json_extraction", ["Person(name='Ada Lovelace', age=36", "北京"]),
        ("parallel_branches", ["diet:", "sleep:", "exercise:", "most important:"]),
    ],
)
def test_an_example_runs(name, expected):
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    for text in expected:
        assert text in done.stdout


def test_importing_the_package_loads_neither_torch_nor_transformers():
    code = (
        "import sys, sglang_lite as sgl\n"
        "sgl.gen('x', type=int), sgl.select('y', ['a', 'b']), sgl.function, sgl.Mock()\n"
        "sgl.RuntimeEndpoint\n"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
