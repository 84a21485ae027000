"""Waiting for what another thread or process does, on machines that are busy with other things."""

from __future__ import annotations

import time
from collections.abc import Callable


def comes_true(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """True as soon as ``condition`` holds; False if it does not come to it in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Return once ``condition`` holds; fails if it does not come to it in time."""
    assert comes_true(condition, seconds), "it did not happen in time"
