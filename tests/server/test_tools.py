"""Tools: what is told to the model, what may be written, and how it comes back."""

from __future__ import annotations

import json

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_lite.constrained import GrammarMatcher
from sglang_lite.runtime.messages import FinishReason
from sglang_lite.runtime.server.schemas.chat import FunctionSpec
from sglang_lite.runtime.server.tools import CallArguments, CallStart, ToolParser, ToolPlan
from tests.server.live import Live, error_of, hello
from tests.server.scripted import COMPILER, Script

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"$ref": "#/$defs/Days"}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"Days": {"type": "integer", "minimum": 1}},
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
CLOCK = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def constraint(live: Live) -> GrammarMatcher:
    """A matcher for what the last request may answer."""
    return GrammarMatcher(COMPILER.compile(live.engine.requests[-1].sampling_params.constraint))


def matches(live: Live, text: str) -> bool:
    matcher = constraint(live)
    return matcher.accept_string(text) and matcher.is_completed()


def pieces(text: str, size: int) -> tuple[str, ...]:
    return tuple(text[i : i + size] for i in range(0, len(text), size))


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("choice", ["auto", "required", None])
def test_two_calls(live: Live, size: int, choice: str | None) -> None:
    live.engine.script = Script(pieces(f"{PARIS}\n{CLOCK}", size))
    body = live.chat(tools=[WEATHER, NOW], tool_choice=choice).json()
    [made] = body["choices"]
    assert made["finish_reason"] == "tool_calls"
    assert made["message"]["content"] is None
    calls = made["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["get_weather", "now"]
    assert json.loads(calls[0]["function"]["arguments"]) == {"city": "Paris"}
    assert calls[1]["function"]["arguments"] == "{}"
    assert len({call["id"] for call in calls}) == 2
    assert all(call["id"].startswith("call_") for call in calls)
    assert live.engine.requests[0].sampling_params.constraint is not None


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_streamed_calls(live: Live, size: int) -> None:
    live.engine.script = Script(pieces(f"Let me see.\n{PARIS}\n{CLOCK}\n", size))
    *events, done = live.chat_events(tools=[WEATHER, NOW])
    assert done == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == "Let me see."
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for choice in choices:
        for call in choice["delta"].get("tool_calls", []):
            if "id" in call:
                assert call["type"] == "function"
                names[call["index"]] = call["function"]["name"]
            text = call["function"].get("arguments", "")
            arguments[call["index"]] = arguments.get(call["index"], "") + text
    assert names == {0: "get_weather", 1: "now"}
    assert [json.loads(arguments[index]) for index in (0, 1)] == [{"city": "Paris"}, {}]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_plain_answers_stay_plain(live: Live) -> None:
    live.engine.script = Script(("a <tool", "_calling> b", " <to"))
    made = live.chat(tools=[NOW]).json()["choices"][0]
    assert made["message"]["content"] == "a <tool_calling> b <to"
    assert "tool_calls" not in made["message"]
    assert made["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_is_length(live: Live, stream: bool) -> None:
    live.engine.script = Script((PARIS[:60],), FinishReason("length"))
    for choice in ("auto", "required", {"type": "function", "function": {"name": "get_weather"}}):
        body = {"tools": [WEATHER], "tool_choice": choice}
        if stream:
            *events, _ = live.chat_events(**body)
            reason = json.loads(events[-1])["choices"][0]["finish_reason"]
        else:
            reason = live.chat(**body).json()["choices"][0]["finish_reason"]
        assert reason == "length"


def test_a_forced_function_ends_with_stop(live: Live) -> None:
    live.engine.script = Script((CLOCK,))
    forced = {"type": "function", "function": {"name": "now"}}
    made = live.chat(tools=[WEATHER, NOW], tool_choice=forced).json()["choices"][0]
    assert made["finish_reason"] == "stop"
    assert made["message"]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert matches(live, CLOCK)
    assert not constraint(live).accept_string(PARIS)
    assert not constraint(live).accept_string(f"{CLOCK}\n<")


def test_what_may_be_written(live: Live) -> None:
    tools = [WEATHER, NOW]
    live.chat(tools=tools)
    for text in ("", "Hello <b>", PARIS, f"Hm.\n{PARIS}\n{CLOCK} and so on"):
        assert matches(live, text)
    for text in (
        '<tool_call>\n{"name": "other"',
        PARIS.replace("city", "town"),
        PARIS.replace('"Paris"', "3"),
        PARIS.replace('"Paris"', '"Paris", "days": 0'),
        "<tool_call> hello",
    ):
        assert not constraint(live).accept_string(text)
    live.chat(tools=tools, tool_choice="required")
    assert matches(live, PARIS)
    assert matches(live, f"{PARIS}\n{CLOCK}")
    assert not matches(live, "")
    assert not constraint(live).accept_string("Hello")
    live.chat(tools=tools, tool_choice="required", parallel_tool_calls=False)
    assert matches(live, CLOCK)
    assert not constraint(live).accept_string(f"{PARIS}\n")
    live.chat(tools=tools, parallel_tool_calls=False)
    assert not constraint(live).accept_string(f"{PARIS}\n")
    live.chat(tools=tools, tool_choice="none")
    assert live.engine.requests[-1].sampling_params.constraint is None


def test_a_schema_for_the_answer_besides_calls(live: Live) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    answer = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    live.chat(tools=[NOW], response_format=answer)
    assert matches(live, '{"a": 1}')
    assert matches(live, CLOCK)
    assert not constraint(live).accept_string("Hello")
    error_of(live.chat(tools=[NOW], tool_choice="required", response_format=answer))
    error_of(live.chat(tools=[NOW], regex="a+"))
    assert live.chat(tools=[NOW], tool_choice="none", regex="a+").status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": []}, "tools"),
        ({"tools": [NOW, NOW]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "web"}]}, None),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "now"}}}, "tool_choice"),
        (
            {"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice.function.name",
        ),
        ({"tools": [NOW], "tool_choice": "always"}, None),
        (
            {
                "tools": [
                    NOW,
                    {
                        "type": "function",
                        "function": {
                            "name": "f",
                            "parameters": {"properties": {"a": {"$ref": "http://x/y"}}},
                        },
                    },
                ]
            },
            "tools.1.function.parameters",
        ),
    ],
)
def test_what_is_refused(live: Live, fields: dict, param: str | None) -> None:
    error = error_of(live.chat(**fields))
    if param is not None:
        assert error["param"] == param


