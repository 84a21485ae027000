"""Expressions: what a program appends to its state.

Every constructor checks its arguments at the call and copies the caller's objects; the resulting
nodes are those of :mod:`sglang_lite.lang.nodes`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from sglang_lite.constraint import Constraint, Regex, constraint_from_fields
from sglang_lite.errors import InvalidRequest, NotSupported
from sglang_lite.lang.choices import ChoicesSamplingMethod, sum_logprob
from sglang_lite.lang.nodes import (
    Expression,
    Gen,
    Select,
    SeparateReasoning,
    as_expression,
    source_line,
)
from sglang_lite.lang.reasoning import REASONING_TAGS
from sglang_lite.lang.typed import TypedValue, layout
from sglang_lite.sampling_params import SamplingParams

DTYPE_PATTERNS = {
    "int": r"[-+]?[0-9]{1,18}",
    "float": r"[-+]?[0-9]{0,15}\.?[0-9]{1,15}",
    "bool": "(True|False)",
    "str": r'"[\w\d\s]*"',
}
"""SGLang's ``dtype`` patterns, with bounded digits and without its trailing whitespace: the span
ends with the value."""


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: type | str | None = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesSamplingMethod | None = None,
    regex: str | None = None,
    json_schema: str | Mapping[str, Any] | type | None = None,
    *,
    type: Any = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    whitespace: int | None = None,
    ebnf: str | None = None,
    lark: str | None = None,
    repetition_penalty: float | None = None,
    logit_bias: Mapping[int, float] | None = None,
    no_stop_trim: bool | None = None,
    seed: int | None = None,
    stop_outside: bool | None = None,
    heal: bool | None = None,
) -> Expression:
    """Generate a text and store it as ``name``.

    Sampling arguments left at None come from ``run()``; SGLang's defaults are ``max_tokens=128``
    and ``temperature=1.0``.  At most one of ``dtype`` (SGLang's: the value stays a str), ``type``
    (the value is of that type, see :mod:`sglang_lite.lang.typed`; ``ge``…``max_length`` bound it),
    ``regex``, ``json_schema``, ``ebnf``, ``lark`` and ``choices`` may be given.  With ``choices``
    this is :func:`select`, for which SGLang's other sampling arguments mean nothing: choices are
    scored, not generated.  JSON is written on one line, with ", " and ": "; ``whitespace=n``
    allows up to n whitespace characters in each gap instead (0: compact).  A value that is complete
    ends where the model would go on with something outside its constraint (where the backend can do
    that), with ``stop_outside=False`` only where it would end its text.  ``heal`` switches token
    healing at the seam to the literal before: None heals where a constraint meets a literal that
    ends in the middle of a word's spacing.

    Raises :class:`InvalidRequest` or :class:`InvalidRegex` at the call.
    """
    where = source_line()
    name = _name(name)
    if choices is not None:
        others = {"dtype": dtype, "type": type, "regex": regex, "json_schema": json_schema}
        others |= {"ebnf": ebnf, "lark": lark, "n": None if n == 1 else n, "heal": heal}
        others |= {"ge": ge, "gt": gt, "le": le, "lt": lt, "whitespace": whitespace}
        others |= {"min_length": min_length, "max_length": max_length, "seed": seed}
        others |= {"repetition_penalty": repetition_penalty, "logit_bias": logit_bias}
        others |= {"no_stop_trim": no_stop_trim, "stop_outside": stop_outside}
        for other, value in others.items():
            if value is not None:
                raise InvalidRequest(other, value, "nothing beside choices")
        method = sum_logprob if choices_method is None else choices_method
        return select(name, choices, 0.0 if temperature is None else temperature, method)
    if choices_method is not None:
        raise InvalidRequest("choices_method", choices_method, "only with choices")
    bounds = {"ge": ge, "gt": gt, "le": le, "lt": lt}
    bounds |= {"min_length": min_length, "max_length": max_length}
    constraint, value_type = _constraint(
        dtype=dtype,
        type_=type,
        bounds={key: value for key, value in bounds.items() if value is not None},
        whitespace=whitespace,
        json_schema=json_schema,
        regex=regex,
        ebnf=ebnf,
        lark=lark,
    )
    given: dict[str, Any] = {
        "max_new_tokens": max_tokens,
        "min_new_tokens": min_tokens,
        "n": n,
        "stop": stop,
        "stop_token_ids": stop_token_ids,
        "stop_regex": stop_regex,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "repetition_penalty": repetition_penalty,
        "ignore_eos": ignore_eos,
        "logit_bias": logit_bias,
        "no_stop_trim": no_stop_trim,
        "seed": seed,
        "stop_outside": stop_outside,
    }
    given = checked_fields(given)
    logprobs = {
        "return_logprob": return_logprob,
        "logprob_start_len": logprob_start_len,
        "top_logprobs_num": top_logprobs_num,
        "return_text_in_logprobs": return_text_in_logprobs,
    }
    logprobs = {key: value for key, value in logprobs.items() if value is not None}
    return Gen(name, given, constraint, value_type, logprobs, heal, where)


def checked_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are set, each validated and normalised as :class:`SamplingParams` does."""
    given = {key: value for key, value in fields.items() if value is not None}
    # No limit of its own: the backend's counts, not the default of SamplingParams.
    params = SamplingParams.from_dict({"max_new_tokens": None} | given)
    return {key: getattr(params, key) for key in given}


@functools.lru_cache(maxsize=256)
def _parsed(pattern: str) -> None:
    """Raise :class:`InvalidRegex` for what no backend could enforce: malformed or not regular."""
    from sglang_lite.constrained.regex_parser import parse

    parse(pattern)


def _constraint(
    *, dtype: Any, type_: Any, bounds: dict[str, Any], whitespace: int | None, **fields: Any
) -> tuple[Constraint | None, TypedValue | None]:
    kinds = [key for key, value in fields.items() if value is not None]
    kinds = [
        *(["dtype"] if dtype is not None else []),
        *(["type"] if type_ is not None else []),
        *kinds,
    ]
    if len(kinds) > 1:
        value = {"dtype": dtype, "type": type_, **fields}[kinds[1]]
        raise InvalidRequest(kinds[1], value, f"only one constraint, and {kinds[0]} is set")
    if bounds and type_ is None:
        key, value = next(iter(bounds.items()))
        raise InvalidRequest(key, value, "bounds go with type=")
    schema = fields["json_schema"]
    if whitespace is not None and type_ is None and schema is None:
        raise InvalidRequest("whitespace", whitespace, "only with json_schema= or type=")
    if dtype is not None:
        known = dtype.__name__ if isinstance(dtype, type) else dtype
        if known not in DTYPE_PATTERNS:
            raise InvalidRequest("dtype", dtype, "int, float, str, bool or their names")
        return Regex(DTYPE_PATTERNS[known]), None
    if type_ is not None:
        value_type = TypedValue.of(type_, whitespace=whitespace, **bounds)
        return value_type.constraint, value_type
    if fields["regex"]:
        _parsed(fields["regex"])
    options = None if schema is None or schema == "" else layout(whitespace)
    constraint = constraint_from_fields(**fields, json_options=options)
    return constraint, TypedValue.of(schema) if isinstance(schema, type) else None


def gen_int(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    **arguments: Any,
) -> Expression:
    """``gen(name, dtype=int, ...)``; the value is a str of an integer, as in SGLang."""
    return gen(name, max_tokens, n=n, stop=stop, dtype=int, **arguments)


def gen_string(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    **arguments: Any,
) -> Expression:
    """``gen(name, dtype=str, ...)``; the value is a quoted str, as in SGLang."""
    return gen(name, max_tokens, n=n, stop=stop, dtype=str, **arguments)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesSamplingMethod = sum_logprob,
    *,
    terminator: str | None = None,
) -> Expression:
    """Choose one of ``choices`` by their log probabilities after the text so far.

    Temperature 0 takes the best score of ``choices_method`` (by default the probability of the
    whole choice), above it one is drawn from softmax(scores / temperature).  ``terminator`` is
    scored after every choice; None scores one only where a choice is the beginning of another
    one, "" never.
    """
    if choices is None:
        raise InvalidRequest("choices", None, "a list of at least one str")
    number = isinstance(temperature, (int, float)) and not isinstance(temperature, bool)
    if not number or not 0 <= temperature < float("inf"):
        raise InvalidRequest("temperature", temperature, "a finite number, at least 0")
    if not isinstance(choices_method, ChoicesSamplingMethod):
        raise InvalidRequest("choices_method", choices_method, "a ChoicesSamplingMethod")
    if terminator == "" and "" in choices:
        raise InvalidRequest("terminator", "", "a text, because one of the choices is empty")
    where = source_line()
    return Select(_name(name), _choices(choices), temperature, choices_method, terminator, where)


