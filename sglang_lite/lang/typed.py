"""Python types as constraints, and texts back as values.

int, float, bool, str, Literal, Enum and dates stand in the text as they are printed (``42``,
``True``, ``red``, ``2024-02-29``); everything else (lists, dicts, unions, dataclasses,
TypedDicts, Pydantic models) stands there as JSON.  Pydantic does both the schema and the parsing.
"""

from __future__ import annotations

import datetime
import enum
import functools
import inspect
import typing
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from sglang_lite.constraint import Choice, Constraint, JsonSchema, Regex
from sglang_lite.errors import InvalidRequest

MAX_DIGITS = 18
"""Numbers without bounds of their own get at most so many digits: a model may never stop."""

SEPARATORS = (", ", ": ")
"""How JSON is written where nothing else is said: the way models write it on one line, with nothing
left to choose."""

_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR = r"(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    rf"|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_ZONE = r"(?:Z|[+-](?:0[0-9]|1[0-4]):[0-5][0-9])?"

_BOUNDS: dict[Any, tuple[str, ...]] = {
    int: ("ge", "gt", "le", "lt"),
    float: ("ge", "gt", "le", "lt"),
    str: ("min_length", "max_length"),
}
_KEYWORDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}


@dataclass(frozen=True)
class TypedValue:
    """A type with its constraint (None: any text) and its parser.

    ``parse(text)`` raises ValueError where the text is not (yet) a value of the type.
    """

    type: Any
    constraint: Constraint | None
    is_json: bool = False
    labels: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, type_: Any, *, whitespace: int | None = None, **bounds: Any) -> TypedValue:
        """``whitespace``: see :func:`layout`.

        Raises :class:`InvalidRequest` for a type that has no finite description.
        """
        allowed = _BOUNDS.get(type_, ())
        for name, value in bounds.items():
            if name not in allowed:
                accepted = (
                    f"one of {', '.join(allowed)}" if allowed else f"no bounds with {type_!r}"
                )
                raise InvalidRequest(name, value, accepted)
        labels = _labels(type_)
        if labels:
            constraint = Choice(tuple(label for label, _ in labels))
            return cls(type_, constraint, labels=labels)
        if type_ is int and not bounds:
            return cls(type_, Regex(rf"-?(?:0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}})"))
        if type_ in (int, float):
            kind = "integer" if type_ is int else "number"
            schema = {"type": kind} | {_KEYWORDS[name]: value for name, value in bounds.items()}
            return cls(type_, _json(schema, whitespace))
        if type_ is str:
            return cls(type_, _text_of(**bounds))
        if type_ is datetime.date:
            return cls(type_, Regex(_DATE))
        if type_ is datetime.datetime:
            return cls(type_, Regex(f"{_DATE}T{_TIME}{_ZONE}"))
        if type_ is datetime.time:
            return cls(type_, Regex(_TIME))
        return cls(type_, _json(_schema_of(type_), whitespace), is_json=True)

    def parse(self, text: str) -> Any:
        """The value that ``text`` stands for."""
        if self.labels:
            for label, value in self.labels:
                if label == text:
                    return value
            raise ValueError(f"{text!r} is none of {[label for label, _ in self.labels]}")
        if self.is_json:
            return _adapter(self.type).validate_json(text)
        if self.type is str:
            return text
        if self.type in (int, float):
            return self.type(text)
        return _adapter(self.type).validate_python(text)


def _labels(type_: Any) -> tuple[tuple[str, Any], ...]:
    """The (text, value) pairs of a type with finitely many values, all of them scalars."""
    if type_ is bool:
        return (("True", True), ("False", False))
    if typing.get_origin(type_) is typing.Literal:
        values = typing.get_args(type_)
        texts = [value.value if isinstance(value, enum.Enum) else value for value in values]
    elif isinstance(type_, enum.EnumMeta):
        values = tuple(type_)
        texts = [member.value for member in values]
    else:
        return ()
    labels = tuple((str(text), value) for text, value in zip(texts, values, strict=True))
    if not labels or len({label for label, _ in labels}) != len(labels):
        raise InvalidRequest("type", type_, "at least one value, and values that print differently")
    return labels


def _text_of(min_length: int | None = None, max_length: int | None = None) -> Constraint | None:
    if min_length is None and max_length is None:
        return None
    low = min_length or 0
    if low < 0 or (max_length is not None and max_length < low):
        raise InvalidRequest("max_length", max_length, f"at least min_length={low}, from 0 up")
    return Regex(rf"[\s\S]{{{low},{'' if max_length is None else max_length}}}")


def layout(whitespace: int | None) -> dict[str, Any]:
    """Options of :class:`JsonSchema`: up to so many whitespace characters in each gap (0: compact);
    None fixes :data:`SEPARATORS`."""
    return {"separators": SEPARATORS} if whitespace is None else {"max_whitespace": whitespace}


def _json(schema: dict[str, Any], whitespace: int | None) -> JsonSchema:
    options = {**layout(whitespace), "max_digits": MAX_DIGITS, "additional_properties": False}
    return JsonSchema.of(schema, **options)


def _schema_of(type_: Any) -> dict[str, Any]:
    accepted = "a type that Pydantic can describe as a JSON Schema"
    if inspect.isroutine(type_):  # Pydantic would describe its arguments
        raise InvalidRequest("type", type_, accepted)
    try:
        return _adapter(type_).json_schema()
    except Exception as error:
        raise InvalidRequest("type", type_, f"{accepted} ({str(error).splitlines()[0]})") from error


def _adapter(type_: Any) -> TypeAdapter[Any]:
    try:
        return _cached_adapter(type_)
    except TypeError:  # an unhashable annotation, such as Annotated with a list
        return TypeAdapter(type_)


@functools.lru_cache(maxsize=256)
def _cached_adapter(type_: Any) -> TypeAdapter[Any]:
    return TypeAdapter(type_)
