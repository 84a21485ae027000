"""The compiler of constraints, made when somebody wants one, or in a while."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING

from sglang_lite.errors import SglangLiteError
from sglang_lite.runtime.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sglang_lite.constrained import GrammarCompiler

log = logging.getLogger("sglang_lite")

SECONDS = 5.0
"""So long after the start the compiler is made unasked."""


class LateCompiler:
    """A compiler and the tables that most JSON needs, for a tokenizer's vocabulary.

    Reading a vocabulary takes tenths of a second of Python, which would compete with the loading
    and the first tokens; a program without constraints that ends soon never pays for it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._compiler: GrammarCompiler | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(SECONDS, self._make_unasked)
        self._timer.name, self._timer.daemon = "sglang-lite-tables", True

    def start(self) -> None:
        """From now on the time counts after which the compiler is made in another thread."""
        self._timer.start()

    def stop(self) -> None:
        """Make none unless asked; idempotent."""
        self._timer.cancel()

    def get(self) -> GrammarCompiler:
        """The compiler; who asks first makes it, others wait.

        Raises :class:`UnsupportedModel` for tokenizers whose tokens have no fixed bytes.
        """
        with self._lock:
            if self._compiler is None:
                from sglang_lite.constrained import GrammarCompiler

                made = self._compiler = GrammarCompiler(self._tokenizer.vocabulary)
                name = "sglang-lite-json-tables"
                threading.Thread(target=_prepare, args=(made,), name=name, daemon=True).start()
        return self._compiler

    def _make_unasked(self) -> None:
        # Whoever comes with a constraint is told.
        with contextlib.suppress(SglangLiteError):
            self.get()


def _prepare(compiler: GrammarCompiler) -> None:
    try:
        compiler.prepare()
    except Exception:
        log.exception("the tables for JSON could not be made beforehand")
