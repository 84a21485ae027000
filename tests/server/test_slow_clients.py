"""Clients that send or read slowly, or not at all, on real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from sglang_lite.runtime.server.http1 import QuietTransport
from tests.server.live import Live, hello, serving
from tests.server.scripted import Script, ScriptedEngine
from tests.server.test_http import BODY, CLOSE, LENGTH, connect, parsed, post
from tests.waiting import wait_for

HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
UNFINISHED = b"Content-Length: 1000\r\n"


@pytest.fixture(scope="module")
def impatient() -> Iterator[Live]:
    """A server that gives up after a quarter of a second."""
    with serving(receive_timeout=0.25, send_timeout=0.25) as live:
        yield live


def rest_of(sock: socket.socket) -> bytes:
    answer = b""
    while piece := sock.recv(65536):
        answer += piece
    return answer


@pytest.mark.parametrize(
    "sent",
    [
        HEAD,
        HEAD[:3],
        post(UNFINISHED, b"{"),
        post(b"Transfer-Encoding: chunked\r\n", b"5\r\n{"),
        post(b"Expect: 100-continue\r\n" + LENGTH, b""),
    ],
)
def test_a_request_that_never_ends_is_a_408(impatient: Live, sent: bytes) -> None:
    with connect(impatient) as sock:
        sock.sendall(sent)
        answer = rest_of(sock)
    # An interim "100 Continue" may stand before it.
    status, headers, body = parsed(answer[answer.rindex(b"HTTP/1.1") :])
    assert status == 408
    assert headers["connection"] == "close"
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("timeout_error", "receive_timeout")
    assert "0.25 s" in error["message"]
    assert impatient.engine.requests == []


def test_the_408_of_anthropics_route_has_its_shape(impatient: Live) -> None:
    data = post(UNFINISHED, b"{").replace(b"/v1/chat/completions", b"/v1/messages")
    with connect(impatient) as sock:
        sock.sendall(data)
        body = parsed(rest_of(sock))[2]
    assert json.loads(body)["type"] == "error"


def test_a_byte_now_and_then_buys_no_time(impatient: Live) -> None:
    start = time.monotonic()
    with connect(impatient) as sock:
        sock.sendall(post(UNFINISHED, b""))
        with pytest.raises(OSError):  # noqa: PT012 (closed, at one byte or another)
            while time.monotonic() < start + 5:
                sock.sendall(b" ")
                time.sleep(0.02)
    assert time.monotonic() - start < 3


def test_a_connection_that_says_nothing_is_closed_without_an_answer(impatient: Live) -> None:
    with connect(impatient) as sock:
        assert rest_of(sock) == b""


def test_the_clock_starts_anew_with_each_request(impatient: Live) -> None:
    """A kept connection may be idle for longer; its next request has the whole time."""
    request = post(LENGTH)
    with connect(impatient) as sock:
        for _ in range(2):
            sock.sendall(request[:40])
            time.sleep(0.15)
            sock.sendall(request[40:])
            answer = b""
            while not answer.endswith(b"}}}"):
                answer += sock.recv(65536)
            time.sleep(0.35)
        sock.sendall(HEAD)
        assert parsed(rest_of(sock))[0] == 408


def test_a_long_answer_is_no_slow_request() -> None:
    engine = ScriptedEngine(Script(("a", "b", "c"), pause=0.15))
    with serving(engine, receive_timeout=0.2) as live, connect(live) as sock:
        sock.sendall(post(LENGTH) + post(LENGTH + CLOSE))  # the second one waits for the first
        assert rest_of(sock).count(b'"content":"abc"') == 2


def test_without_limits_clients_have_all_the_time(live: Live) -> None:
    with serving(receive_timeout=0, send_timeout=0) as patient, connect(patient) as sock:
        sock.sendall(post(LENGTH + CLOSE, b""))
        time.sleep(0.3)
        sock.sendall(BODY)
        assert b'"content":"Hello"' in rest_of(sock)


def test_slow_senders_wait_alone(live: Live) -> None:
    """A body that comes byte by byte, and requests that never end, delay nobody."""
    unfinished = [connect(live) for _ in range(50)]
    for sock in unfinished:
        sock.sendall(post(b"Content-Length: 1000\r\n", b"{"))
    with connect(live) as sock:
        data = post(LENGTH + CLOSE)
        for place in range(0, len(data), 7):
            sock.sendall(data[place : place + 7])
        assert live.chat().status_code == 200
        assert b'"content":"Hello"' in rest_of(sock)
    for sock in unfinished:
        sock.close()


def stalled(live: Live, **body: object) -> socket.socket:
    """A client that asks for a stream and then reads nothing."""
    data = json.dumps({"messages": hello("long"), "stream": True, **body}).encode()
    sock = socket.socket()
    sock.settimeout(10)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    url = httpx.URL(live.url)
    sock.connect((url.host, url.port))
    sock.sendall(post(b"Content-Length: %d\r\n" % len(data) + CLOSE, data))
    return sock


def test_a_reader_that_stops_blocks_nobody_and_loses_nothing() -> None:
    long = Script(tuple("x" * 100 for _ in range(100)))
    engine = ScriptedEngine(lambda request, prompt: long if "long" in prompt else Script())
    engine.waits_for_readers = False
    with serving(engine) as live:
        with stalled(live, n=2, logprobs=True, top_logprobs=20) as sock:
            wait_for(lambda: bool(live.process.server.running) and not engine.live)
            # The engine is done with it although nobody reads; others are served meanwhile.
            for _ in range(5):
                assert live.chat().status_code == 200
            assert len(live.process.server.running) == 1
            answer = b""
            while piece := sock.recv(1 << 20):
                answer += piece
        texts = re.findall(rb'"delta":{"content":"(x+)"}', answer)
        assert sum(map(len, texts)) == 2 * 4096
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert len(answer) > 8_000_000
        assert live.process.server.running == set()


def test_a_reader_that_stops_and_leaves_is_aborted() -> None:
    script = Script(tuple("x" * 1000 for _ in range(5)), gate=threading.Event())
    engine = ScriptedEngine(script)
    with serving(engine) as live:
        with stalled(live, logprobs=True, top_logprobs=20):
            wait_for(lambda: bool(engine.live))
            time.sleep(0.1)
        assert engine.wait_idle()
        assert engine.aborted


def test_what_waits_for_a_reader_is_bounded() -> None:
    """Between the engine's text and the socket there is one chunk and one small buffer."""
    long = Script(tuple("x" * 100 for _ in range(40)))
    engine = ScriptedEngine(lambda request, prompt: long if "long" in prompt else Script())
    engine.waits_for_readers = False
    with serving(engine) as live:
        with stalled(live, n=4, logprobs=True, top_logprobs=20):
            connections = live.process._http.server_state.connections
            wait_for(lambda: any(c.flow.write_paused for c in connections))
            [stuck] = [c for c in connections if c.flow.write_paused]
            # A chunk holds what waited when it was made: at most one sample's whole answer.
            assert stuck.transport.get_write_buffer_size() < 6_000_000
        wait_for(lambda: not live.process.server.running)


