"""A server in a process of its own."""

from __future__ import annotations

import pytest

import sglang_lite as sgl
from tests.runtime.tiny import make_tiny_model


@sgl.function
def program(s):
    s += "abc" + sgl.gen("x", regex="[ab]{3}")


def test_a_runtime_serves_programs_and_ends(tmp_path):
    folder = make_tiny_model(tmp_path / "model")
    with sgl.Runtime(model_path=folder, max_total_tokens=4096) as runtime:
        state = program.run(backend=runtime, seed=1)
        assert set(state["x"]) <= set("ab")
        url = runtime.url
    with pytest.raises(sgl.BackendError, match="cannot reach"):
        sgl.RuntimeEndpoint(url, retries=0)


def test_a_server_that_cannot_start_is_an_error():
    with pytest.raises(sgl.BackendError, match="ended with status"):
        sgl.Runtime(model_path="no/such/folder", launch_timeout=60)
