"""``/tokenize``, ``/detokenize``, ``/tokenizer_info``."""

from __future__ import annotations

import pytest

from tests.server.live import Live, error_of, hello


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
def test_tokenize_text(live: Live, path: str) -> None:
    body = live.post(path, prompt="né<|end|>", return_token_strs=True).json()
    assert body == {
        "count": 4,
        "max_model_len": 4096,
        "tokens": [0x6E, 0xC3, 0xA9, 256],
        "token_strs": ["n", "bytes:\\xc3", "bytes:\\xa9", "<|end|>"],
    }


def test_control_tokens_can_be_plain_text(live: Live) -> None:
    body = live.post("/tokenize", prompt="<|end|>", parse_special=False).json()
    assert body["tokens"] == list(b"<|end|>")


def test_tokenize_messages(live: Live) -> None:
    body = live.post("/tokenize", messages=hello(), add_generation_prompt=False).json()
    assert bytes(body["tokens"]).decode() == "<user>hi\n"
    assert body["token_strs"] is None


def test_empty_text(live: Live) -> None:
    assert live.post("/tokenize", prompt="").json()["tokens"] == []


def test_bytes_of_tokens(live: Live) -> None:
    body = live.post("/detokenize", tokens=[0xC3, 0xA9], return_token_bytes=True).json()
    assert body["text"] == "é"
    assert body["token_bytes"] == [[0xC3], [0xA9]]
    assert "token_bytes" not in live.post("/detokenize", tokens=[97]).json()


def test_round_trip(live: Live) -> None:
    tokens = live.post("/tokenize", prompt="aé😀").json()["tokens"]
    assert live.post("/detokenize", tokens=tokens).json()["prompt"] == "aé😀"


def test_what_is_refused(live: Live) -> None:
    assert error_of(live.post("/tokenize"))["param"] == "prompt"
    assert error_of(live.post("/tokenize", prompt="a", messages=hello()))["param"] == "prompt"
    assert error_of(live.post("/detokenize", tokens=[258]))["param"] == "tokens"
    assert error_of(live.post("/detokenize", tokens=[-1]))["param"] == "tokens"


def test_tokenizer_info(live: Live) -> None:
    info = live.http.get("/tokenizer_info").json()
    assert info["eos_token"] == "<|end|>"
    assert info["bos_token"] is None
    assert info["chat_template"] == "<role>text"


def test_a_conversation_has_the_tokens_of_its_chat(live: Live) -> None:
    """Also where tools are told in words, because the template does not know them."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = {
        "messages": [
            *hello(),
            {"role": "assistant", "content": "a", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "1"},
        ],
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }
    counted = live.post("/tokenize", **body).json()["count"]
    assert counted == live.chat(**body).json()["usage"]["prompt_tokens"]
