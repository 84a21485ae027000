"""Expressions and remote backends need neither torch nor transformers."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_package_loads_neither_torch_nor_transformers():
    code = (
        "import sys, sglang_lite as sgl\n"
        "sgl.gen('x', type=int), sgl.select('y', ['a', 'b']), sgl.function, sgl.Mock()\n"
        "sgl.RuntimeEndpoint\n"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
