"""The Python of the README and of the pages in docs runs as it stands there, in order."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import sglang_lite as sgl
from tests.runtime.toy import toy_tokenizer
from tests.server.live import serving

README = Path(__file__).parents[2] / "README.md"
DOCS = README.parent / "docs"

SERVED_ELSEWHERE = """
with sgl.Runtime() as server:
    print(elsewhere(server.url)["tone"])
"""


def python_blocks(text: str) -> list[str]:
    """The fenced Python blocks of a Markdown text, in order."""
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.model
def test_the_python_of_the_readme_runs(tmp_path):
    blocks = python_blocks(README.read_text(encoding="utf-8"))
    assert len(blocks) >= 3
    blocks.append(SERVED_ELSEWHERE)
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] in ("friendly", "neutral", "hostile")


@pytest.mark.model
def test_the_python_of_the_servers_page_runs(capsys):
    blocks = python_blocks((DOCS / "server.md").read_text(encoding="utf-8"))
    with sgl.Engine(dtype="float32") as engine, serving(engine) as live:
        for block in blocks:
            assert "http://127.0.0.1:30000" in block
            exec(
                compile(block.replace("http://127.0.0.1:30000", live.url), "server.md", "exec"), {}
            )
    assert capsys.readouterr().out.startswith("name='")


def test_the_python_of_the_other_pages_runs():
    """``language.md`` has tests of its own."""
    given = {"tokenizer": toy_tokenizer(), "StructuralTag": sgl.StructuralTag}
    seen = set()
    for page in sorted(DOCS.glob("*.md")):
        if page.name in ("language.md", "server.md"):
            continue
        names = dict(given)
        for block in python_blocks(page.read_text(encoding="utf-8")):
            exec(compile(block, page.name, "exec"), names)
            seen.add(page.name)
    assert seen >= {"constraints.md", "grammars.md"}


def test_links_inside_the_project_lead_somewhere():
    for page in [README, *sorted(README.parent.glob("docs/*.md"))]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
