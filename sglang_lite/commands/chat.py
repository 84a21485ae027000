"""``sglang-lite chat``: a conversation in the terminal, in process or with a server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console

from sglang_lite.errors import EngineError, InvalidRequest

Messages = list[dict[str, str]]
Answer = Callable[[Messages], Iterator[str]]

_HELP = "/reset starts over, /exit or Ctrl-D leaves, Ctrl-C stops an answer."


def run_chat(
    model_path: str | None,
    url: str | None,
    system: str,
    temperature: float,
    max_tokens: int,
    api_key: str = "",
) -> None:
    """Talk until the user leaves."""
    console = Console()
    with contextlib.suppress(ImportError):  # not everywhere; with it, input has a history
        import readline  # noqa: F401
    sampling = {"temperature": temperature, "max_tokens": max_tokens}
    if url is not None:
        if model_path is not None:
            raise InvalidRequest("--url", url, "only one of --url and --model-path")
        server = _Server(url, api_key, sampling)
        console.print(f"{server.model()} at {url}", style="dim", highlight=False)
        _talk(console, server.answer, system)
        return
    from sglang_lite.runtime.engine import Engine

    with console.status("loading the model"):
        engine = Engine(model_path)
    context = f"{engine.served_model_name}, {engine.context_length:,} tokens of context"
    console.print(context, style="dim", highlight=False)
    with engine:
        _talk(console, _local(engine, sampling), system)


def _talk(console: Console, answer: Answer, system: str) -> None:
    console.print(_HELP, style="dim")
    start: Messages = [{"role": "system", "content": system}] if system else []
    messages = list(start)
    while True:
        try:
            text = input("you> ").strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        if text in ("/exit", "/quit"):
            return
        if text == "/reset":
            messages = list(start)
            continue
        if not text:
            continue
        asked = [*messages, {"role": "user", "content": text}]
        reply = _print_answer(console, answer(asked))
        if reply is not None:
            messages = [*asked, {"role": "assistant", "content": reply}]


def _print_answer(console: Console, pieces: Iterator[str]) -> str | None:
    """Show an answer as it arrives; None if it failed and should leave no trace."""
    console.print("model> ", end="", style="bold")
    reply = []
    try:
        for piece in pieces:
            reply.append(piece)
            console.print(piece, end="", markup=False, highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        console.print(" (stopped)", style="dim", end="")
    except (EngineError, InvalidRequest) as error:
        console.print(f"\n{error}", style="red", markup=False)
        return None
    console.print()
    return "".join(reply)


def _local(engine: Any, sampling: dict[str, Any]) -> Answer:
    from sglang_lite.runtime.messages import GenerateRequest
    from sglang_lite.sampling_params import SamplingParams

    params = SamplingParams.from_dict(sampling)

    def answer(messages: Messages) -> Iterator[str]:
        ids = engine.tokenizer.apply_chat_template(messages)
        stream = engine.submit(GenerateRequest(tuple(ids), params))
        try:
            for output in stream:
                yield output.text
        finally:
            stream.abort()

    return answer


class _Server:
    """A server that speaks OpenAI's API; every failure is an :class:`EngineError`."""

    def __init__(self, url: str, api_key: str, sampling: dict[str, Any]) -> None:
        self._api = f"{url.rstrip('/').removesuffix('/v1')}/v1"
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._sampling = sampling

    def model(self) -> str:
        """The name of the model that it serves."""
        with self._asking("GET", "/models") as response:
            cards = json.loads(response.read())["data"]
        self._sampling["model"] = cards[0]["id"]
        return str(cards[0]["id"])

    def answer(self, messages: Messages) -> Iterator[str]:
        """Pieces of the answer, as they come."""
        body = {"messages": messages, "stream": True, **self._sampling}
        with self._asking("POST", "/chat/completions", body) as response:
            for line in response.iter_lines():
                data = line.removeprefix("data: ")
                if data == line or data == "[DONE]":
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise EngineError(event["error"]["message"])
                for choice in event["choices"]:
                    yield choice["delta"].get("content") or ""

    @contextlib.contextmanager
    def _asking(self, method: str, path: str, body: Any = None) -> Iterator[Any]:
        import httpx

        address = self._api + path
        options = {"json": body, "headers": self._headers, "timeout": None}
        try:
            with httpx.stream(method, address, **options) as response:
                if response.status_code != 200:
                    raise EngineError(_message(response.read()))
                yield response
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EngineError(f"no answer from {address}: {error}") from None


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
