"""Other people's clients against our server; each file is skipped where its client is missing.

Two servers: ``live`` has a model double that writes a given text, so that answers can be compared;
``real`` has the default model, for what only a real model and its tokenizer show.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from sglang_lite.errors import EngineError
from tests.server.live import Live, serving
from tests.server.scripted import Script, ScriptedEngine
from tests.server.typist import typist_engine

# Some clients look for news, or send some, when they are imported.
os.environ.update(
    {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
)


@pytest.fixture(scope="package")
def server() -> Iterator[Live]:
    with serving(typist_engine(), served_model_name="toy") as live:
        yield live


@pytest.fixture
def live(server: Live) -> Iterator[Live]:
    """A server whose model writes ``engine.typist.text``; sound after each test."""
    server.engine.typist.text, server.engine.typist.habit = "Hello", " "
    yield server
    server.engine.check()


@pytest.fixture(scope="package")
def failing() -> Iterator[Live]:
    """A server whose engine fails in the middle of each answer."""
    with serving(ScriptedEngine(Script(("Hel",), fail=EngineError("out of luck")))) as live:
        yield live


@pytest.fixture(scope="package")
def real() -> Iterator[Live]:
    """A server with the default model."""
    from sglang_lite.runtime.engine import Engine

    with serving(Engine(None), served_model_name="smollm2") as live:
        yield live
