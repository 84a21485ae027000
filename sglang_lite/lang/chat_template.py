"""Chat templates: the tokenizer's own, turned into a prefix and a suffix per message.

A template is rendered with sentinels in the place of contents, never with a user's text; what
stands between the sentinels is the model's control text.  So contents cannot forge a turn, and a
message can be open (a ``gen`` inside it) while nothing of its end is known.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from sglang_lite.errors import InvalidRequest

Render = Callable[[list[dict[str, Any]], bool], str]
"""(messages, add_generation_prompt) -> text."""

_SENTINEL = re.compile(r"@@CONTENT([0-9]+)@@")


class ChatTemplate:
    """Prefixes and suffixes of messages, derived from a ``render`` function.

    ``name`` tells people which template it is; ``guessed`` is True where the model brought none.
    """

    def __init__(self, render: Render, name: str, *, guessed: bool = False) -> None:
        self.name = name
        self.guessed = guessed
        self._render = render
        self._gaps: dict[tuple[str, ...], list[str] | InvalidRequest] = {}

    def prefix(self, history: Sequence[str], role: str) -> str:
        """The control text that opens a message of ``role`` after messages of these roles.

        It begins where :meth:`suffix` of the last message ended.  Raises
        :class:`InvalidRequest` where the template refuses such a conversation.
        """
        roles = (*history, role)
        gap = self._between(roles)[-2]
        if role == "assistant":
            # Templates treat an answer that is the last message specially; this one may not be.
            with contextlib.suppress(InvalidRequest):
                gap = self._between((*roles, "user"))[len(roles) - 1]
        return self._after(history, gap)

    def generation_prefix(self, history: Sequence[str]) -> str:
        """The control text after which the model writes its answer itself."""
        try:
            text = self._render(_messages(history), True)
        except Exception:
            return self.prefix(history, "assistant")
        return self._after(history, _SENTINEL.split(text)[-1])

    def _after(self, history: Sequence[str], gap: str) -> str:
        before = self.suffix(history) if history else ""
        # Some templates write a separator only where another message follows.
        return gap[len(before) :] if gap.startswith(before) else gap

    def suffix(self, roles: Sequence[str]) -> str:
        """The control text that closes the last of these messages."""
        try:
            return self._between(tuple(roles))[-1]
        except InvalidRequest:
            if roles[-1] == "system":
                return ""  # it lives inside the user's message that has to follow
            raise

    def _between(self, roles: tuple[str, ...]) -> list[str]:
        """The control texts before, between and after the contents of messages of ``roles``."""
        if roles not in self._gaps:
            self._gaps[roles] = self._split(roles)
        gaps = self._gaps[roles]
        if isinstance(gaps, InvalidRequest):
            raise gaps
        return gaps

    def _split(self, roles: tuple[str, ...]) -> list[str] | InvalidRequest:
        try:
            text = self._render(_messages(roles), False)
        except Exception as error:
            return self._retry(roles, f"{type(error).__name__}: {error}")
        parts = _SENTINEL.split(text)
        if parts[1::2] != [str(index) for index in range(len(roles))]:
            return self._retry(roles, "a message vanishes or moves")
        return parts[0::2]

    def _retry(self, roles: tuple[str, ...], reason: str) -> list[str] | InvalidRequest:
        """A system message may need the user's to live in, or move along with the last one."""
        if roles == ("system",):
            gaps = self._split(("system", "user"))
            return gaps if isinstance(gaps, InvalidRequest) else [gaps[0], ""]
        if roles[0] == "system" and len(roles) > 2:
            gaps = self._split(roles[1:])
            return gaps if isinstance(gaps, InvalidRequest) else ["", *gaps]
        shown = ", ".join(roles)
        accepted = f"a conversation that the chat template {self.name} renders; [{shown}]: {reason}"
        return InvalidRequest("role", roles[-1], accepted)


def _messages(roles: Sequence[str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": f"@@CONTENT{index}@@"} for index, role in enumerate(roles)]


def chatml(messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
    """The ChatML layout, for backends that have no template of their own."""
    turns = [f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages]
    return "".join(turns) + ("<|im_start|>assistant\n" if add_generation_prompt else "")


def jinja(template: str, **tokens: str) -> Render:
    """Render with a Jinja template as Hugging Face tokenizers bring it, in a sandbox.

    ``tokens`` are variables such as ``bos_token``.
    """
    from jinja2.exceptions import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent, **options)

    def strftime_now(layout: str) -> str:
        return datetime.datetime.now().strftime(layout)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    compiled = environment.from_string(template)

    def render(messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        return compiled.render(
            messages=messages, add_generation_prompt=add_generation_prompt, **tokens
        )

    return render
