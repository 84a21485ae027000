"""How far quantised and rounded models are from float32: KL of the next token, beside transformers.

    python benchmarks/divergence.py

Mean over all positions of the first 256 tokens of some of the project's own pages, in nats.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from sglang_lite.runtime.batch import Batch, Row
from sglang_lite.runtime.default_model import resolve_model_path
from sglang_lite.runtime.models.decoder import FusedDecoder
from sglang_lite.runtime.models.loader import load_model
from sglang_lite.runtime.tokenizer import Tokenizer

PAGES = ("README.md", "docs/engine.md", "docs/language.md", "docs/constraints.md")
TOKENS = 256
Logits = Callable[[list[int]], torch.Tensor]


def ours(folder: Path, dtype: str, quantization: str | None, few_rows: int | None) -> Logits:
    """Logits of every position; ``few_rows``: up to how many rows 4-bit kernels are used."""
    model = load_model(
        folder, kv_slots=TOKENS, dtype=dtype, device="cpu", quantization=quantization
    )
    if few_rows is not None:
        assert isinstance(model, FusedDecoder)
        for layer in model.layers:
            for kernel in (layer.qkv, layer.output, layer.gate_up, layer.down):
                if hasattr(kernel, "few_rows"):
                    kernel.few_rows = few_rows

    def logits(tokens: list[int]) -> torch.Tensor:
        count = len(tokens)
        batch = Batch.build([Row(np.arange(count), 0)], np.array(tokens), np.arange(count))
        return model.logits(model.forward(batch))

    return logits


def theirs(folder: Path) -> Logits:
    """transformers in bfloat16."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    @torch.inference_mode()
    def logits(tokens: list[int]) -> torch.Tensor:
        return model(torch.tensor([tokens])).logits[0].float()

    return logits


def divergence(exact: torch.Tensor, other: torch.Tensor) -> float:
    """Mean KL(exact || other) over positions."""
    p, q = exact.log_softmax(-1), other.log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="folder, GGUF file or hub id; the default model if absent")
    options = parser.parse_args()
    folder = resolve_model_path(options.model)
    tokenizer = Tokenizer.from_pretrained(folder)
    root = Path(__file__).parents[1]
    texts = [tokenizer.encode((root / page).read_text("utf-8"))[:TOKENS] for page in PAGES]
    exact = ours(folder, "float32", None, None)
    wanted = [exact(tokens) for tokens in texts]
    cases: dict[str, Callable[[], Logits]] = {
        "transformers, bfloat16": lambda: theirs(folder),
        "bfloat16, many rows": lambda: ours(folder, "bfloat16", None, None),
        "bfloat16, few rows": lambda: ours(folder, "bfloat16", None, 10**9),
        "int4": lambda: ours(folder, "bfloat16", "int4", None),
        "int8": lambda: ours(folder, "bfloat16", "int8", None),
    }
    for name, make in cases.items():
        logits = make()
        found = np.mean([divergence(w, logits(t)) for w, t in zip(wanted, texts, strict=True)])
        print(f"{name:28} {found:.2e}", flush=True)


if __name__ == "__main__":
    main()
