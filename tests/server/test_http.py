"""HTTP itself, byte by byte: broken requests, framing that others may read differently, clients
that stop in the middle."""

from __future__ import annotations

import json
import logging
import socket
import time

import httpx
import pytest

from tests.server.live import Live, hello, serving
from tests.server.scripted import Script, ScriptedEngine

BODY = json.dumps({"messages": hello()}).encode()
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
HOST = b"Host: localhost\r\n"
CLOSE = b"Connection: close\r\n"


def connect(live: Live) -> socket.socket:
    url = httpx.URL(live.url)
    return socket.create_connection((url.host, url.port), timeout=10)


def post(headers: bytes, body: bytes = BODY) -> bytes:
    line = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    return line + b"Content-Type: application/json\r\n" + headers + b"\r\n" + body


def exchange(live: Live, data: bytes) -> bytes:
    """Send ``data``, read until the server closes."""
    with connect(live) as sock:
        sock.sendall(data)
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
    return answer


def parsed(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    line, *fields = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (f.partition(": ") for f in fields)}
    return int(line.split()[1]), headers, body


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"GE\0T / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: other\r\n\r\n",
        post(LENGTH + b"Content-Length: 5\r\n"),
        post(b"Content-Length: -5\r\n"),
        post(b"Content-Length: +5\r\n"),
        post(b"Transfer-Encoding: xchunked\r\n", CHUNKED),
        post(b"Transfer-Encoding: gzip, chunked\r\n", CHUNKED),
        post(b"Transfer-Encoding : chunked\r\n", CHUNKED),
        post(b"Transfer-Encoding: chunked\r\n", b"zz\r\nabc\r\n0\r\n\r\n"),
        post(b"Transfer-Encoding: chunked\r\n", b"-5\r\nabc\r\n0\r\n\r\n"),
        post(b"X-A: a\x0bb\r\n" + LENGTH),
    ],
)
def test_broken_requests_get_the_error_object_and_are_cut_off(live: Live, data: bytes) -> None:
    status, headers, body = parsed(exchange(live, data))
    assert status == 400
    assert headers["connection"] == "close"
    assert headers["x-request-id"]
    error = json.loads(body)["error"]
    assert error["code"] == "invalid_http"
    assert error["type"] == "invalid_request_error"
    assert live.chat().status_code == 200


def test_a_request_with_two_framings_is_refused_and_hides_no_other(live: Live) -> None:
    """Length and chunks at once: a proxy before us may believe the other one."""
    hidden = b"0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = exchange(live, post(b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", hidden))
    assert answer.count(b"HTTP/1.1") == 1
    status, _, body = parsed(answer)
    assert status == 400
    assert json.loads(body)["error"]["code"] == "invalid_http"


def test_well_formed_requests_in_rarer_shapes(live: Live) -> None:
    for headers, body in (
        (b"Transfer-Encoding: chunked\r\n", CHUNKED),
        (b"Expect: 100-continue\r\n" + LENGTH, BODY),
        (b"Content-Encoding: identity\r\n" + LENGTH, BODY),
    ):
        answer = exchange(live, post(headers + CLOSE, body))
        assert b'"content":"Hello"' in answer
    old = b"POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
    status, _, body = parsed(exchange(live, old + HOST + LENGTH + b"\r\n" + BODY))
    assert status == 200
    assert json.loads(body)["choices"][0]["message"]["content"] == "Hello"
    two = exchange(live, post(LENGTH) + post(LENGTH + CLOSE))
    assert two.count(b'"content":"Hello"') == 2


def test_big_headers(live: Live) -> None:
    for data in (
        post(b"X-A: " + b"a" * 100_000 + b"\r\n" + LENGTH),
        post(b"".join(b"X-%d: %s\r\n" % (i, b"a" * 90) for i in range(1000)) + LENGTH),
    ):
        status, headers, body = parsed(exchange(live, data))
        assert (status, json.loads(body)["error"]["code"]) in (
            (431, "headers_too_large"),
            (400, "invalid_http"),
        )
        assert headers["connection"] == "close"
    assert live.chat().status_code == 200


def test_headers_without_end_are_cut_off(live: Live) -> None:
    with connect(live) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        with pytest.raises(OSError):  # noqa: PT012 (the server may close at any line)
            for _ in range(10_000):
                sock.sendall(b"X-More: and more and more\r\n")
                time.sleep(0.0001)
            assert sock.recv(1000)
            raise ConnectionResetError


def test_compressed_bodies_are_refused(live: Live) -> None:
    status, _, body = parsed(exchange(live, post(b"Content-Encoding: gzip\r\n" + LENGTH + CLOSE)))
    assert status == 415
    assert json.loads(body)["error"]["code"] == "unsupported_media_type"


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/metrics", "/ui"])
def test_head_is_get_without_its_body(live: Live, path: str) -> None:
    head, full = live.http.head(path), live.http.get(path)
    assert head.status_code == full.status_code == 200
    assert head.content == b""
    if path != "/metrics":
        assert head.headers["content-length"] == full.headers["content-length"]


@pytest.mark.parametrize("host", ["localhost:80@evil", "localhost:8x", "[::1", "a/localhost", ""])
def test_what_is_no_host(live: Live, host: str) -> None:
    data = f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
    status, _, body = parsed(exchange(live, data))
    assert status == 403
    assert json.loads(body)["error"]["code"] == "host_not_allowed"


@pytest.mark.parametrize("origin", ["http://[", "null", "http://evil", "//localhost"])
def test_what_is_no_origin_of_ours(live: Live, origin: str) -> None:
    response = live.http.get("/v1/models", headers={"origin": origin})
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "origin_not_allowed"


def test_a_client_that_leaves_in_its_body_is_no_failure_of_ours(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for headers in (b"Content-Length: 1000\r\n", b"Transfer-Encoding: chunked\r\n"):
            with connect(live) as sock:
                sock.sendall(post(headers, b"3e8\r\n" + BODY))
                time.sleep(0.05)
        time.sleep(0.1)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert 'status="499"' in live.http.get("/metrics").text
    assert live.engine.requests == []


def test_what_waits_for_a_reader_is_sent_together() -> None:
    """Chunks cost; a client that is slower than the model gets fewer and longer ones."""
    engine = ScriptedEngine(Script(("a", "b", "c", "d")))
    engine.waits_for_readers = False
    with serving(engine) as live:
        for body in ({"n": 2}, {"n": 1, "logprobs": True}):
            *events, done = live.chat_events(**body)
            assert done == "[DONE]"
            choices = [choice for event in events for choice in json.loads(event)["choices"]]
            for index in range(body["n"]):
                own = [choice for choice in choices if choice["index"] == index]
                assert "".join(choice["delta"].get("content", "") for choice in own) == "abcd"
                assert own[-1]["finish_reason"] == "stop"
                if "logprobs" in body:
                    entries = [e for c in own if c["logprobs"] for e in c["logprobs"]["content"]]
                    assert [entry["token"] for entry in entries] == list("abcd")