def _choices(choices: Sequence[str]) -> tuple[str, ...]:
    if isinstance(choices, str) or not all(isinstance(choice, str) for choice in choices):
        raise InvalidRequest("choices", choices, "a list of str")
    if not choices:
        raise InvalidRequest("choices", choices, "at least one choice")
    if len(set(choices)) != len(choices):
        raise InvalidRequest("choices", choices, "choices that differ from each other")
    return tuple(choices)


def _name(name: Any) -> str | None:
    if name is not None and not isinstance(name, str):
        raise InvalidRequest("name", name, "a str or None")
    return name


def separate_reasoning(
    expr: Expression | None = None,
    model_type: str | None = None,
    *,
    open: str | None = None,
    close: str | None = None,
) -> Expression:
    """Split what the gens inside ``expr`` produce: ``s["a"]`` is the answer,
    ``s["a_reasoning_content"]`` the reasoning, and only the answer stays in the text.

    ``model_type`` names a family of :data:`REASONING_TAGS`; ``open`` and ``close`` give the tags
    themselves.  It may stand inside or around a role.
    """
    if expr is None:
        raise InvalidRequest("expr", expr, "an expression with a named gen")
    if open is None or close is None:
        if model_type not in REASONING_TAGS:
            accepted = f"one of {', '.join(REASONING_TAGS)}, or open= and close="
            raise InvalidRequest("model_type", model_type, accepted)
        open, close = REASONING_TAGS[model_type]
    return SeparateReasoning(as_expression(expr), open, close)


def image(path: Any) -> NoReturn:
    """Refused: the models of this runtime read text only."""
    raise NotSupported("image() is not supported: no backend of this package takes images")


def video(path: Any, num_frames: int) -> NoReturn:
    """Refused: the models of this runtime read text only."""
    raise NotSupported("video() is not supported: no backend of this package takes videos")
