"""Every exception that the package raises on purpose.

Two rules: an error of the caller is an :class:`InvalidRequest` or a :class:`ConstraintError` and
is raised by the call that is wrong; a failure of one request never reaches another one.  ``code``
is the machine-readable name that the HTTP server puts into OpenAI's error object.
"""

from __future__ import annotations

from typing import Any


class SglangLiteError(Exception):
    """Base class of all errors of this package."""

    code: str = "internal_error"


class InvalidRequest(SglangLiteError, ValueError):
    """A parameter has a value that cannot work.

    ``field`` is the parameter's public name (a dotted path for nested input), ``value`` what was
    given, ``accepted`` says in words what would have been accepted.
    """

    code = "invalid_value"

    def __init__(self, field: str, value: Any, accepted: str) -> None:
        shown = repr(value)
        if len(shown) > 200:
            shown = shown[:200] + "…"
        super().__init__(f"{field}={shown} is not accepted: {accepted}")
        self.field = field
        self.value = value
        self.accepted = accepted


class PromptTooLong(InvalidRequest):
    """The prompt leaves no room for a token in the context or can never fit the KV pool."""

    code = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, completion_tokens: int, limit: int) -> None:
        # Clients recognise an overflow by parts of this sentence; keep its words.
        Exception.__init__(
            self,
            f"This model's maximum context length is {limit} tokens. However, you requested "
            f"{prompt_tokens + completion_tokens} tokens ({prompt_tokens} in the messages, "
            f"{completion_tokens} in the completion). Please reduce the length of the messages "
            "or completion. (context_length_exceeded)",
        )
        self.field = "messages"
        self.value = prompt_tokens
        self.accepted = f"at most {limit - 1} prompt tokens"


class ConstraintError(SglangLiteError, ValueError):
    """A constraint cannot be compiled; nothing was generated."""

    code = "invalid_schema"


class InvalidRegex(ConstraintError):
    """The pattern is malformed or uses a construct that is not regular.

    ``position`` is an index into ``pattern``, or None where no single place is to blame.
    """

    code = "invalid_regex"

    def __init__(self, pattern: str, reason: str, position: int | None = None) -> None:
        where = "" if position is None else f" at position {position}"
        super().__init__(f"regex {pattern!r}: {reason}{where}")
        self.pattern = pattern
        self.reason = reason
        self.position = position


class InvalidSchema(ConstraintError):
    """The text is not a JSON Schema; ``pointer`` is the JSON pointer of the offending place."""

    def __init__(self, pointer: str, reason: str) -> None:
        super().__init__(f"JSON Schema at '{pointer or '#'}': {reason}")
        self.pointer = pointer
        self.reason = reason


class UnsatisfiableSchema(InvalidSchema):
    """No JSON value satisfies the schema."""

    code = "unsatisfiable_schema"


class UnsupportedSchema(ConstraintError):
    """The schema is valid, but this keyword cannot be enforced exactly, so it is refused."""

    code = "unsupported_schema_keyword"

    def __init__(self, pointer: str, keyword: str, reason: str = "cannot be enforced") -> None:
        super().__init__(f"JSON Schema at '{pointer or '#'}': keyword '{keyword}' {reason}")
        self.pointer = pointer
        self.keyword = keyword
        self.reason = reason


class InvalidGrammar(ConstraintError):
    """A grammar text is malformed, or uses something that cannot be enforced.

    ``line`` and ``column`` count from 1; both are None where no single place is to blame.
    """

    code = "invalid_grammar"

    def __init__(self, reason: str, where: tuple[int, int] | None = None) -> None:
        self.reason = reason
        self.line = None if where is None else where[0]
        self.column = None if where is None else where[1]
        place = "" if where is None else f"line {where[0]}, column {where[1]}: "
        super().__init__(place + reason)


class GrammarTooComplex(ConstraintError):
    """A budget (size, depth, states, time) was exceeded; the message names it and the figure."""

    code = "grammar_too_complex"


class ModelNotFound(SglangLiteError, FileNotFoundError):
    """No model at the given path or id; the message says which files were looked for."""

    code = "model_not_found"


class UnsupportedModel(SglangLiteError, ValueError):
    """The model was found, but this runtime cannot run it correctly, so it refuses to."""

    code = "unsupported_model"


class EngineError(SglangLiteError, RuntimeError):
    """The engine failed while it worked on this request, or is shut down."""


class QueueFull(EngineError):
    """Too many requests are waiting; try again later."""

    code = "queue_full"


class RequestAborted(EngineError):
    """The request was aborted before it finished."""

    code = "request_aborted"


class BackendError(SglangLiteError, RuntimeError):
    """A remote backend failed or answered with something else than promised.

    ``status`` is the HTTP status (None when no answer came), ``body`` the start of the answer.
    """

    code = "backend_error"

    def __init__(self, message: str, status: int | None = None, body: str = "") -> None:
        answer = "" if status is None else f" (HTTP {status})"
        excerpt = f": {body[:500]}" if body else ""
        super().__init__(f"{message}{answer}{excerpt}")
        self.status = status
        self.body = body


class NotSupported(SglangLiteError, ValueError):
    """This backend cannot do what was asked, so it refuses before it sends anything."""

    code = "not_supported"


class Incomplete(SglangLiteError, ValueError):
    """A constrained or typed value was cut before it was whole; ``text`` is what there is."""

    code = "incomplete_value"

    def __init__(self, name: str, text: str, reason: str) -> None:
        super().__init__(f"value of {name!r} is incomplete ({reason}); raise max_tokens: {text!r}")
        self.name = name
        self.text = text
        self.reason = reason


class ProgramError(SglangLiteError, RuntimeError):
    """A prompt program failed; ``__cause__`` is the original exception.

    ``program`` is the function's name, ``node`` the expression that failed in words, ``variable``
    what it would have filled (or None) and ``where`` its source line, "file.py:12".
    """

    code = "program_error"

    def __init__(
        self, program: str, node: str, variable: str | None, where: str, cause: BaseException
    ) -> None:
        what = f"{type(cause).__name__}: {cause}"
        super().__init__(f"program {program!r}, {node} at {where}: {what}")
        self.program = program
        self.node = node
        self.variable = variable
        self.where = where
        self.__cause__ = cause


class ProgramCancelled(SglangLiteError, RuntimeError):
    """The program's run was cancelled, or left, before this value was there."""

    code = "program_cancelled"


class CheckFailed(SglangLiteError, ValueError):
    """``attempt.check`` did not hold; ``feedback`` is what the next attempt is told."""

    code = "check_failed"

    def __init__(self, feedback: str | None = None) -> None:
        super().__init__(feedback or "the check of this attempt failed")
        self.feedback = feedback
