"""The server's own settings; everything about the model is the engine's."""

from __future__ import annotations

from dataclasses import dataclass

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ServerConfig:
    """How the HTTP server behaves.

    * ``host``, ``port``: where it listens; port 0 takes a free one.
    * ``served_model_name``: the name in ``/v1/models``; "" = the model folder's name.
    * ``api_key``: demanded of every route but ``/health`` and ``/ready``; "" = none.
    * ``allowed_hosts``, ``allowed_origins``: further values of the ``Host`` and ``Origin``
      headers to accept; "*" accepts any.
    * ``max_body_bytes``: larger bodies are a 413.
    * ``request_timeout``: seconds that one request may take; 0 = no limit.
    * ``shutdown_timeout``: seconds that running requests get after the first signal.
    * ``keep_alive_interval``: seconds of silence after which a stream sends a comment; 0 = never.
    * ``watchdog_timeout``: seconds without a finished engine step, with work waiting, after which
      ``/health`` fails.
    * ``json_max_whitespace``: cap of every whitespace gap in generated JSON; None = the
      constraint's own.
    * ``json_max_digits``: cap of the digits of numbers that a schema leaves unbounded, because
      small models like to write zeros for ever; None = no cap.
    * ``allow_unknown_fields``: ignore request fields that nobody knows, instead of refusing them.
    * ``accept_any_model``: serve any value of ``model``, instead of refusing foreign ones.
    * ``ui``: serve ``/ui`` and its feed; None = only on a loopback address.
    """

    host: str = "127.0.0.1"
    port: int = 30000
    served_model_name: str = ""
    api_key: str = ""
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = 8 * 2**20
    request_timeout: float = 0.0
    shutdown_timeout: float = 30.0
    keep_alive_interval: float = 15.0
    watchdog_timeout: float = 300.0
    json_max_whitespace: int | None = None
    json_max_digits: int | None = 40
    allow_unknown_fields: bool = False
    accept_any_model: bool = False
    ui: bool | None = None

    @property
    def loopback(self) -> bool:
        """True where no other machine can reach the server."""
        return self.host in LOOPBACK

    @property
    def shows_ui(self) -> bool:
        """Whether ``/ui`` is served."""
        return self.loopback if self.ui is None else self.ui
