"""The examples of the language's page run."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import sglang_lite as sgl

PAGE = (Path(__file__).parents[2] / "docs" / "language.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python(| model)\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_examples_without_a_model_run_in_order():
    names: dict = {}
    try:
        for number, (kind, code) in enumerate(BLOCKS):
            if not kind:
                exec(compile(code, f"docs/language.md, block {number}", "exec"), names)
    finally:
        sgl.set_default_backend(None)
    assert len(BLOCKS) > 8


@pytest.mark.model
def test_the_examples_on_the_model_run(capsys):
    for kind, code in BLOCKS:
        if kind:
            exec(compile(code, "docs/language.md", "exec"), {})
    assert len(capsys.readouterr().out) > 1


def test_the_page_names_every_argument_and_every_public_name():
    for function in (sgl.gen, sgl.select):
        for name in inspect.signature(function).parameters:
            assert re.search(rf"\b{name}\b", PAGE), name
    elsewhere = {
        "sglang_lite.constrained",
        "sglang_lite.errors",
        "sglang_lite.constraint",
        "sglang_lite.runtime.default_model",
        "sglang_lite.sampling_params",
    }
    types = {
        "SglFunction",
        "ProgramState",
        "AsyncProgramState",
        "ProgramStateGroup",
        "ChoicesDecision",
    }
    for name, module in sgl._MODULE_OF.items():
        if module not in elsewhere and name not in types:
            assert re.search(rf"\b{name}\b", PAGE), name
