"""The one place where a sampling parameter's name, default and range is written."""

from __future__ import annotations

import dataclasses
import difflib
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_lite.constraint import CONSTRAINT_FIELDS, Constraint, constraint_from_fields
from sglang_lite.errors import InvalidRequest

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them would only overflow."""

MAX_STOPS = 32
MAX_STOP_LENGTH = 1024
MAX_N = 64

_INT = "an integer"


@dataclass(frozen=True)
class SamplingParams:
    """How to turn logits into text; SGLang's names, defaults and ranges.

    Every field is validated once, at construction; :class:`InvalidRequest` names the field, the
    value and what is accepted.  Checks that need the model (ids inside the vocabulary, lengths
    inside the context) are the engine's.

    * ``max_new_tokens``: at most so many tokens; 0 computes the prompt only, None
      fills the context.
    * ``min_new_tokens``: no EOS and no stop before so many tokens.
    * ``n``: independent samples of one prompt.
    * ``temperature``: 0 (anything below 1e-5) is greedy.
    * ``top_k``: -1 or 0 is off.  ``top_p`` in (0, 1].  ``min_p`` in [0, 1].
    * ``frequency_penalty``, ``presence_penalty`` in [-2, 2] count generated tokens;
      ``repetition_penalty`` in (0, 2] counts prompt and generated tokens.
    * ``stop``: texts that end the generation and are cut off, unless ``no_stop_trim``;
      ``stop_token_ids`` likewise; ``stop_regex``: patterns that end it.
    * ``skip_special_tokens``: control tokens have no text.  ``spaces_between_special_tokens`` is
      for remote servers with slow tokenizers; those that the engine loads put no spaces anywhere.
    * ``ignore_eos``: go on after an end-of-sequence token.
    * ``seed``: same seed, same text, whatever else runs beside; None draws one.
    * ``logit_bias``: token id to a number in [-100, 100] added to its logit.
    * ``constraint``: what the text must match.
    * ``stop_outside``: a constrained text that is complete ends where the model, asked freely,
      chooses something that the constraint does not allow; else only where it chooses an
      end-of-sequence token among what is allowed.  None: the language's ``gen`` does so, requests
      to the engine and the server don't.
    """

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    no_stop_trim: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    constraint: Constraint | None = None
    stop_outside: bool | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "stop", _strings("stop", self.stop))
        put(self, "stop_regex", _strings("stop_regex", self.stop_regex))
        put(self, "stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        put(self, "logit_bias", _bias(self.logit_bias))
        if self.max_new_tokens is not None:
            _integer("max_new_tokens", self.max_new_tokens, 0)
        _integer("min_new_tokens", self.min_new_tokens, 0)
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            accepted = f"at most max_new_tokens={self.max_new_tokens}"
            raise InvalidRequest("min_new_tokens", self.min_new_tokens, accepted)
        _integer("n", self.n, 1, MAX_N)
        _number("temperature", self.temperature, 0.0, math.inf)
        _number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _integer("top_k", self.top_k, -1)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, 2.0, open_low=True)
        if self.seed is not None:
            _integer("seed", self.seed, -(2**63), 2**63 - 1)
        for name in ("no_stop_trim", "ignore_eos", "skip_special_tokens"):
            _boolean(name, getattr(self, name))
        _boolean("spaces_between_special_tokens", self.spaces_between_special_tokens)
        if self.stop_outside is not None:
            _boolean("stop_outside", self.stop_outside)

    @property
    def greedy(self) -> bool:
        """True where the most probable token is taken and no random number is drawn."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any] | None) -> SamplingParams:
        """Make one from SGLang's ``sampling_params`` dict.

        None counts as not given.  Constraints are given as ``json_schema``, ``regex``, ``ebnf``,
        ``lark``, ``choices`` or ``structural_tag`` (with ``json_options`` and ``prefix``, see
        :func:`~sglang_lite.constraint.constraint_from_fields`); ``sampling_seed`` and
        ``max_tokens`` are accepted as other names of ``seed`` and ``max_new_tokens``.  An unknown
        name raises :class:`InvalidRequest` with the nearest known one.
        """
        given = {name: value for name, value in (fields or {}).items() if value is not None}
        for alias, name in _ALIASES.items():
            if alias in given:
                if name in given:
                    raise InvalidRequest(alias, given[alias], f"only one of {alias} and {name}")
                given[name] = given.pop(alias)
        constraint = constraint_from_fields(
            **{name: given.pop(name) for name in CONSTRAINT_FIELDS if name in given}
        )
        if constraint is not None:
            if given.get("constraint") is not None:
                raise InvalidRequest("constraint", given["constraint"], "only one constraint")
            given["constraint"] = constraint
        for name in given:
            if name not in FIELD_NAMES:
                near = difflib.get_close_matches(name, [*FIELD_NAMES, *CONSTRAINT_FIELDS], 1)
                hint = f"did you mean {near[0]}?" if near else "no parameter has this name"
                raise InvalidRequest(name, given[name], hint)
        return cls(**given)

    def replace(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)


