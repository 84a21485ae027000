"""``sglang-lite run FILE.py``: a prompt program with a backend already set."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import sglang_lite as sgl


def run_file(
    file: Path,
    arguments: Sequence[str],
    model_path: str | None,
    url: str | None,
    api_key: str = "",
) -> None:
    """Run ``file`` as ``__main__`` with ``arguments`` as its ``sys.argv[1:]``."""
    if not file.is_file():
        raise SystemExit(f"sglang-lite: there is no file {str(file)!r}")
    if url is not None and model_path is not None:
        raise SystemExit("sglang-lite: give one of --url and --model-path")
    sys.argv = [str(file), *arguments]
    sys.path.insert(0, str(file.resolve().parent))
    if url is not None:
        sgl.set_default_backend(sgl.RuntimeEndpoint(url, api_key=api_key or None))
        _run(file)
        return
    with sgl.Engine(model_path) as engine:
        sgl.set_default_backend(engine)
        _run(file)


def _run(file: Path) -> None:
    """Run it; its failures are told as Python would tell them, without our own frames."""
    try:
        runpy.run_path(str(file), run_name="__main__")
    except Exception as error:
        place = error.__traceback__
        while place is not None and place.tb_frame.f_code.co_filename != str(file):
            place = place.tb_next
        traceback.print_exception(type(error), error, place)
        raise SystemExit(1) from None
