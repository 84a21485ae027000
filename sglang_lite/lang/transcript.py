"""What a state has said so far: segments of text, the token ids of those that are final, messages.

Token ids that a model generated are kept as they came.  Literals are encoded when the next ``gen``
needs them, neighbours together, because that is how a tokenizer would have split them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol


@dataclass(frozen=True)
class Piece:
    """A stretch of text; control tokens are recognised only where ``trusted`` (the template).

    ``token_ids`` are given for generated text.
    """

    text: str
    trusted: bool = False
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Message:
    """One message; ``partial`` while its role is still open."""

    role: str
    content: str
    partial: bool = False

    def to_dict(self) -> dict[str, Any]:
        """OpenAI's form."""
        fields: dict[str, Any] = {"role": self.role, "content": self.content}
        return {**fields, "partial": True} if self.partial else fields


@dataclass(frozen=True)
class Prompt:
    """A transcript as a backend gets it: as pieces, token ids, text and messages.

    ``input_ids`` is None for backends without a tokenizer.  Its first ``sealed`` ids are final;
    the rest are those of ``tail``, literals that may be split otherwise when more text follows.
    ``variable`` is the name that the answer will have.  ``healed`` is the text of a last token that
    ``input_ids`` lacks, because the answer is to begin with it (see :mod:`sglang_lite.lang.seams`).
    """

    pieces: tuple[Piece, ...]
    input_ids: tuple[int, ...] | None
    sealed: int
    tail: tuple[Piece, ...]
    messages: tuple[Message, ...]
    variable: str | None = None
    healed: str = ""

    @cached_property
    def text(self) -> str:
        """The rendered text, control tokens included."""
        return "".join(piece.text for piece in self.pieces)


def runs(pieces: Sequence[Piece], control: re.Pattern[str]) -> list[tuple[str, bool]]:
    """(text, parse control tokens) of consecutive pieces, for a tokenizer.

    Everything is one run, because a tokenizer must see neighbours together; only what looks like a
    control token and is not entirely the template's own text becomes a run of plain text.
    """
    text = "".join(piece.text for piece in pieces)
    trusted: list[tuple[int, int]] = []
    position = 0
    for piece in pieces:
        if piece.trusted:
            trusted.append((position, position + len(piece.text)))
        position += len(piece.text)
    found: list[tuple[str, bool]] = []
    begin = 0
    for match in control.finditer(text):
        if any(low <= match.start() and match.end() <= high for low, high in trusted):
            continue
        found += [(text[begin : match.start()], True), (match.group(), False)]
        begin = match.end()
    found.append((text[begin:], True))
    return [(run, parse) for run, parse in found if run]


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds the longest of some texts; of none, one that finds nothing."""
    ordered = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or "(?!)")


class Encoder(Protocol):
    """The part of a backend that knows tokens."""

    async def encode(self, pieces: Sequence[Piece], *, start: bool) -> tuple[int, ...] | None:
        """Token ids of consecutive pieces; ``start`` puts before them what begins a text."""


@dataclass
class Mark:
    """A place in a transcript to come back to."""

    pieces: int
    sealed: int
    tail_from: int
    messages: int
    open_role: str | None
    role_from: int
    opening: str


@dataclass
class Transcript:
    """See the module; ``role_from`` and ``tail_from`` are indices into ``pieces``, ``opening`` is
    the control text that opened the open message."""

    pieces: list[Piece] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    tail_from: int = 0
    messages: list[Message] = field(default_factory=list)
    open_role: str | None = None
    role_from: int = 0
    opening: str = ""

    def copy(self) -> Transcript:
        """An independent copy."""
        return Transcript(
            list(self.pieces),
            list(self.ids),
            self.tail_from,
            list(self.messages),
            self.open_role,
            self.role_from,
            self.opening,
        )

    def mark(self) -> Mark:
        """The current end, for :meth:`rollback`."""
        return Mark(
            len(self.pieces),
            len(self.ids),
            self.tail_from,
            len(self.messages),
            self.open_role,
            self.role_from,
            self.opening,
        )

    def rollback(self, mark: Mark) -> None:
        """Forget everything since ``mark``."""
        del self.pieces[mark.pieces :]
        del self.ids[mark.sealed :]
        del self.messages[mark.messages :]
        self.tail_from = mark.tail_from
        self.open_role, self.role_from = mark.open_role, mark.role_from
        self.opening = mark.opening

    def text(self, start: int = 0) -> str:
        """The text from piece number ``start`` on."""
        return "".join(piece.text for piece in self.pieces[start:])

    def append(self, text: str, *, trusted: bool = False) -> None:
        """Add a literal, or the template's control text."""
        if text:
            self.pieces.append(Piece(text, trusted))

    def append_generated(
        self,
        text: str,
        ids: Sequence[int],
        prompt_ids: Sequence[int],
        rest: str = "",
        *,
        healed: bool = False,
    ) -> None:
        """Add what a model said after ``prompt_ids``: ``text`` is that of ``ids``; ``rest`` more
        text that has no ids of its own.  ``healed``: the ids begin with a part of the literal
        before, so they are not those of the text alone."""
        if ids:
            self.pieces.append(Piece(text, token_ids=None if healed else tuple(ids)))
            self.ids = [*prompt_ids, *ids]
            self.tail_from = len(self.pieces)
        elif text:
            self.append(text)
        self.append(rest)

    def all_messages(self) -> list[Message]:
        """The closed messages, then the open one."""
        if self.open_role is None:
            return list(self.messages)
        return [*self.messages, Message(self.open_role, self.text(self.role_from), partial=True)]

    def open(self, role: str, prefix: str) -> None:
        """Begin a message."""
        self.append(prefix, trusted=True)
        self.open_role, self.role_from, self.opening = role, len(self.pieces), prefix

    def reopen(self, prefix: str) -> None:
        """Replace the control text that opened a message of which nothing is said yet."""
        if self.opening:
            self.pieces.pop()
        self.open(self.open_role or "", prefix)

    def close(self, suffix: str) -> None:
        """End the open message."""
        self.messages.append(Message(self.open_role or "", self.text(self.role_from)))
        self.append(suffix, trusted=True)
        self.open_role = None

    async def prompt(self, encoder: Encoder, variable: str | None = None) -> Prompt:
        """The transcript for a backend; ``variable`` is the name that the answer will have."""
        tail = tuple(self.pieces[self.tail_from :])
        start = self.tail_from == 0 and not (tail and tail[0].trusted)
        tail_ids = await encoder.encode(tail, start=start)
        ids = None if tail_ids is None else (*self.ids, *tail_ids)
        return Prompt(
            tuple(self.pieces),
            ids,
            len(self.ids),
            tail,
            tuple(self.all_messages()),
            variable,
        )
