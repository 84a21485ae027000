"""``POST /v1/decisions``: many questions about one input, answered with probabilities.

Each question is one prompt that ends where the model would write a one-token label; the answer is
read off the label's log probabilities.  All prompts begin with the input, so the radix tree
computes it once, and nothing is sampled.
"""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from sglang_lite.runtime.messages import GenerateRequest, Usage
from sglang_lite.runtime.server.context import ServerContext, server_of
from sglang_lite.runtime.server.errors import ApiError, invalid
from sglang_lite.runtime.server.generation import Generation, Sample
from sglang_lite.runtime.server.prompts import chat_ids, new_id
from sglang_lite.runtime.server.schemas.chat import Message
from sglang_lite.runtime.server.schemas.decisions import (
    AnyQuestion,
    ChoiceQuestion,
    DecisionRequest,
    ScoreQuestion,
)
from sglang_lite.runtime.server.schemas.wire import json_body, read_body
from sglang_lite.runtime.server.stream import cancellable
from sglang_lite.runtime.server.tools import ToolPlan, conversation
from sglang_lite.sampling_params import SamplingParams

if TYPE_CHECKING:
    from sglang_lite.runtime.tokenizer import Tokenizer

router = APIRouter()

WAVE = 64
"""Questions that are in the engine at once."""


@router.post("/v1/decisions", openapi_extra=json_body(DecisionRequest))
@cancellable
async def decisions(request: Request) -> Response:
    """Answer predicates, choices and scores about an input."""
    server = server_of(request)
    body = await read_body(request, DecisionRequest)
    server.check_model(body.model)
    server.admit()
    asked = [
        await _Asked.about(server, body.messages(), question, number)
        for number, question in enumerate(body.questions)
    ]
    name = new_id("dec-")
    answers: list[dict[str, Any]] = []
    usages: list[Usage] = []
    for start in range(0, len(asked), WAVE):
        wave = asked[start : start + WAVE]
        requests = [one.request(f"{name}-{start + i}") for i, one in enumerate(wave)]
        with await Generation.start(server, f"{name}-{start}", requests) as generation:
            for one, [sample] in zip(wave, await generation.collect(1), strict=True):
                generation.check(sample.finish_reason)
                answers.append(_answer(one.question, one.probabilities(sample)))
                usages.append(sample.usage)
    made = {"model": server.model_name, "answers": answers, "usage": _usage(usages)}
    return JSONResponse(made, headers=server.note_ignored(body.ignored_fields))


@dataclass(frozen=True)
class _Asked:
    """A question in the model's terms: the prompt, and each option's label tokens."""

    question: AnyQuestion
    ids: tuple[int, ...]
    labels: tuple[tuple[int, ...], ...]

    @classmethod
    async def about(
        cls,
        server: ServerContext,
        messages: list[dict[str, Any]],
        question: AnyQuestion,
        number: int,
    ) -> _Asked:
        tokenizer = server.engine.tokenizer
        options = _options(question)
        if isinstance(question, ChoiceQuestion):
            labels = list(itertools.islice(_letters(tokenizer), len(options)))
        elif isinstance(question, ScoreQuestion):
            labels = list(string.digits[: len(options)])
        else:
            labels = ["Yes", "No"]
        tokens = [_label_tokens(tokenizer, label) for label in labels]
        if len(tokens) < len(options) or not all(tokens):
            text = f"this model has no one-token labels for {len(options)} options"
            raise invalid(f"questions.{number}", text, "unsupported_value")
        asked = [Message.model_validate(message) for message in _with(messages, question, labels)]
        told, _ = conversation(asked, ToolPlan("none"), tokenizer.chat_template)
        return cls(question, tuple(await chat_ids(tokenizer, told)), tuple(tokens))

    def request(self, name: str) -> GenerateRequest:
        """Compute the prompt, and the labels' log probabilities after it."""
        return GenerateRequest(
            input_ids=self.ids,
            sampling_params=SamplingParams(max_new_tokens=1, temperature=0.0),
            rid=name,
            return_logprob=True,
            token_ids_logprob=tuple(token for label in self.labels for token in label),
        )

    def probabilities(self, sample: Sample) -> list[float]:
        """The options' probabilities, given that one of their labels is written."""
        if not sample.chosen_logprobs:
            raise ApiError(500, "The engine returned no log probabilities.", code="internal_error")
        logprobs = {token: value for value, token in sample.chosen_logprobs[0]}
        values = [[_number(logprobs.get(token)) for token in label] for label in self.labels]
        highest = max(value for label in values for value in label)
        weights = [sum(math.exp(value - highest) for value in label) for label in values]
        return [weight / sum(weights) for weight in weights]


