"""What ``/v1/messages`` refuses, and the shape of its errors everywhere below that path."""

from __future__ import annotations

import pytest

from sglang_lite.errors import EngineError
from tests.server.live import Live, hello, serving
from tests.server.scripted import Script, ScriptedEngine
from tests.server.test_messages import NOW, PATH, SCHEMA, answer, ask, refused, streamed


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages.0.content.0.text",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "a"}]}]},
            "messages.0.content",
        ),
        ({"temperature": 1.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": "a"}, "stop_sequences"),
        ({"stop_sequences": [str(i) for i in range(33)]}, "stop_sequences"),
        ({"stream": 1}, "stream"),
        ({"system": 1}, "system"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive"}}, "thinking.type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"name": "a b", "input_schema": SCHEMA}]}, "tools.0.name"),
        ({"tools": [{"name": "a"}]}, "tools.0.input_schema"),
        ({"tools": [{"name": "a", "input_schema": {}}]}, "tools.0.input_schema"),
        (
            {"tools": [{"name": "a", "input_schema": {"type": "object", "minProperties": "x"}}]},
            "tools.0.input_schema",
        ),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [NOW], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tools": [NOW], "tool_choice": "any"}, "tool_choice"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        (
            {"output_config": {"format": {"type": "text", "schema": SCHEMA}}},
            "output_config.format.type",
        ),
        ({"regex": "a"}, "regex"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"output_format": {"type": "json_schema", "schema": SCHEMA}}, "output_format"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
    ],
)
def test_what_is_refused(live: Live, fields: dict, param: str) -> None:
    for stream in (False, True):
        error = refused(ask(live, **{"stream": stream, **fields}))
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param
    assert live.engine.requests == []


def test_errors_before_and_around_the_route(live: Live) -> None:
    assert refused(ask(live, model="claude"), 404)["type"] == "not_found_error"
    assert refused(live.http.get(PATH), 405)["code"] == "method_not_allowed"
    assert refused(live.post("/v1/messages/nope"), 404)["code"] == "unknown_url"
    json_type = {"content-type": "application/json"}
    error = refused(live.http.post(PATH, content=b"{", headers=json_type))
    assert error["code"] == "invalid_json"
    assert refused(ask(live, messages=hello("x" * 5000)))["code"] == "context_length_exceeded"
    with serving(api_key="secret", max_body_size=500) as guarded:
        assert refused(ask(guarded), 401)["type"] == "authentication_error"
        guarded.http.headers["x-api-key"] = "secret"
        assert answer(guarded)["stop_reason"] == "end_turn"
        assert refused(ask(guarded, system="x" * 600), 413)["type"] == "request_too_large"


def test_a_full_queue_is_overload() -> None:
    with serving(ScriptedEngine(max_queued=0)) as live:
        response = ask(live)
        assert refused(response, 503)["type"] == "overloaded_error"
        assert response.headers["retry-after"]


def test_a_failure_in_the_stream_is_its_last_event() -> None:
    with serving(ScriptedEngine(Script(fail=EngineError("The engine broke.")))) as live:
        events = streamed(live)
        assert events[0]["type"] == "message_start"
        assert events[-1]["type"] == "error"
        assert events[-1]["error"]["type"] == "api_error"
        assert refused(ask(live), 500)["type"] == "api_error"
