"""Serve the default model and talk to it with the openai client: text, a stream, a typed answer.

python examples/openai_client.py
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

from openai import OpenAI
from pydantic import BaseModel


class City(BaseModel):
    """What we want to know about a city."""

    name: str
    country: str
    population: int


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Start a server on a free port; its URL, once it is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "sglang_lite.launch_server", "--port", str(port)]
    process = subprocess.Popen([*command, "--log-level", "warning"])
    try:
        url = f"http://127.0.0.1:{port}"
        while not is_ready(url):
            if process.poll() is not None:
                raise SystemExit("the server did not start")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def is_ready(url: str) -> bool:
    """Whether the model is loaded."""
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def main() -> None:
    """Ask three questions."""
    with server() as url, OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        model = client.models.list().data[0].id
        print(f"model:   {model}")

        question = [{"role": "user", "content": "What is the capital of France?"}]
        answer = client.chat.completions.create(
            model=model, messages=question, temperature=0, max_tokens=32
        )
        print(f"answer:  {answer.choices[0].message.content}")

        print("stream:  ", end="")
        stream = client.chat.completions.create(
            model=model, messages=question, temperature=0, max_tokens=32, stream=True
        )
        for chunk in stream:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        print()

        typed = client.chat.completions.parse(
            model=model,
            messages=[{"role": "user", "content": "Describe the city of Lyon as JSON."}],
            response_format=City,
            temperature=0,
            max_tokens=200,
        )
        print(f"typed:   {typed.choices[0].message.parsed!r}")


if __name__ == "__main__":
    main()
