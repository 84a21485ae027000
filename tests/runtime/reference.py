"""transformers on the default model's real weights, in float32: what greedy tokens must be."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from sglang_lite.runtime.default_model import default_model_path


@functools.cache
def transformers_model() -> Any:
    """Loaded once for all tests."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(default_model_path(), dtype="float32")


def transformers_logits(tokens: list[int], last: int) -> torch.Tensor:
    """Logits ``[last, vocabulary]`` after each of the last tokens.

    Computed in a thread that ends: a thread that has computed keeps helpers, and beside them those
    of an engine sleep between operators.
    """

    def compute() -> torch.Tensor:
        with torch.inference_mode():
            model = transformers_model()
            return model(torch.tensor([tokens]), logits_to_keep=last).logits[0].float()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(compute).result()


@functools.cache
def is_greedy(prompt: tuple[int, ...], outputs: tuple[int, ...]) -> bool:
    """Whether each output is transformers' first choice after all tokens before it.

    By induction these are the tokens that its ``generate`` gives, in one forward instead of
    hundreds; what all ways to serve a prompt agree on is looked up.
    """
    best = transformers_logits([*prompt, *outputs[:-1]], len(outputs)).argmax(-1)
    return best.tolist() == list(outputs)
