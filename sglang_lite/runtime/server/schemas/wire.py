"""The base of all requests: null is omitted, unknown fields are refused."""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, TypeVar

from fastapi import Request
from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import Self

from sglang_lite.runtime.server.errors import ApiError, to_api_error

M = TypeVar("M", bound="WireModel")
T = TypeVar("T")


class _FailFast(FailFast):
    """pydantic's own cannot be hashed, which unions of types need."""

    def __hash__(self) -> int:
        return hash(type(self))


Many = Annotated[list[T], _FailFast()]
"""A list whose first bad item is the error: a million bad ones would be a million errors."""

LONG_BODY = 32 * 1024
"""Bytes; longer bodies are read off the event loop, which others are waiting for."""

CONSTRAINING = ("guided_", "schema", "regex", "grammar", "format")
"""Parts of names that ask for a constraint, so that ignoring such a field would fail open."""


class WireModel(BaseModel):
    """A JSON object from outside.

    null equals omitted.  A field that the model does not know is refused with the nearest known
    name, unless its value is false (benchmarks send switches of other servers that way), or
    ``ignored`` lists it: fields of OpenAI's that cannot change the answer here.
    """

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=False)

    ignored: ClassVar[frozenset[str]] = frozenset()
    _ignored: tuple[str, ...] = PrivateAttr(default=())

    @property
    def ignored_fields(self) -> tuple[str, ...]:
        """The known-and-ignored fields that the client sent."""
        return self._ignored

    @model_validator(mode="wrap")
    @classmethod
    def _sift(cls, data: Any, handler: Callable[[Any], Self], info: ValidationInfo) -> Self:
        if not isinstance(data, dict):
            return handler(data)
        known = {field.alias or name for name, field in cls.model_fields.items()}
        kept, ignored = {}, []
        for name, value in data.items():
            if value is None:
                continue
            if name in known:
                kept[name] = value
            elif name in cls.ignored or cls._harmless(name, value, info):
                ignored.append(name)
            else:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                raise PydanticCustomError(
                    "unknown_parameter", "unknown parameter{hint}", {"field": name, "hint": hint}
                )
        model = handler(kept)
        model._ignored = tuple(name for name in ignored if data[name] is not False)
        return model

    @classmethod
    def _harmless(cls, name: str, value: Any, info: ValidationInfo) -> bool:
        if any(part in name for part in CONSTRAINING):
            return False
        return value is False or bool(info.context and info.context.get("allow_unknown_fields"))


async def read_body(request: Request, model: type[M]) -> M:
    """The request's body as ``model``; raises a 400 for what is not JSON or does not fit."""
    context = {"allow_unknown_fields": request.app.state.server.config.allow_unknown_fields}
    body = await request.body()
    if len(body) < LONG_BODY:
        return _read(body, model, context)
    return await asyncio.to_thread(_read, body, model, context)


def _read(body: bytes, model: type[M], context: dict[str, Any]) -> M:
    try:
        return model.model_validate(parse_json(body), context=context)
    except ValidationError as error:
        raise to_api_error(error) from None


def parse_json(body: bytes) -> Any:
    """JSON as the standard has it: UTF-8, no NaN, no Infinity, no half of a surrogate pair."""
    try:
        text = body.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse_constant)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ApiError(400, f"The body is not JSON: {reason}", code="invalid_json") from None
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """OpenAPI's description of a body of this type; ``openapi.py`` adds the schema itself."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
