"""The string formats of JSON Schema as automata."""

from __future__ import annotations

from functools import lru_cache

from sglang_lite.constrained.automaton import Automaton
from sglang_lite.constrained.regex import full_match

FORMATS = {
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}


@lru_cache(maxsize=64)
def format_automaton(name: str) -> Automaton:
    """The texts of a format in ``FORMATS``."""
    return full_match(FORMATS[name], "a")