def _number(logprob: float | None) -> float:
    return -1e9 if logprob is None or math.isinf(logprob) else logprob


def _options(question: AnyQuestion) -> list[str]:
    """What the model chooses from, in words."""
    if isinstance(question, ChoiceQuestion):
        named = [(str(option.value), option.description) for option in question.choices]
    elif isinstance(question, ScoreQuestion):
        named = [(level.label, level.description) for level in question.levels]
    else:
        named = [("yes", None), ("no", None)]
    return [name if not about else f"{name} ({about})" for name, about in named]


def _with(
    messages: list[dict[str, Any]], question: AnyQuestion, labels: Sequence[str]
) -> list[dict[str, Any]]:
    """The messages and then the question; in the last turn if that is the user's."""
    text = f"{question.text}\n"
    if isinstance(question, (ChoiceQuestion, ScoreQuestion)):
        lines = [
            f"{label}: {option}\n" for label, option in zip(labels, _options(question), strict=True)
        ]
        text += f"{''.join(lines)}Answer with {labels[0]} to {labels[-1]} only."
    else:
        text += "Is this true? Answer with Yes or No only."
    if messages and messages[-1]["role"] == "user":
        last = {"role": "user", "content": f"{messages[-1]['content']}\n\n{text}"}
        return [*messages[:-1], last]
    return [*messages, {"role": "user", "content": text}]


def _letters(tokenizer: Tokenizer) -> Iterator[str]:
    """A, B, … Z, AA, AB, …: those that are one token."""
    pairs = ("".join(pair) for pair in itertools.product(string.ascii_uppercase, repeat=2))
    for label in itertools.chain(string.ascii_uppercase, pairs):
        if _label_tokens(tokenizer, label):
            yield label


def _label_tokens(tokenizer: Tokenizer, label: str) -> tuple[int, ...]:
    """The one-token spellings of a label: as it is, and after a space."""
    spellings = (tokenizer.encode(text) for text in (label, f" {label}"))
    return tuple(ids[0] for ids in spellings if len(ids) == 1)


def _answer(question: AnyQuestion, probabilities: list[float]) -> dict[str, Any]:
    """``confidence`` is the probability of the most likely option."""
    best = max(range(len(probabilities)), key=probabilities.__getitem__)
    head = {"type": question.type, "name": question.name}
    if isinstance(question, ChoiceQuestion):
        values = [option.value for option in question.choices]
        return {
            **head,
            "choice": values[best],
            "confidence": probabilities[best],
            "probabilities": [
                {"value": value, "probability": probability}
                for value, probability in zip(values, probabilities, strict=True)
            ],
        }
    if isinstance(question, ScoreQuestion):
        return {
            **head,
            "score": sum(value * p for value, p in enumerate(probabilities)),
            "confidence": probabilities[best],
            "probabilities": [
                {"value": value, "label": level.label, "probability": probability}
                for value, (level, probability) in enumerate(
                    zip(question.levels, probabilities, strict=True)
                )
            ],
        }
    return {**head, "probability": probabilities[0]}


def _usage(usages: Sequence[Usage]) -> dict[str, Any]:
    prompt = sum(usage.prompt_tokens for usage in usages)
    cached = sum(usage.cached_tokens for usage in usages)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": prompt - cached},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt,
    }
