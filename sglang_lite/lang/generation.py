"""How the interpreter runs its two nodes that call a model: ``gen`` and ``select``."""

from __future__ import annotations

import hashlib
import logging
import math
import random
from typing import TYPE_CHECKING, Any

from sglang_lite.constraint import StructuralTag
from sglang_lite.errors import BackendError
from sglang_lite.lang.backends.lowering import check_answer
from sglang_lite.lang.choices import logprobs_of, mean, softmax
from sglang_lite.lang.events import TextEvent, UsageEvent, VariableDelta, VariableEnd
from sglang_lite.lang.nodes import Gen, LogprobOptions, Select
from sglang_lite.lang.reasoning import ReasoningSplitter
from sglang_lite.lang.seams import align, heal
from sglang_lite.lang.variable import Sample, Variable
from sglang_lite.outputs import RequestOutput, TokenLogprob
from sglang_lite.sampling_params import SamplingParams

if TYPE_CHECKING:
    from sglang_lite.lang.backends.base import Backend
    from sglang_lite.lang.executor import Executor

log = logging.getLogger("sglang_lite")


async def run_gen(executor: Executor, node: Gen, variables: tuple[Variable, ...]) -> None:
    """Generate, keep the token ids, fill the variable (and that of its reasoning)."""
    run = executor.run
    executor.begin_answer()
    params = await resolve(executor, node)
    options = LogprobOptions(**{**run.logprob_fields, **node.logprobs})
    literal = await executor.transcript.prompt(run.backend, node.name)
    healed = await heal(run.backend, node, literal, params)
    prompt, params = healed.prompt, healed.params
    samples = [Sample() for _ in range(params.n)]
    tell = _Telling(executor, node, params.n)
    source = executor.speculation or run.backend
    stream = source.stream(prompt, params, options)
    try:
        async for output in stream:
            text = _take(samples[output.index], output, healed.text)
            _take_logprobs(samples[output.index].meta, output, run.backend, options)
            tell(output.index, text)
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
    for sample in samples:
        if sample.finish_reason is None:
            raise BackendError(f"backend {run.backend.name} ended a stream without a finish reason")
        if sample.finish_reason.type == "abort":
            raise BackendError(f"the request was aborted: {sample.finish_reason.message}")
        whole = sample.finish_reason.type == "stop" and not (params.stop or params.stop_regex)
        if whole and not run.backend.obeys_constraints:
            check_answer(node.constraint or run.params.constraint, sample.text)
        _warn_if_cut(executor, node, sample, params)
        run.count(sample.usage)
    first = samples[0]
    tell.finish()
    if tell.splitters:
        executor.transcript.append(tell.splitters[0].answer)
        for sample, splitter in zip(samples, tell.splitters, strict=True):
            sample.text = splitter.answer
        thoughts = [Sample(splitter.reasoning) for splitter in tell.splitters]
        variables[1].resolve(thoughts, many=params.n > 1)
        executor.emit(VariableEnd(executor.path, variables[1].name, variables[1].text))
    else:
        ids, rest = await align(run.backend, first.token_ids, healed.text + first.text)
        aligned = first.text[: len(first.text) - len(rest)]
        transcript = executor.transcript
        transcript.append_generated(
            aligned, ids, prompt.input_ids or (), rest, healed=bool(healed.text)
        )
    variables[0].resolve(samples, many=params.n > 1)
    executor.emit(UsageEvent(executor.path, node.name, first.usage))
    executor.emit(VariableEnd(executor.path, node.name, _shown(variables[0])))


class _Telling:
    """Tells the readers of the stream about the deltas of one gen, split where it reasons."""

    def __init__(self, executor: Executor, node: Gen, count: int) -> None:
        self._executor = executor
        self._name = node.name
        tags = node.reasoning
        self.splitters = [ReasoningSplitter(*tags) for _ in range(count)] if tags else []

    def __call__(self, index: int, text: str) -> None:
        if not self.splitters:
            self._tell(index, self._name, text)
            return
        for part, piece in self.splitters[index].feed(text):
            self._tell_part(index, part, piece)

    def finish(self) -> None:
        """The texts have ended."""
        for index, splitter in enumerate(self.splitters):
            for part, piece in splitter.finish():
                self._tell_part(index, part, piece)

    def _tell_part(self, index: int, part: str, text: str) -> None:
        if part == "answer":
            self._tell(index, self._name, text)
        else:
            name = f"{self._name}_reasoning_content"
            self._executor.emit(VariableDelta(self._executor.path, name, text, index))

    def _tell(self, index: int, name: str | None, text: str) -> None:
        if text:
            self._executor.emit(VariableDelta(self._executor.path, name, text, index))
            if index == 0:
                self._executor.emit(TextEvent(self._executor.path, text))


async def resolve(executor: Executor, node: Gen) -> SamplingParams:
    """The run's parameters with those that the node sets itself, and a seed of its own."""
    run = executor.run
    changes: dict[str, Any] = dict(node.given)
    if node.constraint is not None:
        changes["constraint"] = node.constraint
    if _ends_outside(executor, node):
        changes["stop_outside"] = True
    number = executor.gens
    executor.gens += 1
    if "seed" not in changes and run.params.seed is not None:
        changes["seed"] = derived_seed(run.params.seed, *executor.path, -1, number)
    if executor.transcript.open_role is not None:
        stops = await run.turn_end_ids()
        if stops:
            own = changes.get("stop_token_ids", run.params.stop_token_ids)
            changes["stop_token_ids"] = tuple(dict.fromkeys((*own, *stops)))
    return run.params.replace(**changes) if changes else run.params


