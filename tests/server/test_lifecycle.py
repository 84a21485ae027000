"""Loading, leaving clients, full queues, failures in mid-stream, shutting down."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import socket
import threading
import time

import httpx
import openai
import pytest

from sglang_lite.errors import EngineError, ModelNotFound
from tests.server.live import Live, error_of, hello, serving
from tests.server.scripted import Script, ScriptedEngine
from tests.waiting import wait_for


# gpustack#6203
def test_the_port_answers_before_the_model_is_loaded() -> None:
    loaded = threading.Event()
    engine = ScriptedEngine()

    def load() -> tuple[object, str]:
        loaded.wait(10)
        return engine, "toy"

    with serving(engine, load, wait=False) as live:
        assert live.http.get("/health").status_code == 200
        for method, path in (("GET", "/ready"), ("GET", "/v1/models"), ("GET", "/get_model_info")):
            response = live.http.request(method, path)
            assert error_of(response, 503)["code"] == "model_loading"
            assert int(response.headers["retry-after"]) > 0
        assert error_of(live.chat(), 503)["code"] == "model_loading"
        loaded.set()
        wait_for(lambda: live.http.get("/ready").status_code == 200)
        assert live.chat().status_code == 200


def test_a_model_that_cannot_be_loaded_ends_the_server() -> None:
    def load() -> tuple[object, str]:
        raise ModelNotFound("no model at 'x'")

    with pytest.raises(ModelNotFound, match="no model"), serving(load=load):
        pass


def test_a_busy_port_is_refused_at_once(live: Live) -> None:
    from sglang_lite.runtime.server.ports import bind

    port = httpx.URL(live.url).port
    with pytest.raises(OSError, match="in use"):
        bind("127.0.0.1", port)


# omlx#1884
def test_health_fails_when_the_engine_hangs() -> None:
    with serving(watchdog_timeout=5) as live:
        live.engine.step_age = 4.0
        assert live.http.get("/health").status_code == 200
        live.engine.step_age = 6.0
        for path in ("/health", "/ready"):
            assert error_of(live.http.get(path), 503)["code"] == "engine_stuck"


def test_health_generate(live: Live) -> None:
    assert live.http.get("/health_generate").status_code == 200
    assert live.engine.requests[0].sampling_params.max_new_tokens == 1


def leave(live: Live, path: str, body: dict, after: int) -> None:
    """Send a request, read ``after`` bytes of the answer, hang up."""
    url = httpx.URL(live.url)
    with socket.create_connection((url.host, url.port), timeout=10) as sock:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        sock.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        if after:
            while after > 0:
                after -= len(sock.recv(4096))
        else:
            wait_for(lambda: bool(live.engine.live))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/generate"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_leaves_is_aborted(live: Live, path: str, stream: bool, n: int) -> None:
    live.engine.script = Script(gate=threading.Event())
    body = {"text": "a", "sampling_params": {"n": n}, "stream": stream}
    if path != "/generate":
        body = {"messages": hello(), "n": n, "stream": stream}
    leave(live, path, body, after=200 if stream else 0)
    assert live.engine.wait_idle()
    assert live.engine.aborted
    live.engine.script = Script()
    assert live.chat().status_code == 200


def test_a_client_that_leaves_a_list_is_aborted(live: Live) -> None:
    live.engine.script = Script(gate=threading.Event())
    leave(live, "/generate", {"text": ["a", "b", "c"], "stream": True}, after=600)
    assert live.engine.wait_idle()
    assert len(set(live.engine.aborted)) == 3


def test_a_client_that_leaves_while_its_grammar_compiles() -> None:
    with serving() as live:
        live.engine.compiling = threading.Event()
        url = httpx.URL(live.url)
        connection = http.client.HTTPConnection(url.host, url.port, timeout=10)
        body = json.dumps({"messages": hello(), "regex": "a+"})
        connection.request(
            "POST", "/v1/chat/completions", body, {"content-type": "application/json"}
        )
        time.sleep(0.1)
        connection.close()
        time.sleep(0.1)
        live.engine.compiling.set()
        time.sleep(0.1)
        assert live.engine.wait_idle()
        assert live.process.server.running == set()
        assert not live.engine.requests


def test_a_full_queue_is_a_503_with_retry_after() -> None:
    with serving(ScriptedEngine(max_queued=1)) as live:
        live.engine.script = Script(gate=threading.Event())
        body = {"text": "a", "stream": True}
        with live.http.stream("POST", "/generate", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            for stream in (False, True):
                refused = live.chat(stream=stream)
                assert error_of(refused, 503)["code"] == "queue_full"
                assert refused.headers["retry-after"] == "1"
        assert live.engine.wait_idle()
        assert 'num_rejected_requests_total{reason="queue_full"} 2.0' in (
            live.http.get("/metrics").text
        )


def test_a_list_of_which_the_last_is_refused_leaves_nothing_running() -> None:
    with serving(ScriptedEngine(max_queued=2)) as live:
        live.engine.script = Script(gate=threading.Event())
        error_of(live.post("/generate", text=["a", "b", "c"]), 503)
        assert live.engine.wait_idle()


# any-llm#847, vllm-mlx#302, preloop#117
def test_a_failure_in_mid_stream_is_an_event_and_then_done(live: Live) -> None:
    live.engine.script = Script(fail=EngineError("the sampler broke"))
    *events, failure, done = live.chat_events()
    assert done == "[DONE]"
    assert json.loads(events[-1])["choices"][0]["delta"] == {"content": "lo"}
    error = json.loads(failure)["error"]
    assert error["type"] == "server_error"
    assert "the sampler broke" in error["message"]
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none")
    with pytest.raises(openai.APIError, match="sampler"):
        list(client.chat.completions.create(model="toy", messages=hello(), stream=True))
    *_, failure, done = live.events("/generate", text="a")
    assert "error" in json.loads(failure)
    live.engine.script = Script()
    assert live.chat().status_code == 200


def test_a_failure_before_the_answer_is_a_500_without_retry(live: Live) -> None:
    live.engine.script = Script(fail=EngineError("the sampler broke"))
    response = live.chat()
    error_of(response, 500)
    assert response.headers["x-should-retry"] == "false"


def test_unforeseen_failures_do_not_leak(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(live.engine.tokenizer, "apply_chat_template", broken)
    response = live.chat()
    assert error_of(response, 500)["code"] == "internal_error"
    assert "secret" not in response.text


def test_aborted_chats_are_an_error(live: Live) -> None:
    live.engine.script = Script(gate=threading.Event())
    body = {"messages": hello(), "stream": True, "rid": "mine"}
    with live.http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        live.post("/abort_request", abort_all=True)
        *_, failure, done = [line[6:] for line in lines if line.startswith("data: ")]
    assert json.loads(failure)["error"]["code"] == "request_aborted"
    assert done == "[DONE]"


def test_time_limits(live: Live) -> None:
    live.engine.script = Script(gate=threading.Event())
    error = error_of(live.chat(timeout=0.1), 504)
    assert error["code"] == "request_timeout"
    *_, failure, done = live.chat_events(timeout=0.1)
    assert json.loads(failure)["error"]["code"] == "request_timeout"
    assert done == "[DONE]"
    assert live.engine.wait_idle()


def test_keep_alive_comments() -> None:
    with serving(sse_keep_alive_interval=0.05) as live:
        gate = threading.Event()
        live.engine.script = Script(gate=gate)
        threading.Timer(0.3, gate.set).start()
        body = {"messages": hello(), "stream": True}
        text = live.http.post("/v1/chat/completions", json=body).text
        assert text.count(": keep-alive\n\n") >= 2
        assert text.endswith("data: [DONE]\n\n")


def test_draining_finishes_what_runs_and_refuses_what_comes() -> None:
    gate = threading.Event()
    engine = ScriptedEngine(Script(gate=gate))
    with serving(engine) as live:
        body = {"messages": hello(), "stream": True}
        with live.http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            live.process.stop()
            other = httpx.Client(base_url=live.url, trust_env=False)
            wait_for(lambda: other.get("/ready").status_code != 200)
            refused = other.post("/v1/chat/completions", json={"messages": hello()})
            assert error_of(refused, 503)["code"] == "shutting_down"
            assert other.get("/health").status_code == 200
            gate.set()
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason":"stop"' in rest[-2]
    assert engine.closed


def test_draining_aborts_what_takes_too_long() -> None:
    engine = ScriptedEngine(Script(gate=threading.Event()))
    with serving(engine, shutdown_timeout=0.1) as live:
        body = {"messages": hello(), "stream": True}
        with live.http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            live.process.stop()
            *_, failure, done = [line[6:] for line in lines if line.startswith("data: ")]
        assert json.loads(failure)["error"]["code"] == "shutting_down"
        assert done == "[DONE]"


def test_one_log_line_per_request_without_its_text(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="sglang_lite.server"):
        live.chat(messages=hello("my secret"))
        time.sleep(0.05)
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "finish=stop" in line]) == 1
    assert not any("secret" in line or "Hello" in line for line in lines)


def test_a_client_that_leaves_before_the_first_byte_of_a_stream(live: Live) -> None:
    """The source of the events has not started then, so only the response can free the request."""
    from sglang_lite.runtime.server.stream import EventStream

    async def source():
        yield b""

    closed: list[bool] = []
    response = EventStream(source(), close=lambda: closed.append(True))

    async def receive() -> dict:
        return {"type": "http.disconnect"}

    async def send(message: dict) -> None:
        await asyncio.sleep(1)

    asyncio.run(response({"type": "http"}, receive, send))
    assert closed == [True]
