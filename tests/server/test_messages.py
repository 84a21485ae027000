"""``/v1/messages``: Anthropic's shape of requests, answers, events and errors."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from sglang_lite.runtime.messages import FinishReason
from tests.server.live import Live, hello, serving
from tests.server.scripted import EOS, Script, ScriptedEngine

SCHEMA = {
    "type": "object",
    "properties": {"zone": {"type": "string"}},
    "required": ["zone"],
    "additionalProperties": False,
}
NOW = {"name": "now", "description": "The time.", "input_schema": SCHEMA}
CALL = '<tool_call>\n{"name": "now", "arguments": {"zone": "UTC"}}\n</tool_call>'
PATH = "/v1/messages"


def ask(live: Live, **body: Any) -> httpx.Response:
    return live.post(PATH, **{"messages": hello(), "max_tokens": 100, **body})


def answer(live: Live, **body: Any) -> dict[str, Any]:
    response = ask(live, **body)
    assert response.status_code == 200, response.text
    return response.json()


def refused(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert body["type"] == "error"
    assert set(body["error"]) == {"type", "message", "param", "code"}
    return body["error"]


def streamed(live: Live, **body: Any) -> list[dict[str, Any]]:
    """The events; each has a name, and data whose type it is."""
    fields = {"messages": hello(), "max_tokens": 100, "stream": True, **body}
    response = live.post(PATH, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    made = []
    for part in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = part.split("\n")
        made.append(json.loads(data.removeprefix("data: ")))
        assert made[-1]["type"] == name.removeprefix("event: ")
    return made


def prompt_of(live: Live) -> str:
    return bytes(live.engine.requests[-1].input_ids).decode()


def test_text(live: Live) -> None:
    made = answer(live, system="Be kind.", model="toy")
    assert made.pop("id").startswith("msg_")
    assert made == {
        "type": "message",
        "role": "assistant",
        "model": "toy",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len("<system>Be kind.\n<user>hi\n<assistant>"),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 5,
        },
    }


def test_cached_tokens_stand_beside_the_input(live: Live) -> None:
    live.engine.script = Script(cached=7)
    usage = answer(live)["usage"]
    assert usage["cache_read_input_tokens"] == 7
    assert usage["input_tokens"] == len("<user>hi\n<assistant>") - 7


def test_the_order_of_events(live: Live) -> None:
    events = streamed(live)
    assert [event["type"] for event in events] == [
        *("message_start", "content_block_start", "content_block_delta", "content_block_delta"),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    start, block, first, second, stop, delta, _ = events
    assert start["message"]["content"] == []
    assert start["message"]["stop_reason"] is None
    assert start["message"]["usage"]["input_tokens"] == len("<user>hi\n<assistant>")
    assert block == {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    assert [first["delta"], second["delta"]] == [
        {"type": "text_delta", "text": "Hel"},
        {"type": "text_delta", "text": "lo"},
    ]
    assert stop["index"] == 0
    assert delta["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert delta["usage"]["output_tokens"] == 5


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        (FinishReason("stop", matched=EOS), ("end_turn", None)),
        (FinishReason("stop", matched="END"), ("stop_sequence", "END")),
        (FinishReason("length"), ("max_tokens", None)),
    ],
)
def test_why_it_ended(live: Live, finish: FinishReason, expected: tuple) -> None:
    live.engine.script = Script(("a",), finish)
    made = answer(live, stop_sequences=["END"])
    assert (made["stop_reason"], made["stop_sequence"]) == expected
    assert live.engine.requests[0].sampling_params.stop == ("END",)
    assert tuple(streamed(live, stop_sequences=["END"])[-2]["delta"].values()) == expected


def test_sampling_fields_arrive(live: Live) -> None:
    answer(live, temperature=0.3, top_p=0.5, top_k=7, max_tokens=9)
    params = live.engine.requests[0].sampling_params
    assert (params.temperature, params.top_p, params.top_k) == (0.3, 0.5, 7)
    assert params.max_new_tokens == 9
    answer(live, temperature=None, stop_sequences=[], tools=[], system=None, tool_choice=None)
    assert live.engine.requests[1].sampling_params.temperature == 1


def test_blocks_of_a_conversation(live: Live) -> None:
    image = [{"type": "text", "text": "12:00", "cache_control": {"type": "ephemeral"}}]
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "ti"}, {"type": "text", "text": "me?"}],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "text", "text": "Let me see.", "citations": None},
                {"type": "tool_use", "id": "a", "name": "now", "input": {"zone": "UTC"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": image},
                {"type": "tool_result", "tool_use_id": "b", "content": "no", "is_error": True},
                {"type": "text", "text": "and?"},
            ],
        },
    ]
    live.engine.tokenizer.chat_template = "tools <tool_call>"
    try:
        answer(live, messages=messages, system=[{"type": "text", "text": "Be"}], tools=[NOW])
    finally:
        live.engine.tokenizer.chat_template = "<role>text"
    prompt = prompt_of(live)
    assert "<system>Be\n<user>time?\n<assistant>Let me see.[{" in prompt
    assert '"id": "a"' in prompt
    assert "<tool>12:00\n<tool>Error: no\n<user>and?\n<assistant>" in prompt
    assert '"name": "now", "description": "The time."' in prompt


def test_turns_of_one_role_are_one_turn(live: Live) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    answer(live, messages=messages)
    assert prompt_of(live) == "<user>a\n\nb\n<assistant>"


def test_a_last_turn_of_the_assistant_is_continued(live: Live) -> None:
    answer(live, messages=[*hello(), {"role": "assistant", "content": "It is"}])
    assert prompt_of(live) == "<user>hi\n<assistant>It is"


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_a_call(live: Live, size: int) -> None:
    text = f"Let me see.\n{CALL}"
    live.engine.script = Script(tuple(text[i : i + size] for i in range(0, len(text), size)))
    made = answer(live, tools=[NOW])
    assert made["stop_reason"] == "tool_use"
    said, call = made["content"]
    assert said == {"type": "text", "text": "Let me see."}
    assert call.pop("id").startswith("toolu_")
    assert call == {"type": "tool_use", "name": "now", "input": {"zone": "UTC"}}

    events = streamed(live, tools=[NOW])
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [start["index"] for start in starts] == [0, 1]
    assert starts[1]["content_block"]["input"] == {}
    deltas = [event for event in events if event["type"] == "content_block_delta"]
    pieces = [d["delta"]["partial_json"] for d in deltas if d["index"] == 1]
    assert json.loads("".join(pieces)) == {"zone": "UTC"}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    kinds = [event["type"] for event in events if event["type"] != "content_block_delta"]
    block = ["content_block_start", "content_block_stop"]
    assert kinds == ["message_start", *block, *block, "message_delta", "message_stop"]


def test_a_cut_call_shows_what_there_is_of_it(live: Live) -> None:
    live.engine.script = Script((CALL[: CALL.index("TC")],), FinishReason("length"))
    made = answer(live, tools=[NOW], tool_choice={"type": "any"})
    assert made["stop_reason"] == "max_tokens"
    assert made["content"][0]["input"] == {}


@pytest.mark.parametrize(
    ("choice", "accepted", "refused_text"),
    [
        ({"type": "any"}, CALL, "Hello"),
        ({"type": "tool", "name": "now"}, CALL, "Hello"),
        ({"type": "auto", "disable_parallel_tool_use": True}, CALL, f"{CALL}\n{CALL}"),
        ({"type": "auto"}, f"{CALL}\n{CALL}", CALL.replace("zone", "nope")),
    ],
)
def test_choices_are_constraints(
    live: Live, choice: dict, accepted: str, refused_text: str
) -> None:
    from tests.server.test_tools import matches

    answer(live, tools=[NOW], tool_choice=choice)
    assert matches(live, accepted)
    assert not matches(live, refused_text)


def test_no_calls_with_choice_none(live: Live) -> None:
    live.engine.script = Script((CALL,))
    made = answer(live, tools=[NOW], tool_choice={"type": "none"})
    assert made["content"] == [{"type": "text", "text": CALL}]
    assert live.engine.requests[0].sampling_params.constraint is None


def test_output_config_is_enforced(live: Live) -> None:
    from tests.server.test_tools import matches

    form = {"type": "json_schema", "schema": SCHEMA}
    answer(live, output_config={"format": form, "effort": "low"})
    assert matches(live, '{"zone": "UTC"}')
    assert not matches(live, '{"zone": 1}')
    error = refused(ask(live, output_config={"format": {**form, "schema": {"type": "objekt"}}}))
    assert error["param"] == "output_config.format.schema"
    both = {"output_config": {"format": form}, "tools": [NOW], "tool_choice": {"type": "any"}}
    assert refused(ask(live, **both))["param"] == "output_config.format.schema"


def test_silence_is_filled_with_pings() -> None:
    with serving(ScriptedEngine(Script(pause=0.15)), sse_keep_alive_interval=0.05) as live:
        assert {"type": "ping"} in streamed(live)


def test_ignored_fields_are_named(live: Live) -> None:
    response = ask(live, metadata={"user_id": "a"}, service_tier="auto", speed="fast")
    assert response.status_code == 200
    assert set(response.headers["x-ignored-fields"].split(",")) == {
        *("metadata", "service_tier", "speed")
    }


def test_thinking_is_switched_off_in_the_template(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    plain = live.engine.tokenizer.apply_chat_template

    def template(messages: Any, **options: Any) -> list[int]:
        seen.update(options)
        return plain(messages, **options)

    monkeypatch.setattr(live.engine.tokenizer, "apply_chat_template", template)
    answer(live, thinking={"type": "disabled"})
    assert seen["enable_thinking"] is False


def test_count_tokens(live: Live) -> None:
    count = f"{PATH}/count_tokens"
    body = {"messages": hello(), "system": "Be kind.", "tools": [NOW], "model": "toy"}
    counted = live.post(count, **body).json()
    assert counted == {"input_tokens": answer(live, **body)["usage"]["input_tokens"]}
    assert len(live.engine.requests) == 1
    assert refused(live.post(count, messages=[]))["param"] == "messages"
    assert refused(live.post(count, messages=hello(), max_tokens=3))["code"] == "unknown_parameter"
    assert refused(live.post(count, messages=hello(), model="x"), 404)["code"] == "model_not_found"
