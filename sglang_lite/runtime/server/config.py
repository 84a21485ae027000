"""The HTTP server's options, each written once; everything about the model is the engine's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from sglang_lite.runtime.options import Option, check_options, described, texts

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HTTP, JSON = "HTTP", "Generated JSON"
SEPARATORS = (", ", ": ")
"""What most JSON that models have read looks like, and what the language writes."""


@dataclass(frozen=True)
class JsonStyle:
    """How generated JSON is kept from running away, beyond what its schema says.

    ``max_whitespace`` bounds every gap (None: the constraint's own bound); ``separators`` fix the
    layout of a request that says nothing about it; ``max_digits`` caps the digits of numbers that
    the schema leaves unbounded (None: no cap).
    """

    max_whitespace: int | None = None
    max_digits: int | None = None
    separators: tuple[str, str] | None = None


@dataclass(frozen=True)
class ServerConfig:
    """How the HTTP server behaves; command line and environment are made of these fields.

    Raises :class:`InvalidRequest` for values outside their range.
    """

    host: Annotated[str, Option("Address to listen on.", HTTP)] = "127.0.0.1"
    port: Annotated[int, Option("0 takes a free one.", HTTP, low=0, below=65_536)] = 30_000
    api_key: Annotated[
        str, Option("Demanded of every route but /health and /ready; empty: none.", HTTP)
    ] = ""
    allowed_hosts: Annotated[
        Sequence[str] | str,
        Option("More values of the Host header, comma-separated; * is any.", HTTP, names=True),
    ] = ()
    allowed_origins: Annotated[
        Sequence[str] | str,
        Option("Web pages that may call, comma-separated; * is any.", HTTP, names=True),
    ] = ()
    max_body_size: Annotated[
        int, Option("Bytes of a request's body; larger ones are a 413.", HTTP, low=1)
    ] = 8 * 2**20
    receive_timeout: Annotated[
        float,
        Option(
            "Seconds in which a request must have arrived in full, then a 408; 0 = no limit.",
            HTTP,
            low=0,
        ),
    ] = 60.0
    send_timeout: Annotated[
        float,
        Option(
            "Seconds that an answer waits for a client that reads nothing, then the connection "
            "is closed; 0 = no limit.",
            HTTP,
            low=0,
        ),
    ] = 300.0
    request_timeout: Annotated[
        float, Option("Seconds that one request may take, then a 504; 0 = no limit.", HTTP, low=0)
    ] = 0.0
    shutdown_timeout: Annotated[
        float, Option("Seconds that running requests get after the first signal.", HTTP, low=0)
    ] = 30.0
    watchdog_timeout: Annotated[
        float,
        Option(
            "Seconds without a finished step, with work waiting, until /health fails.",
            HTTP,
            above=0,
        ),
    ] = 300.0
    sse_keep_alive_interval: Annotated[
        float, Option("Seconds of silence until a stream sends a comment; 0 = never.", HTTP, low=0)
    ] = 15.0
    allow_unknown_fields: Annotated[
        bool, Option("Ignore request fields that nobody knows, instead of refusing them.", HTTP)
    ] = False
    accept_any_model: Annotated[
        bool, Option("Serve any value of `model`, instead of refusing foreign ones.", HTTP)
    ] = False
    ui: Annotated[
        bool | None,
        Option(
            "Serve /ui and its feed; by default only on a loopback address.",
            HTTP,
            flags=("--ui/--no-ui",),
        ),
    ] = None
    constrained_json_max_whitespace_cnt: Annotated[
        int | None,
        Option(
            "Longest run of whitespace in any place; without a number, one space after each comma "
            "and colon and none elsewhere.",
            JSON,
            low=0,
        ),
    ] = None
    constrained_json_disable_any_whitespace: Annotated[
        bool, Option("No whitespace at all.", JSON)
    ] = False
    constrained_json_max_digits: Annotated[
        int, Option("Digits of numbers that a schema leaves unbounded; 0 = no cap.", JSON, low=0)
    ] = 40

    def __post_init__(self) -> None:
        check_options(self, described(ServerConfig))
        for name in ("allowed_hosts", "allowed_origins"):
            object.__setattr__(self, name, texts(getattr(self, name)))

    @property
    def loopback(self) -> bool:
        """True where no other machine can reach the server."""
        return self.host in LOOPBACK

    @property
    def shows_ui(self) -> bool:
        """Whether ``/ui`` is served."""
        return self.loopback if self.ui is None else self.ui

    @property
    def json_style(self) -> JsonStyle:
        """The layout of generated JSON where a request leaves it open.

        One layout, unless an option asks for gaps: the keys are then forced token by token.
        """
        whitespace = self.constrained_json_max_whitespace_cnt
        if self.constrained_json_disable_any_whitespace:
            whitespace = 0
        # Small models like to write zeros for ever.
        digits = self.constrained_json_max_digits or None
        return JsonStyle(whitespace, digits, SEPARATORS if whitespace is None else None)
