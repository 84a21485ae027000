"""What the terminal shows once the server is ready: figures, URLs, and commands to paste."""

from __future__ import annotations

import json
import shlex
import time

from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from sglang_lite.runtime.server.context import ServerContext


def curl(url: str, model: str, has_key: bool = False) -> str:
    """A shell command that asks the server; a key it takes from the environment."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}]}
    lines = [f"curl {url}/v1/chat/completions", "-H 'Content-Type: application/json'"]
    if has_key:
        lines.append('-H "Authorization: Bearer $SGLANG_LITE_API_KEY"')
    return " \\\n  ".join([*lines, f"-d {shlex.quote(json.dumps(body))}"])


def python(url: str, model: str, has_key: bool = False) -> str:
    """The same as a program for openai-python."""
    start, key = (
        ("import os\n\n", 'os.environ["SGLANG_LITE_API_KEY"]') if has_key else ("", '"none"')
    )
    return f"""{start}from openai import OpenAI

client = OpenAI(base_url="{url}/v1", api_key={key})
answer = client.chat.completions.create(
    model={json.dumps(model, ensure_ascii=False)},
    messages=[{{"role": "user", "content": "Hello!"}}],
)
print(answer.choices[0].message.content)"""


def show(server: ServerContext, url: str, console: Console | None = None) -> None:
    """Print the banner to the terminal, or plain lines where the output is none."""
    console = console or Console(stderr=True)
    engine, stats = server.engine, server.engine.stats()
    slots = int(stats.get("max_total_num_tokens", 0))
    facts = {
        "model": server.model_name,
        "context": f"{engine.context_length:,} tokens",
        "KV cache": f"{slots:,} tokens" if slots else "",
        "OpenAI": f"{url}/v1",
        "Anthropic": url,
        "SGLang": f"{url}/generate",
        "live view": f"{url}/ui" if server.config.shows_ui else "",
        "ready in": f"{time.time() - server.started:.1f} s",
    }
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        if value:
            table.add_row(Text(name, style="dim"), Text(value))
    if not console.is_terminal:
        for name, value in facts.items():
            if value:
                console.print(f"{name}: {value}", highlight=False, soft_wrap=True)
        return
    console.print(Panel(table, title="sglang_lite", title_align="left", border_style="cyan"))
    has_key = bool(server.config.api_key)
    for write, language in ((curl, "bash"), (python, "python")):
        code = write(url, server.model_name, has_key)
        colours = Syntax(code, language, theme="ansi_dark", background_color="default")
        # A line that is cut or broken could not be pasted: wrapping is the terminal's business.
        console.print(colours.highlight(code), soft_wrap=True)
