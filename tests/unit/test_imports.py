"""A program against a remote server starts without the heavy libraries."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "fastapi", "uvicorn")


@pytest.mark.parametrize("module", ["sglang_lite", "sglang_lite.lang", "sglang_lite.cli"])
def test_the_import_is_light(module):
    code = f"import {module}, sys\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_constrained_needs_no_torch():
    code = "import sglang_lite.constrained, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
