from collections.abc import Iterator

import pytest

from tests.server.live import Live, serving
from tests.server.scripted import Script, ScriptedEngine


@pytest.fixture(scope="module")
def shared() -> Iterator[Live]:
    """One server for all tests of a module."""
    with serving(ScriptedEngine()) as live:
        yield live


@pytest.fixture
def live(shared: Live) -> Live:
    """The module's server with the default script and no memory of earlier tests."""
    assert shared.engine.wait_idle()
    shared.engine.script = Script()
    shared.engine.requests.clear()
    shared.engine.aborted.clear()
    return shared
