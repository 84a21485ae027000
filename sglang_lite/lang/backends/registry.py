"""Which backend a program runs on: the one given, the default one, or a default engine."""

from __future__ import annotations

import threading
from typing import Any

from sglang_lite.errors import InvalidRequest
from sglang_lite.lang.backends.base import Backend

_lock = threading.Lock()
_default: Any = None


def set_default_backend(backend: Any) -> None:
    """Use ``backend`` (an Engine, a Runtime, a RuntimeEndpoint...) wherever none is given.

    None goes back to an engine on the default model, made at the first run that needs it.
    """
    global _default
    if backend is not None:
        as_backend(backend)
    with _lock:
        _default = backend


def as_backend(backend: Any) -> Backend:
    """``backend`` as the interpreter wants it; raises :class:`InvalidRequest` for anything else."""
    if isinstance(backend, Backend):
        return backend
    if isinstance(getattr(backend, "endpoint", None), Backend):
        return backend.endpoint
    if hasattr(backend, "asubmit"):
        from sglang_lite.lang.backends.engine import EngineBackend

        return EngineBackend(backend)
    raise InvalidRequest("backend", backend, "an Engine, a Runtime, an endpoint or a Backend")


def current_backend(backend: Any = None) -> Backend:
    """The given backend, else the default one, else a new engine on the default model."""
    global _default
    if backend is None:
        backend = _default
    if backend is None:
        with _lock:
            if _default is None:
                import sglang_lite

                _default = sglang_lite.Engine()
            backend = _default
    return as_backend(backend)


def has_backend() -> bool:
    """True where a default backend was set or made."""
    return _default is not None
