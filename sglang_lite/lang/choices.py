"""How ``select`` turns the choices' token log probabilities into a decision.

All methods see the same window: the tokens of prompt + choice from the first position on at which
any choice differs from the prompt's own tokens, so that scores are comparable.  Names and meta
keys are SGLang's; ``sum`` and ``byte_mean`` are added.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

TokenEntry = tuple["float | None", int, "str | None"]
"""(log probability, token id, text); None for a token that nothing predicts."""

TIE_TOLERANCE = 1e-6
"""Scores closer than this are equal, and the first choice wins: batched arithmetic may differ in
the last bits from run to run."""


@dataclass
class ChoicesDecision:
    """The text that was chosen, one score per choice (log domain), and what they rest on."""

    decision: str
    meta_info: dict[str, Any] | None = None
    scores: list[float] = field(default_factory=list)


class ChoicesSamplingMethod(ABC):
    """Subclass and implement ``__call__`` for a method of your own."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        """True where the choices must also be scored without the prompt."""
        return False

    @property
    def neutral_context(self) -> str:
        """After which text the choices are scored when they are scored without the prompt."""
        return ""

    @abstractmethod
    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[Any]],
        output_token_logprobs: list[list[Any]],
        unconditional_token_logprobs: list[list[Any]] | None = None,
    ) -> ChoicesDecision:
        """Decide; token entries are ``[logprob, id, text]``."""


def logprobs_of(entries: Sequence[Any]) -> list[float]:
    """The numbers of some token entries, without the tokens that nothing predicts."""
    return [float(entry[0]) for entry in entries if entry[0] is not None]


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of nothing, which is the score of an empty window."""
    return sum(values) / len(values) if values else 0.0


def argmax(scores: Sequence[float]) -> int:
    """The first index whose score is the best within :data:`TIE_TOLERANCE`."""
    best = max(scores)
    if best == -math.inf:
        return 0
    return next(i for i, score in enumerate(scores) if score >= best - TIE_TOLERANCE)


class _Scored(ChoicesSamplingMethod):
    """A method that is a score per choice and takes the best one."""

    def scores(
        self, choices: list[str], means: list[float], tokens: list[list[float]]
    ) -> list[float]:
        raise TypeError(f"{type(self).__name__} defines no scores")  # pragma: no cover

    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[Any]],
        output_token_logprobs: list[list[Any]],
        unconditional_token_logprobs: list[list[Any]] | None = None,
    ) -> ChoicesDecision:
        tokens = [logprobs_of(entries) for entries in input_token_logprobs]
        scores = self.scores(choices, normalized_prompt_logprobs, tokens)
        meta = {
            "normalized_prompt_logprobs": normalized_prompt_logprobs,
            "input_token_logprobs": input_token_logprobs,
            "output_token_logprobs": output_token_logprobs,
        }
        return ChoicesDecision(choices[argmax(scores)], meta, scores)


class TokenLengthNormalized(_Scored):
    """The mean log probability per token; favours long, predictable choices."""

    def scores(
        self, choices: list[str], means: list[float], tokens: list[list[float]]
    ) -> list[float]:
        return list(means)


class Sum(_Scored):
    """The log probability of the whole choice; favours short ones."""

    def scores(
        self, choices: list[str], means: list[float], tokens: list[list[float]]
    ) -> list[float]:
        return [math.fsum(values) for values in tokens]


class ByteMean(_Scored):
    """The log probability per UTF-8 byte, which no tokenizer changes."""

    def scores(
        self, choices: list[str], means: list[float], tokens: list[list[float]]
    ) -> list[float]:
        lengths = [max(1, len(choice.encode())) for choice in choices]
        return [math.fsum(values) / n for values, n in zip(tokens, lengths, strict=True)]


class GreedyTokenSelection(_Scored):
    """Token by token, keep the choices whose token is the most probable one.

    Rows that have ended go on with their own mean, so that a longer choice must beat it.
    """

    def matrix(self, means: list[float], tokens: list[list[float]]) -> list[list[float]]:
        width = max(len(values) for values in tokens)
        rows = zip(means, tokens, strict=True)
        return [values + [filler] * (width - len(values)) for filler, values in rows]

    def choose(self, matrix: list[list[float]]) -> int:
        """The index that survives all columns; the first of several."""
        left = list(range(len(matrix)))
        for column in range(len(matrix[0])):
            best = max(matrix[row][column] for row in left)
            left = [row for row in left if matrix[row][column] >= best - TIE_TOLERANCE] or left
            if len(left) == 1:
                break
        return left[0]

    def scores(
        self, choices: list[str], means: list[float], tokens: list[list[float]]
    ) -> list[float]:
        return [math.fsum(values) for values in tokens]

    def __call__(self, **arguments: Any) -> ChoicesDecision:
        decision = super().__call__(**arguments)
        tokens = [logprobs_of(entries) for entries in arguments["input_token_logprobs"]]
        matrix = self.matrix(arguments["normalized_prompt_logprobs"], tokens)
        meta = {**(decision.meta_info or {}), "greedy_logprob_matrix": matrix}
        chosen = arguments["choices"][self.choose(matrix)]
        return ChoicesDecision(chosen, meta, decision.scores)


class UnconditionalLikelihoodNormalized(_Scored):
    """The mean gain of each token's log probability over the choice without the prompt.

    ``context`` stands in the prompt's place there, such as "Answer: ".  Without one, the first
    token of a choice has no log probability and counts as 0.
    """

    def __init__(self, context: str = "") -> None:
        self._context = context

    def given(self, context: str) -> UnconditionalLikelihoodNormalized:
        """The same method with a neutral context of your own."""
        return UnconditionalLikelihoodNormalized(context)

    @property
    def neutral_context(self) -> str:
        return self._context

    @property
    def requires_unconditional_logprobs(self) -> bool:
        return True

    def __call__(self, **arguments: Any) -> ChoicesDecision:
        unconditional = arguments.get("unconditional_token_logprobs")
        if unconditional is None:
            raise ValueError("unconditional_likelihood_normalized needs unconditional logprobs")
        decision = super().__call__(**arguments)
        alone = [
            [0.0 if entry[0] is None else float(entry[0]) for entry in row] for row in unconditional
        ]
        tokens = [logprobs_of(entries) for entries in arguments["input_token_logprobs"]]
        scores = [
            (math.fsum(given) - math.fsum(without)) / max(1, len(given))
            for given, without in zip(tokens, alone, strict=True)
        ]
        meta = {
            **(decision.meta_info or {}),
            "unconditional_token_logprobs": unconditional,
            "normalized_unconditional_prompt_logprobs": [mean(row) for row in alone],
        }
        return ChoicesDecision(arguments["choices"][argmax(scores)], meta, scores)

    def scores(
        self, choices: list[str], means: list[float], tokens: list[list[float]]
    ) -> list[float]:
        return list(means)


token_length_normalized = TokenLengthNormalized()
greedy_token_selection = GreedyTokenSelection()
unconditional_likelihood_normalized = UnconditionalLikelihoodNormalized()
sum_logprob = Sum()
byte_mean = ByteMean()


def softmax(scores: Sequence[float], temperature: float = 1.0) -> list[float]:
    """exp(score / temperature), normalised; uniform where every score is -inf."""
    best = max(scores)
    if best == -math.inf:
        return [1 / len(scores)] * len(scores)
    weights = [math.exp((score - best) / temperature) for score in scores]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
