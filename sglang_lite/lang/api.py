"""The language's functions that act on a backend rather than on a state."""

from __future__ import annotations

from typing import Any

from sglang_lite.errors import NotSupported
from sglang_lite.lang.backends.registry import current_backend, has_backend
from sglang_lite.lang.loop import block_on


def flush_cache(backend: Any = None, empty_cache: bool = True) -> bool:
    """Forget the backend's cached prefixes; False where there is no backend or it is busy.

    ``empty_cache`` is SGLang's: memory is given up with the prefixes, so only True is accepted.
    """
    if empty_cache is not True:
        raise NotSupported("flush_cache(empty_cache=False): nothing is kept that could stay")
    if backend is None and not has_backend():
        return False
    return block_on(current_backend(backend).flush_cache)


def get_server_info(backend: Any = None) -> dict[str, Any] | None:
    """What the backend tells about itself; None where there is no backend."""
    if backend is None and not has_backend():
        return None
    return block_on(current_backend(backend).server_info)