def _ends_outside(executor: Executor, node: Gen) -> bool:
    """Whether a gen that says nothing about its end gets the language's default.

    Structural tags don't: most of their text is free, so only its writer knows the end.
    """
    params = executor.run.params
    constraint = node.constraint or params.constraint
    if constraint is None or isinstance(constraint, StructuralTag):
        return False
    chosen = node.given.get("stop_outside", params.stop_outside)
    return chosen is None and executor.run.backend.ends_outside


def derived_seed(*numbers: int) -> int:
    """A seed that depends on all the numbers: (run's seed, path of the fork, -1, number of gen)."""
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big")


def _take(sample: Sample, output: RequestOutput, healed: str) -> str:
    """Add an output to its sample; its text without what heals the literal before."""
    begun = len(sample.raw)
    sample.raw += output.text
    text = sample.raw[max(begun, len(healed)) :]
    sample.text += text
    sample.token_ids.extend(output.token_ids)
    sample.usage = output.usage
    if output.finish_reason is not None:
        sample.finish_reason = output.finish_reason
        sample.meta["id"] = output.rid
        sample.meta["finish_reason"] = output.finish_reason.to_dict()
        sample.meta["prompt_tokens"] = output.usage.prompt_tokens
        sample.meta["completion_tokens"] = output.usage.completion_tokens
        sample.meta["cached_tokens"] = output.usage.cached_tokens
    return text


def _take_logprobs(
    meta: dict[str, Any], output: RequestOutput, backend: Backend, options: LogprobOptions
) -> None:
    """Collect under SGLang's meta keys; entries are [logprob, id, text or None]."""

    def entry(pair: TokenLogprob) -> list[Any]:
        value, token = pair
        return [
            value,
            token,
            backend.token_text(token) if options.return_text_in_logprobs else None,
        ]

    for side, logprobs in (("output", output.logprobs), ("input", output.prompt_logprobs)):
        if logprobs is not None:
            entries = meta.setdefault(f"{side}_token_logprobs", [])
            entries.extend(entry(pair) for pair in logprobs.tokens)
        if logprobs is not None and logprobs.top:
            rows = meta.setdefault(f"{side}_top_logprobs", [])
            rows.extend([entry(pair) for pair in row] for row in logprobs.top)


def _warn_if_cut(executor: Executor, node: Gen, sample: Sample, params: SamplingParams) -> None:
    cut = sample.finish_reason is not None and sample.finish_reason.type == "length"
    chosen = "max_new_tokens" in node.given
    if (
        cut
        and not chosen
        and node.name is not None
        and executor.run.warn_once(f"{node.where} {node.label}")
    ):
        limit = params.max_new_tokens
        log.warning("%s at %s was cut at max_tokens=%s", node.label, node.where, limit)


def _shown(variable: Variable) -> Any:
    try:
        return variable.value
    except ValueError:
        return variable.text


async def run_select(executor: Executor, node: Select, variable: Variable) -> None:
    """Score the choices, decide, append the decision as a literal."""
    run, method = executor.run, node.method
    if len(node.choices) == 1:
        _decide(executor, node, variable, node.choices[0], {}, [0.0])
        return
    prompt = await executor.transcript.prompt(run.backend, node.name)
    written = await run.backend.choose(prompt, node.choices)
    if written is not None:
        _decide(executor, node, variable, written, {}, [])
        return
    scored = await run.backend.score(
        prompt,
        node.choices,
        suffix=_terminator(executor, node),
        unconditional=method.neutral_context if method.requires_unconditional_logprobs else None,
    )
    decision = method(
        choices=list(node.choices),
        normalized_prompt_logprobs=[mean(logprobs_of(entries)) for entries in scored.input],
        input_token_logprobs=scored.input,
        output_token_logprobs=scored.output,
        unconditional_token_logprobs=scored.unconditional,
    )
    chosen = decision.decision
    if node.temperature > 0 and decision.scores:
        weights = softmax(decision.scores, node.temperature)
        chosen = _random(executor).choices(node.choices, weights)[0]
    meta = {**(decision.meta_info or {}), **scored.usage}
    _decide(executor, node, variable, chosen, meta, decision.scores)


def _decide(
    executor: Executor,
    node: Select,
    variable: Variable,
    chosen: str,
    meta: dict[str, Any],
    scores: list[float],
) -> None:
    executor.append(chosen)
    sample = Sample(chosen, meta=meta)
    if scores:
        temperature = node.temperature or 1.0
        sample.probs = dict(zip(node.choices, softmax(scores, temperature), strict=True))
    variable.resolve([sample])
    executor.emit(VariableDelta(executor.path, node.name, chosen))
    executor.emit(VariableEnd(executor.path, node.name, chosen))


def _terminator(executor: Executor, node: Select) -> str:
    """What is scored after every choice, so that the beginning of another one competes fairly."""
    if node.terminator is not None:
        return node.terminator
    choices = node.choices
    nested = any(a != b and b.startswith(a) for a in choices for b in choices)
    if not nested:
        return ""
    if node.follow:
        return node.follow
    transcript = executor.transcript
    if transcript.open_role is not None:
        roles = [message.role for message in transcript.messages] + [transcript.open_role]
        return executor.run.template().suffix(roles) or "\n"
    return "\n"


def _random(executor: Executor) -> random.Random:
    seed = executor.run.params.seed
    number = executor.gens
    executor.gens += 1
    if seed is None:
        return random.Random()
    return random.Random(derived_seed(seed, *executor.path, -1, number))


def entropy(probabilities: list[float]) -> float:
    """Shannon entropy in nats; how undecided a select was."""
    return -math.fsum(p * math.log(p) for p in probabilities if p > 0)
