"""The listening socket, and who has it if we cannot."""

from __future__ import annotations

import os
import socket
from pathlib import Path

_LISTENING = "0A"


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises :class:`OSError` at once where the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(2048)
    except OSError:
        sock.close()
        raise
    return sock


def url_of(sock: socket.socket) -> str:
    """Where a bound socket is reached from this machine."""
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def owner_of(port: int) -> str:
    """The process that listens on ``port``, as far as Linux tells us; "" if unknown."""
    wanted = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not wanted:
        return ""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = {os.readlink(link) for link in (process / "fd").iterdir()}
            if wanted & links:
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                return f"process {process.name} ({command.strip()[:100]})"
        except OSError:
            continue  # another user's process, or one that has just ended
    return ""


def _listening_inodes(port: int) -> set[str]:
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            local_port = int(fields[1].rpartition(":")[2], 16)
            if fields[3] == _LISTENING and local_port == port:
                found.add(fields[9])
    return found
