"""The Triton kernels compile for a real GPU, which the interpreter cannot tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
MOST_SHARED = 227 << 10
"""Bytes of shared memory that a program may have on an H200."""


def test_every_kernel_compiles_for_an_h200():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.runtime.compile_kernels"]
    folder = Path(__file__).parents[2]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    kernels = [report["kernel"] for report in reports]
    assert kernels.count("attend_items") == 10
    others = {"merge_parts", "mask_logits", "sample_rows"}
    others |= {"add_and_norm", "turn_and_store", "gate_and_multiply"}
    assert set(kernels) == {"attend_items"} | others
    for report in reports:
        assert report["shared"] <= MOST_SHARED, report
        assert report["tensor_cores"] == (report["kernel"] == "attend_items"), report
