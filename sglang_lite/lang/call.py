"""The arguments of one call of a program: its own, and those of the run."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sglang_lite.errors import InvalidRequest
from sglang_lite.lang.backends.registry import current_backend
from sglang_lite.lang.expressions import checked_fields
from sglang_lite.lang.run import Run
from sglang_lite.lang.state import ProgramState
from sglang_lite.sampling_params import FIELD_NAMES, SamplingParams

if TYPE_CHECKING:
    from sglang_lite.lang.program import SglFunction

SAMPLING_NAMES = frozenset(
    {*FIELD_NAMES, "max_tokens", "min_tokens", "sampling_seed"} - {"constraint"}
)
LOGPROB_NAMES = frozenset(
    {"return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs"}
)
RUN_NAMES = frozenset({"backend", "stream", "use_thread", "sampling"})


class Call:
    """One call's arguments, sorted into the program's own and the run's, and checked."""

    def __init__(
        self,
        program: SglFunction,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self.program = program
        own, rest = _sorted(program, kwargs)
        positional = [
            name
            for name, p in program.parameters.items()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        taken = set(positional[: len(args)])
        self.args = args
        self.kwargs = {k: v for k, v in program.bound.items() if k not in taken} | own
        program_name = getattr(program, "__name__", "program")
        try:
            program.signature.bind(None, *args, **self.kwargs)
        except TypeError as error:
            raise TypeError(f"{program_name}(): {error}") from None
        self.backend = rest.pop("backend", None)
        self.stream = rest.pop("stream", False)
        self.eager = not rest.pop("use_thread", True)
        if self.eager and program.is_async:
            raise InvalidRequest("use_thread", False, "True for an async program")
        sampling = rest.pop("sampling", None)
        self.logprobs = {k: rest.pop(k) for k in LOGPROB_NAMES & rest.keys()}
        for name, value in rest.items():
            if name not in SAMPLING_NAMES:
                names = [*program.parameters, *SAMPLING_NAMES, *LOGPROB_NAMES, *RUN_NAMES]
                near = difflib.get_close_matches(name, names, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                accepted = f"a parameter of {program_name} or a sampling parameter{hint}"
                raise InvalidRequest(name, value, accepted)
        fields = checked_fields(_names(rest))
        self.chose_length = sampling is not None or "max_new_tokens" in fields
        if isinstance(sampling, Mapping):
            sampling = SamplingParams.from_dict(sampling)
        if sampling is not None and not isinstance(sampling, SamplingParams):
            raise InvalidRequest("sampling", sampling, "SamplingParams or a dict")
        self.params = (sampling or SamplingParams()).replace(**fields)

    def make_run(self) -> Run:
        """A run of this call, on its backend."""
        return Run(
            getattr(self.program, "__name__", "program"),
            current_backend(self.backend),
            self.params,
            {key: value for key, value in self.logprobs.items() if value is not None},
            stream=self.stream,
            eager=self.eager,
            # Who chose a length knows that it cuts.
            warned=None if self.chose_length else self.program.warned,
            ahead=self.program.num_api_spec_tokens,
        )

    def body(self, state: ProgramState) -> Any:
        """Call the function (a coroutine for an async one)."""
        return self.program.func(state, *self.args, **self.kwargs)


def _sorted(
    program: SglFunction, kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the program's own arguments, the run's): a name that both have is the program's."""
    own: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in program.parameters.values())
    reserved = SAMPLING_NAMES | LOGPROB_NAMES | RUN_NAMES
    for name, value in kwargs.items():
        mine = name in program.parameters or (takes_any and name not in reserved)
        (own if mine else rest)[name] = value
    return own, rest


def _names(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are set, under their first names."""
    aliases = {
        "max_tokens": "max_new_tokens",
        "min_tokens": "min_new_tokens",
        "sampling_seed": "seed",
    }
    named: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None:
            continue
        first = aliases.get(name, name)
        if first in named:
            raise InvalidRequest(name, value, f"only one of {name} and {first}")
        named[first] = value
    return named


def own_parameters(func: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The program's own parameters: those after the state."""
    parameters = list(inspect.signature(func).parameters.values())
    if len(parameters) > 1 and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise InvalidRequest("func", func, "a function whose first parameter is the state")
    return {parameter.name: parameter for parameter in parameters[1:]}
