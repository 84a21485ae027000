"""What the terminal shows once the server is ready: figures, URLs, and commands to paste."""

from __future__ import annotations

import time

from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from sglang_lite.runtime.server.context import ServerContext

_CURL = """curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} \\
  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'"""

_PYTHON = """from openai import OpenAI

client = OpenAI(base_url="{url}/v1", api_key="{key}")
answer = client.chat.completions.create(
    model="{model}", messages=[{{"role": "user", "content": "Hello!"}}]
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
        "API": f"{url}/v1 (OpenAI), {url}/generate (SGLang)",
        "live view": f"{url}/ui" if server.config.shows_ui else "",
        "ready in": f"{time.time() - server.started:.1f} s",
    }
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        if value:
            table.add_row(Text(name, style="dim"), Text(value))
    has_key = bool(server.config.api_key)
    header = ' -H "Authorization: Bearer $SGLANG_LITE_API_KEY"' if has_key else ""
    curl = _CURL.format(url=url, model=server.model_name, key=header)
    key = "YOUR-KEY" if has_key else "none"
    python = _PYTHON.format(url=url, model=server.model_name, key=key)
    if not console.is_terminal:
        for name, value in facts.items():
            if value:
                console.print(f"{name}: {value}", highlight=False, soft_wrap=True)
        return
    console.print(Panel(table, title="sglang_lite", title_align="left", border_style="cyan"))
    for code, language in ((curl, "bash"), (python, "python")):
        console.print(Syntax(code, language, theme="ansi_dark", background_color="default"))
        console.print()
