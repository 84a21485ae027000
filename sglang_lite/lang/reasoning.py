"""Splitting what a reasoning model says into reasoning and answer, also while it streams."""

from __future__ import annotations

from typing import Literal

Part = Literal["reasoning", "answer"]

REASONING_TAGS = {
    "qwen3": ("<think>", "</think>"),
    "deepseek-r1": ("<think>", "</think>"),
    "glm45": ("<think>", "</think>"),
    "gpt-oss": (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    "kimi": ("◁think▷", "◁/think▷"),
}
"""Where each family of models puts its reasoning: (opening tag, closing tag)."""


class ReasoningSplitter:
    """Feed it deltas; it gives them back by part, without the tags.

    The text may begin with ``open_tag`` or not: many templates write it into the prompt.  Without
    ``close_tag`` everything is reasoning if the open tag was there, else answer; so nothing is
    given back as answer before that is known.
    """

    def __init__(self, open_tag: str, close_tag: str) -> None:
        self._open = open_tag
        self._close = close_tag
        self._state: Literal["start", "undecided", "lead", "reasoning", "gap", "answer"] = "start"
        self._held = ""
        self.reasoning = ""
        self.answer = ""

    def feed(self, text: str) -> list[tuple[Part, str]]:
        """The parts that are certain now."""
        self._held += text
        found: list[tuple[Part, str]] = []
        if self._state == "start":
            self._begin()
        if self._state == "lead":
            self._held = self._held.lstrip("\n")
            if self._held:
                self._state = "reasoning"
        if self._state in ("undecided", "reasoning"):
            found += self._think()
        if self._state == "gap":
            self._held = self._held.lstrip()
            if self._held:
                self._state = "answer"
        if self._state == "answer":
            found += self._emit("answer", self._held)
            self._held = ""
        return found

    def _begin(self) -> None:
        text = self._held.lstrip()
        if text.startswith(self._open):
            self._held = text[len(self._open) :]
            self._state = "lead"
        elif not self._open.startswith(text):
            self._state = "undecided"

    def _think(self) -> list[tuple[Part, str]]:
        before, tag, after = self._held.partition(self._close)
        if tag:
            self._held, self._state = after, "gap"
            return self._emit("reasoning", before.rstrip())
        if self._state == "undecided":
            return []
        # The end of what is held may be the beginning of the tag, or blanks before it.
        keep = len(self._held.rstrip())
        for size in range(min(len(self._close) - 1, keep), 0, -1):
            if self._held[:keep].endswith(self._close[:size]):
                keep -= size
                break
        keep = len(self._held[:keep].rstrip())
        certain, self._held = self._held[:keep], self._held[keep:]
        return self._emit("reasoning", certain)

    def finish(self) -> list[tuple[Part, str]]:
        """The rest, when the text has ended."""
        part: Part = "reasoning" if self._state == "reasoning" else "answer"
        held, self._held = self._held, ""
        return self._emit(part, held)

    def _emit(self, part: Part, text: str) -> list[tuple[Part, str]]:
        if not text:
            return []
        if part == "reasoning":
            self.reasoning += text
        else:
            self.answer += text
        return [(part, text)]
