"""``sglang-lite env``: what a bug report needs."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = (
    *("sglang-lite", "torch", "transformers", "tokenizers", "safetensors", "numpy"),
    *("pydantic", "fastapi", "uvicorn", "interegular", "lark", "openai"),
)


def print_env() -> None:
    """Print ``name: value`` lines."""
    lines = {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processors": str(os.cpu_count()),
        "memory": _memory(),
    }
    for name in _PACKAGES:
        try:
            lines[name] = version(name)
        except PackageNotFoundError:
            lines[name] = "not installed"
    lines["devices"] = _devices()
    from sglang_lite.runtime.default_model import cache_dir

    lines["model cache"] = str(cache_dir())
    width = max(map(len, lines))
    for name, value in lines.items():
        print(f"{name + ':':{width + 1}} {value}")


def _memory() -> str:
    names = ("SC_PAGE_SIZE", "SC_PHYS_PAGES")
    if not all(name in getattr(os, "sysconf_names", {}) for name in names):
        return "unknown"
    page, pages = (os.sysconf(name) for name in names)
    return f"{page * pages / 2**30:.1f} GiB"


def _devices() -> str:
    import torch

    if not torch.cuda.is_available():
        return f"cpu, {torch.get_num_threads()} threads"
    names = (torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return ", ".join(names)
