"""The real model, loaded once for all tests that need it."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def engine():
    """An engine on the default model."""
    import sglang_lite as sgl

    with sgl.Engine(dtype="float32") as engine:
        yield engine
