"""Settings of all runtime tests."""

from collections.abc import Iterator

import pytest
import torch

from sglang_lite.runtime.engine import Engine
from tests.runtime import toy


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tiny products gain nothing from threads, and lose much where cores are shared."""
    torch.set_num_threads(1)


@pytest.fixture(params=[True, False], ids=["", "overlap"])
def both_schedules(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs a test without overlap and with it: nothing a caller sees may depend on that."""
    toy.DEFAULTS["disable_overlap_schedule"] = request.param
    yield
    toy.DEFAULTS.clear()


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine on the toy model, whose books are in order when the test is over."""
    with toy.toy_engine() as engine:
        yield engine
        engine.check()
