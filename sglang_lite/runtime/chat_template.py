"""Chat templates: Jinja in a sandbox, with the helpers that Hugging Face templates expect."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sglang_lite.errors import InvalidRequest

# Private-use characters; they are removed from every text that comes in.
_OPEN, _CLOSE, _CUT = "\U000f0000", "\U000f0001", "\U000f0002"


class ChatTemplate:
    """A template and the texts that are control tokens of its model.

    Control tokens inside a message would let its text forge a turn.  So they are marked before
    rendering, and :meth:`pieces` tells the marked ones from those that the template wrote.
    """

    def __init__(self, source: str, special: Iterable[str], added: Iterable[str] = ()) -> None:
        """``special``: control tokens.  ``added``: other added tokens, which count as control
        tokens where the template itself writes them.  Raises :class:`InvalidRequest`."""
        self.source = source
        try:
            self._template, literals = _compile(source)
        except jinja2.TemplateSyntaxError as error:
            reason = f"a Jinja template (line {error.lineno}: {error.message})"
            raise InvalidRequest("chat_template", source, reason) from None
        special = sorted(special, key=len, reverse=True)
        self.written = tuple(text for text in added if text in literals)
        everything = sorted({*special, *self.written}, key=len, reverse=True)
        self._special = _any_of(special)
        self._control = _any_of(everything)
        self._marked = re.compile(f"{_OPEN}({self._control.pattern}){_CLOSE}|[{_OPEN}{_CLOSE}]")

    def render(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> list[tuple[str, bool]]:
        """The rendered text in pieces ``(text, is control)``.

        Where ``is control`` is False, the piece is a control token's text that came from a
        message.  Raises :class:`jinja2.TemplateError` where the template refuses the messages.
        """
        chat = [self._message(message) for message in messages]
        if continue_final_message:
            _mark_end(chat)
        variables = {name: self._mark(value, self._control) for name, value in variables.items()}
        text = self._template.render(
            messages=chat,
            add_generation_prompt=add_generation_prompt and not continue_final_message,
            **variables,
        )
        if continue_final_message:
            text = _cut_end(text)
        parts = self._marked.split(text)
        # split() alternates: plain text, marked token (None for a marker that lost its pair).
        return [(part, at % 2 == 0) for at, part in enumerate(parts) if part]

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        # A model writes tokens such as <think> or <tool_call> itself, so they may stand in the
        # assistant's turns; special tokens end turns and may not.
        control = self._special if message.get("role") == "assistant" else self._control
        return {
            key: self._mark(value, control) for key, value in message.items() if value is not None
        }

    def _mark(self, value: Any, control: re.Pattern[str]) -> Any:
        if isinstance(value, str):
            for private in (_OPEN, _CLOSE, _CUT):
                value = value.replace(private, "")
            return control.sub(f"{_OPEN}\\g<0>{_CLOSE}", value)
        if isinstance(value, Mapping):
            return {key: self._mark(item, control) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._mark(item, control) for item in value]
        return value


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)) or "(?!)")


def _mark_end(chat: list[dict[str, Any]]) -> None:
    """Append a mark to the last message's text; the blank shows whether the template trims."""
    accepted = "messages whose last one has a text, with continue_final_message"
    content = chat[-1].get("content") if chat else None
    if isinstance(content, str):
        chat[-1]["content"] = content + _CUT + " "
    elif isinstance(content, list) and any("text" in part for part in content):
        last = [part for part in content if "text" in part][-1]
        last["text"] += _CUT + " "
    else:
        raise InvalidRequest("messages", chat, accepted)


def _cut_end(text: str) -> str:
    at = text.rfind(_CUT)
    if at < 0:
        accepted = "False: this model's template rewrites the last message"
        raise InvalidRequest("continue_final_message", True, accepted)
    return text[:at] if text[at + 1 : at + 2] == " " else text[:at].rstrip()


@lru_cache(maxsize=16)
def _compile(source: str) -> tuple[jinja2.Template, str]:
    """The template and all text that it writes itself."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    tree = environment.parse(source)
    literals = [data.data for data in tree.find_all(nodes.TemplateData)]
    literals += [c.value for c in tree.find_all(nodes.Const) if isinstance(c.value, str)]
    return environment.from_string(source), "\0".join(literals)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which models were not trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class _Generation(Extension):
    """``{% generation %}`` marks what a model is trained on; when rendering it says nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The block's own body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