def test_a_reader_that_never_reads_again_is_cut_off() -> None:
    long = Script(tuple("x" * 100 for _ in range(100)))
    engine = ScriptedEngine(lambda request, prompt: long if "long" in prompt else Script())
    engine.waits_for_readers = False
    with (
        serving(engine, send_timeout=0.25) as live,
        stalled(live, n=2, logprobs=True, top_logprobs=20),
    ):
        wait_for(lambda: bool(live.process.server.running))
        wait_for(lambda: not live.process.server.running)
        assert live.chat().status_code == 200


def test_a_slow_reader_is_not_cut_off() -> None:
    long = Script(tuple("x" * 100 for _ in range(30)))
    engine = ScriptedEngine(lambda request, prompt: long if "long" in prompt else Script())
    engine.waits_for_readers = False
    with serving(engine, send_timeout=1.0) as live:
        with stalled(live, logprobs=True, top_logprobs=20) as sock:
            answer = b""
            while piece := sock.recv(1 << 17):
                answer += piece
                time.sleep(0.02)
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_writes_to_a_broken_connection_are_dropped_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def write() -> None:
        ours, theirs = socket.socketpair()
        transport, _ = await asyncio.get_running_loop().create_connection(
            asyncio.Protocol, sock=ours
        )
        quiet = QuietTransport(transport)
        theirs.close()
        for _ in range(20):
            quiet.write(b"x" * 1000)
        assert quiet.is_closing()

    with caplog.at_level(logging.WARNING):
        asyncio.run(write())
    assert caplog.records == []