def test_templates_without_tools_are_told_in_words(live: Live) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "Be kind."},
        *hello(),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
    ]
    live.chat(tools=[WEATHER], messages=messages)
    prompt = bytes(live.engine.requests[0].input_ids[:10_000]).decode()
    assert prompt.startswith("<system>Be kind.\n\nYou can call functions.")
    assert '"get_weather"' in prompt
    assert f"<assistant>{CLOCK}\n" in prompt
    assert "<user><tool_response>\n12:00\n</tool_response>\n" in prompt


def test_templates_with_tools_get_them(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.engine.tokenizer, "chat_template", "{{ tools }} <tool_call>")
    live.chat(tools=[NOW])
    prompt = bytes(live.engine.requests[0].input_ids).decode()
    assert prompt.startswith('<tools>[{"type": "function", "function": {"name": "now"')


def test_openai_client(live: Live) -> None:
    live.engine.script = Script(pieces(PARIS, 5))
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none")
    with client.chat.completions.stream(model="toy", messages=hello(), tools=[WEATHER]) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.tool_calls[0].function.name == "get_weather"
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Paris"}


names = st.sampled_from(["f", "g_1", "x-y"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(
    calls=st.lists(st.tuples(names, st.dictionaries(st.text(max_size=5), values)), max_size=3),
    intro=st.text(st.characters(exclude_characters="<")),
    cuts=st.lists(st.integers(1, 30), min_size=1, max_size=20),
)
def test_the_parser_reads_any_calls_in_any_pieces(
    calls: list[tuple[str, dict]], intro: str, cuts: list[int]
) -> None:
    plan = ToolPlan("auto", tuple(FunctionSpec(name=name) for name in ("f", "g_1", "x-y")))
    text = intro + "\n".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(value)}}}\n</tool_call>'
        for name, value in calls
    )
    parser, parts, at = ToolParser(plan), [], 0
    while at < len(text):
        cut = cuts[at % len(cuts)]
        parts += parser.feed(text[at : at + cut])
        at += cut
    parts += parser.finish()
    content = "".join(part for part in parts if isinstance(part, str))
    assert content == (intro.rstrip() if calls else intro)
    assert [part.name for part in parts if isinstance(part, CallStart)] == [n for n, _ in calls]
    arguments = [""] * len(calls)
    for part in parts:
        if isinstance(part, CallArguments):
            arguments[part.index] += part.text
    assert [json.loads(text) for text in arguments] == [value for _, value in calls]


@pytest.mark.parametrize("end", ["", "}", "}\n", "}\n</tool_c"])
def test_an_answer_cut_in_the_end_of_a_call_has_whole_arguments(live: Live, end: str) -> None:
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}'
    live.engine.script = Script((call + end,), FinishReason("length"))
    made = live.chat(tools=[WEATHER]).json()["choices"][0]
    [got] = made["message"]["tool_calls"]
    assert json.loads(got["function"]["arguments"]) == {"city": "Paris"}
    assert made["finish_reason"] == "length"


def test_a_brace_of_cut_arguments_is_kept(live: Live) -> None:
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": {"a": 1}'
    live.engine.script = Script((call,), FinishReason("length"))
    [got] = live.chat(tools=[WEATHER]).json()["choices"][0]["message"]["tool_calls"]
    assert got["function"]["arguments"] == '{"city": {"a": 1}'


@pytest.mark.parametrize("format", [None, {"type": "json_object"}])
def test_calls_and_answers_have_one_layout(live: Live, format: dict[str, str] | None) -> None:
    live.engine.script = Script((PARIS,))
    assert live.chat(tools=[WEATHER], response_format=format).status_code == 200
    assert matches(live, PARIS)
    assert matches(live, PARIS.replace('"Paris"', '"Paris", "days": 3'))
    for spelled in ('"Paris","days":3', '"Paris", "days":3', '"Paris" , "days": 3'):
        assert not matches(live, PARIS.replace('"Paris"', spelled))
    assert matches(live, '{"a": [1, 2]}')
    assert matches(live, '{"a":[1,2]}') == (format is None)  # free text beside the calls
