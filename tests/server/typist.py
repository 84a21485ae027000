"""A model double that writes given text after a chat prompt, as far as it is allowed to."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sglang_lite.runtime.batch import Batch
from sglang_lite.runtime.engine import Engine
from tests.runtime.toy import EOS, VOCAB, ToyModel, toy_tokenizer

START = 257
HEADER = len("assistant\n")


class Typist(ToyModel):
    """Prefers the bytes of ``text`` in order, then the end; where it must not, ``habit``."""

    text = "Hello"
    habit = " "

    def forward(self, batch: Batch) -> torch.Tensor:
        super().forward(batch)
        hidden = []
        for row in batch.rows:
            tokens = self.tokens[row.slots]
            starts = np.flatnonzero(tokens == START)
            begin = starts[-1] + 1 + HEADER if len(starts) else 0
            hidden.append(np.arange(row.start, row.end) + 1 - begin)
        return torch.from_numpy(np.concatenate(hidden))[:, None]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        tokenizer = toy_tokenizer()
        ids = [*tokenizer.encode(self.text), EOS]
        made = torch.full((len(hidden), VOCAB), -8.0)
        made[:, tokenizer.encode(self.habit)] = 8.0
        for row, place in zip(made, hidden[:, 0].tolist(), strict=True):
            row[ids[min(max(place, 0), len(ids) - 1)]] = 16.0
        return made


def typist_engine(**options: Any) -> Engine:
    """An engine around a new typist; ``engine.typist`` is the model."""
    model = Typist()
    engine = Engine.from_model(model, toy_tokenizer(), **options)
    engine.typist = model  # type: ignore[attr-defined]
    return engine
