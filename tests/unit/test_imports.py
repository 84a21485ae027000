"""A program against a remote server starts without the heavy libraries."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sglang_lite

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


def test_the_first_text_of_a_cpu_waits_for_nothing_that_few_need():
    code = (
        "import sys\nfrom tests.runtime.toy import toy_engine\n"
        "with toy_engine() as engine: engine.generate('ab', {'max_new_tokens': 2})\n"
        "print([n for n in ('triton', 'sglang_lite.constrained', 'regex', 'filelock') "
        "if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_stub_names_what_is_loaded_on_first_use():
    root = Path(sglang_lite.__file__).parent
    stub = (root / "__init__.pyi").read_text(encoding="utf-8")
    found = {}
    for node in ast.walk(ast.parse(stub)):
        if isinstance(node, ast.ImportFrom):
            found.update({alias.asname: node.module for alias in node.names})
    assert found == sglang_lite._MODULE_OF
