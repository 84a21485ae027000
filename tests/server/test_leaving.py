"""Clients that leave a real engine in each state a request can be in: its slots are free long
before it would have ended, and what others asked for is not disturbed."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.live import Live, hello, serving
from tests.server.typist import typist_engine
from tests.waiting import comes_true, wait_for

PROMPT = hello("word " * 60)
SOON = 4.0
"""Seconds; 300 tokens take six."""


@pytest.fixture(scope="module")
def slow() -> Iterator[Live]:
    """Four requests run at a time, a prompt takes many steps, and each step takes a while."""
    engine = typist_engine(
        max_total_tokens=2048, max_running_requests=4, chunked_prefill_size=16, context_length=1024
    )
    engine.typist.text = "x" * 900
    forward = engine.typist.forward

    def slowly(batch: Any) -> Any:
        time.sleep(0.02)
        return forward(batch)

    engine.typist.forward = slowly
    with serving(engine) as live:
        yield live


def send(live: Live, path: str, **body: Any) -> socket.socket:
    url, data = httpx.URL(live.url), json.dumps(body).encode()
    sock = socket.create_connection((url.host, url.port), timeout=10)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    sock.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return sock


def is_free(live: Live) -> bool:
    stats = live.engine.stats()
    busy = stats["num_running_reqs"] + stats["num_queue_reqs"] + stats["kv_used_tokens"]
    return not busy and not live.process.server.running


def states(live: Live) -> list[dict[str, Any]]:
    shot = live.engine.snapshot(1)
    return [*shot["running"], *shot["waiting"]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 4])
def test_while_the_prompt_is_computed(slow: Live, stream: bool, n: int) -> None:
    sock = send(slow, "/v1/chat/completions", messages=PROMPT, stream=stream, n=n)
    wait_for(lambda: any(0 < r["computed_tokens"] < r["prompt_tokens"] for r in states(slow)))
    sock.close()
    assert comes_true(lambda: is_free(slow), SOON)
    slow.engine.check()


# sglang#36552, sglang#37833, ATOM#1441, vllm#54947
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/generate"])
def test_while_tokens_come(slow: Live, path: str, stream: bool, n: int) -> None:
    body: dict[str, Any] = {"messages": hello(), "n": n, "ignore_eos": True}
    if path == "/generate":
        body = {"text": "a", "sampling_params": {"n": n, "max_new_tokens": 900, "ignore_eos": True}}
    elif path == "/v1/responses":
        body = {"input": "hi"}
    sock = send(slow, path, stream=stream, **body)
    wait_for(lambda: any(r["completion_tokens"] > 2 for r in states(slow)))
    sock.close()
    assert comes_true(lambda: is_free(slow), SOON)
    slow.engine.check()


def test_while_it_waits_in_the_queue(slow: Live) -> None:
    """Four run; the fifth leaves, then the others."""
    body = {"messages": hello(), "ignore_eos": True, "max_tokens": 300}
    running = [send(slow, "/v1/chat/completions", **body, stream=True) for _ in range(4)]
    wait_for(lambda: slow.engine.stats()["num_running_reqs"] == 4)
    waiting = send(slow, "/v1/chat/completions", **body)
    wait_for(lambda: slow.engine.stats()["num_queue_reqs"] == 1)
    waiting.close()
    assert comes_true(lambda: slow.engine.stats()["num_queue_reqs"] == 0, SOON)
    assert slow.engine.stats()["num_running_reqs"] == 4
    assert len(slow.process.server.running) == 4
    for sock in running:
        sock.close()
    assert comes_true(lambda: is_free(slow), SOON)
    slow.engine.check()


def test_in_the_middle_of_many_decisions(slow: Live) -> None:
    choices = [{"value": "a"}, {"value": "b"}]
    questions = [
        {"type": "choice", "instructions": f"Is it {i}?", "choices": choices} for i in range(100)
    ]
    sock = send(slow, "/v1/decisions", input="word " * 20, questions=questions)
    wait_for(lambda: slow.engine.stats()["num_running_reqs"] > 0)
    sock.close()
    assert comes_true(lambda: is_free(slow), SOON)
    time.sleep(0.1)
    assert is_free(slow), "the next questions were asked although nobody waits"


def test_a_list_of_which_some_run_and_some_wait(slow: Live) -> None:
    params = {"max_new_tokens": 900, "ignore_eos": True}
    sock = send(slow, "/generate", text=[f"{i} a" for i in range(8)], sampling_params=params)
    wait_for(lambda: slow.engine.stats()["num_queue_reqs"] > 0)
    sock.close()
    assert comes_true(lambda: is_free(slow), SOON)
    slow.engine.check()
