"""Other people's clients against our server; each file is skipped where its client is missing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.live import Live, serving
from tests.server.typist import typist_engine


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with serving(typist_engine(), served_model_name="toy") as live:
        yield live


@pytest.fixture
def live(server: Live) -> Live:
    """A server whose model writes ``engine.typist.text``."""
    server.engine.typist.text, server.engine.typist.habit = "Hello", " "
    return server