FIELD_NAMES = tuple(field.name for field in dataclasses.fields(SamplingParams))
_ALIASES = {"sampling_seed": "seed", "max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}


def _integer(name: str, value: Any, low: int, high: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(name, value, _INT)
    if value < low or (high is not None and value > high):
        bounds = f"from {low} to {high}" if high is not None else f"at least {low}"
        raise InvalidRequest(name, value, f"{_INT}, {bounds}")


def _number(name: str, value: Any, low: float, high: float, open_low: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidRequest(name, value, "a number")
    inside = (low < value if open_low else low <= value) and value <= high
    # An integer may be larger than any finite number of floating point.
    if not inside or not value <= sys.float_info.max:
        left, right = "(" if open_low else "[", "]" if math.isfinite(high) else ")"
        raise InvalidRequest(name, value, f"a finite number in {left}{low:g}, {high:g}{right}")


def _boolean(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidRequest(name, value, "True or False")


def _strings(name: str, value: Any) -> tuple[str, ...]:
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise InvalidRequest(name, value, "a str or a list of str")
    for item in items:
        if not isinstance(item, str) or not item:
            raise InvalidRequest(name, value, "texts that are not empty")
    if len(items) > MAX_STOPS:
        raise InvalidRequest(name, value, f"at most {MAX_STOPS} texts")
    if any(len(item) > MAX_STOP_LENGTH for item in items):
        raise InvalidRequest(name, value, f"texts of at most {MAX_STOP_LENGTH} characters")
    return tuple(dict.fromkeys(items))


def _ids(name: str, value: Any) -> tuple[int, ...]:
    items = (value,) if isinstance(value, int) else value
    if not isinstance(items, (list, tuple, set, frozenset)):
        raise InvalidRequest(name, value, "a list of token ids")
    for item in items:
        if not isinstance(item, int) or isinstance(item, bool) or item < 0:
            raise InvalidRequest(name, value, "token ids: integers from 0 up")
    return tuple(dict.fromkeys(items))


def _bias(value: Any) -> tuple[tuple[int, float], ...]:
    pairs = value.items() if isinstance(value, Mapping) else value
    accepted = "a mapping of token ids to numbers in [-100, 100]"
    biases: dict[int, float] = {}
    try:
        for key, bias in pairs:
            # JSON's keys are texts; what int() would cut off is no id.
            if isinstance(key, (float, bool)) or isinstance(bias, (str, bool)):
                raise TypeError
            biases[int(key)] = float(bias)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest("logit_bias", value, accepted) from None
    if any(token < 0 or not -100 <= bias <= 100 for token, bias in biases.items()):
        raise InvalidRequest("logit_bias", value, accepted)
    return tuple(sorted(biases.items()))
