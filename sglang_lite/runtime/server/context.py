"""What the routes share: the engine once it is loaded, the settings and the server's state."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fastapi import Request

from sglang_lite.runtime.server.config import ServerConfig
from sglang_lite.runtime.server.errors import ApiError, overloaded
from sglang_lite.runtime.server.logprobs import TokenTexts
from sglang_lite.runtime.server.metrics import Metrics

if TYPE_CHECKING:
    from sglang_lite.runtime.engine import Engine

logger = logging.getLogger("sglang_lite.server")


class ServerContext:
    """One per server, at ``app.state.server``.

    ``phase`` is ``loading`` until :meth:`attach`, ``draining`` after the first signal.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.phase: Literal["loading", "ready", "draining"] = "loading"
        self.started = time.time()
        self.json_style = config.json_style
        self.model_name = ""
        self.model_path = ""
        self.metrics = Metrics()
        self.running: set[str] = set()
        self.viewers = 0
        self._engine: Engine | None = None
        self._texts: TokenTexts | None = None
        self._warned: set[str] = set()

    def attach(self, engine: Engine, model_path: str) -> None:
        """The engine is loaded: from now on requests are served."""
        self._engine = engine
        self._texts = TokenTexts(engine.tokenizer)
        self.model_path = model_path
        self.model_name = engine.served_model_name or Path(model_path).name
        self.metrics.attach(engine, self.model_name)
        if self.phase == "loading":
            self.phase = "ready"

    @property
    def loaded_engine(self) -> Engine | None:
        """The engine, or None while it loads."""
        return self._engine

    @property
    def engine(self) -> Engine:
        """The engine; a 503 while it loads."""
        if self._engine is None:
            raise overloaded("The model is still loading.", "model_loading", 2)
        return self._engine

    @property
    def texts(self) -> TokenTexts:
        """Texts and bytes of single tokens."""
        if self._texts is None:
            raise overloaded("The model is still loading.", "model_loading", 2)
        return self._texts

    def admit(self) -> Engine:
        """The engine, for new work; a 503 while it loads or drains."""
        if self.phase == "draining":
            raise overloaded("The server is shutting down.", "shutting_down", 5)
        return self.engine

    def stuck_for(self) -> float:
        """Seconds that the engine has had work without finishing a step; 0 while it loads."""
        if self._engine is None:
            return 0.0
        return float(self._engine.stats().get("seconds_since_step", 0.0))

    @property
    def healthy(self) -> bool:
        """False once the engine has hung for longer than the watchdog allows."""
        return self.stuck_for() < self.config.watchdog_timeout

    def check_model(self, name: str | None) -> None:
        """404 for a model that is not served here."""
        if name in (None, "", "default", self.model_name) or self.config.accept_any_model:
            return
        raise ApiError(
            404,
            f"The model {str(name)[:200]!r} is not served here; available: {self.model_name!r}.",
            code="model_not_found",
            param="model",
        )

    def note_ignored(self, fields: tuple[str, ...]) -> dict[str, str]:
        """Warn once per ignored field; the header that tells the client."""
        for name in fields:
            if name not in self._warned and len(self._warned) < 100:
                self._warned.add(name)
                logger.warning("field %r has no effect here and is ignored", name[:64])
        shown = ",".join(name for name in fields if name.isascii() and name.isidentifier())
        return {"x-ignored-fields": shown[:500]} if shown else {}


def server_of(request: Request) -> ServerContext:
    """The server that a request came to."""
    server: ServerContext = request.app.state.server
    return server
