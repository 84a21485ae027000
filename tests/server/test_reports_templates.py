"""Reports about chat templates and about clients that leave, on a real engine and a real socket.

The names in the comments are those of the reports: project#number.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.server.live import Live, error_of, hello, serving
from tests.server.typist import typist_engine
from tests.waiting import wait_for

TEMPLATE = """{%- if messages[0].role == 'system' -%}
{{ raise_exception('System role not supported') }}{%- endif -%}
{%- for message in messages -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif -%}
<|start|>{{ message.role }}
{% for call in message.tool_calls or [] %}{{ call.function.arguments }}{% endfor -%}
{{ message.content }}<|end|>{% endfor -%}
{% if add_generation_prompt %}<|start|>assistant
{% endif %}"""
"""As strict as Gemma 2's."""


@pytest.fixture(scope="module")
def strict() -> Iterator[Live]:
    engine = typist_engine()
    plain = engine.tokenizer.chat_template
    engine.tokenizer.set_chat_template(TEMPLATE)
    with serving(engine) as live:
        yield live
        engine.check()
    engine.tokenizer.set_chat_template(plain)  # other tests have the same tokenizer


# mistral.rs#506, mistral.rs#45, jan#6254, ragflow#11021
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([{"role": "system", "content": "Be kind."}, *hello()], "System role not supported"),
        ([*hello(), *hello()], "roles must alternate"),
        ([{"role": "assistant", "content": "a"}], "roles must alternate"),
    ],
)
def test_what_a_template_refuses_is_a_400_with_its_words(
    strict: Live, messages: list[dict[str, str]], words: str, stream: bool
) -> None:
    error = error_of(strict.chat(messages=messages, stream=stream))
    assert words in error["message"]
    assert error["param"] == "messages"
    assert strict.chat(temperature=0).json()["choices"][0]["message"]["content"] == "Hello"


# physics-intern#6
@pytest.mark.parametrize("arguments", ["{broken", "", "[1]", '{"a": 1}'])
def test_arguments_of_the_history_may_be_broken(strict: Live, arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        *hello(),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        *hello("and now?"),
    ]
    response = strict.chat(messages=messages, temperature=0)
    assert response.status_code == 200, response.text
    body = strict.post("/tokenize", messages=messages).json()
    assert body["count"] == response.json()["usage"]["prompt_tokens"]


# sglang#36552, sglang#37833, ATOM#1441, vllm#54947
def test_a_client_that_leaves_is_logged_once(
    strict: Live, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"messages": hello(), "stream": True, "ignore_eos": True, "rid": "leaver"}

    def lines_of_it() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        return [message for message in messages if message.startswith("leaver ")]

    with caplog.at_level(logging.INFO, logger="sglang_lite.server"):
        with (
            httpx.Client(base_url=strict.url, trust_env=False) as http,
            http.stream("POST", "/v1/chat/completions", json=body) as response,
        ):
            first = next(response.iter_lines())
            assert json.loads(first.removeprefix("data: "))["id"] == "leaver"
        wait_for(lambda: bool(lines_of_it()) and not strict.engine.stats()["kv_used_tokens"])
        time.sleep(0.05)
    [line] = lines_of_it()
    assert "finish=disconnected" in line
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
