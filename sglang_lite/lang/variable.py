"""A variable of a state: submitted, then filled or failed; anyone may wait for it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from sglang_lite.errors import Incomplete
from sglang_lite.lang.typed import TypedValue
from sglang_lite.outputs import FinishReason, Usage


@dataclass
class Sample:
    """One generated text with what is known about it; ``raw`` includes what heals a seam."""

    text: str = ""
    raw: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    usage: Usage = field(default_factory=Usage)
    meta: dict[str, Any] = field(default_factory=dict)
    probs: dict[str, float] | None = None


class Missing:
    """What stands in a joined list where a fork has no such variable."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


@dataclass(frozen=True)
class Failure:
    """What stands in a joined list where a fork has failed, with ``join(errors="keep")``."""

    error: BaseException

    def __bool__(self) -> bool:
        return False


class Variable:
    """``name`` with its samples (one, or n for ``gen(n=...)``)."""

    __slots__ = ("_done", "many", "name", "samples", "set_value", "value_type")

    def __init__(self, name: str | None, value_type: TypedValue | None = None) -> None:
        self.name = name
        self.value_type = value_type
        self.samples: list[Sample] = []
        self.many = False
        self.set_value: list[Any] = []
        self._done: Future[None] = Future()

    @classmethod
    def holding(cls, name: str, value: Any) -> Variable:
        """A variable that has its value already."""
        variable = cls(name)
        variable.set_value.append(value)
        variable._done.set_result(None)
        return variable

    def resolve(self, samples: list[Sample], *, many: bool = False) -> None:
        """Fill it."""
        self.samples, self.many = samples, many
        if not self._done.done():
            self._done.set_result(None)

    def resolve_text(self, text: str) -> None:
        """Fill it with a text that no model call of its own produced."""
        self.resolve([Sample(text, text)])

    def fail(self, error: BaseException) -> None:
        """Every waiter, now and later, raises ``error``."""
        if not self._done.done():
            self._done.set_exception(error)

    @property
    def done(self) -> Future[None]:
        """Resolves when the variable is filled; raises if it never will be."""
        return self._done

    # The rest needs a filled variable.

    @property
    def text(self) -> Any:
        """The text, or the list of texts of n samples."""
        if self.set_value:
            return self.set_value[0]
        texts = [sample.text for sample in self.samples]
        return texts if self.many else texts[0]

    @property
    def value(self) -> Any:
        """The typed value, or the list of n; raises :class:`Incomplete`."""
        if self.set_value:
            return self.set_value[0]
        if self.value_type is None:
            return self.text
        values = [self._parse(self.value_type, sample) for sample in self.samples]
        return values if self.many else values[0]

    def _parse(self, value_type: TypedValue, sample: Sample) -> Any:
        finish = sample.finish_reason
        # A JSON text that has its closing bracket is whole, whatever ended the generation.
        closed = value_type.is_json and sample.text[-1:] in ("}", "]", '"')
        cut = finish is not None and finish.type != "stop"
        if finish is not None and cut and value_type.constraint is not None and not closed:
            raise Incomplete(self.name or "", sample.text, f"finish reason: {finish.type}")
        try:
            return value_type.parse(sample.text)
        except ValueError as error:
            raise Incomplete(self.name or "", sample.text, str(error)) from error

    def per_sample(self, read: Any) -> Any:
        """``read(sample)``, or the list of it for n samples; None for a value that was set."""
        if not self.samples:
            return None
        values = [read(sample) for sample in self.samples]
        return values if self.many else values[0]
