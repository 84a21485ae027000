"""The fields of a structural tag's JSON objects, checked while they are read."""

from __future__ import annotations

from typing import Any

from sglang_lite.errors import InvalidGrammar

_REQUIRED = object()


class Fields:
    """One JSON object at ``path``; each field is taken once, what is left over is refused."""

    def __init__(self, value: Any, path: str) -> None:
        self.path = path
        if not isinstance(value, dict):
            raise self.error("expected an object")
        self._left = dict(value)

    def take(self, name: str, default: Any = _REQUIRED) -> Any:
        """The field's value as it is."""
        value = self._left.pop(name, default)
        if value is _REQUIRED:
            raise self.error(f"'{name}' is missing")
        return value

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        """A field that is a text."""
        value = self.take(name, default)
        if isinstance(value, dict) and value.get("type") == "token":
            raise self.error(f"'{name}' is a token; only text can be constrained")
        if not _is_text(value):
            raise self.error(f"'{name}' is not a text")
        return str(value)

    def ends(self) -> tuple[str, ...]:
        """The field ``end``: a text or a list of texts, any of which may be empty."""
        value = self.take("end")
        values = value if isinstance(value, list) and value else [value]
        return tuple(dict.fromkeys(Fields({"end": end}, self.path).text("end") for end in values))

    def texts(self, name: str, default: Any = _REQUIRED) -> list[str]:
        """A field that is a list of texts, none of them empty; without repetitions."""
        values = self.take(name, default)
        if not isinstance(values, list) or not all(_is_text(value) and value for value in values):
            raise self.error(f"'{name}' is not a list of texts")
        return list(dict.fromkeys(values))

    def flag(self, name: str, default: bool = False) -> bool:
        """A field that is true or false."""
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise self.error(f"'{name}' is not true or false")
        return value

    def count(self, name: str, *, least: int = 0) -> int:
        """A field that is an integer of at least ``least``."""
        value = self.take(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(f"'{name}' is not an integer of at least {least}")
        return value

    def optional_count(self, name: str) -> int | None:
        """A field that is an integer, or null, or missing."""
        value = self.take(name, None)
        return None if value is None else Fields({name: value}, self.path).count(name)

    def items(self, name: str) -> list[Any]:
        """A field that is a list with at least one item."""
        value = self.take(name)
        if not isinstance(value, list) or not value:
            raise self.error(f"'{name}' is not a list with at least one item")
        return value

    def finish(self) -> None:
        """Refuse the fields that nobody took, unless they ask for nothing."""
        for name, value in self._left.items():
            if value not in (None, [], False):
                raise self.error(f"field '{name}' is not supported")

    def at(self, name: str) -> str:
        """The path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def error(self, reason: str) -> InvalidGrammar:
        """An error that names this object."""
        return InvalidGrammar(f"structural tag at '{self.path or '.'}': {reason}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)
