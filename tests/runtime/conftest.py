"""Settings of all runtime tests."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tiny products gain nothing from threads, and lose much where cores are shared."""
    torch.set_num_threads(1)
