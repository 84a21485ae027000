"""A model double whose logits depend on the whole history, read through the KV slots.

It is strict: a slot that does not hold the position it should is an error at once, and a wrong
token in a slot changes every later token.  It is the best finder of scheduler bugs, in
microseconds per token.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sglang_lite.runtime.batch import Batch
from sglang_lite.runtime.engine import Engine
from sglang_lite.runtime.messages import GenerateRequest
from sglang_lite.runtime.models.config import ModelConfig
from sglang_lite.runtime.tokenizer import Tokenizer
from sglang_lite.sampling_params import SamplingParams
from tests.runtime.tiny import CHAT_TEMPLATE, END, save_byte_tokenizer
from tests.waiting import wait_for

DEFAULTS: dict[str, Any] = {}
"""Options of every toy engine, set by fixtures."""

EOS = 256
VOCAB = 258
PRINTABLE = torch.tensor([i for i in range(VOCAB) if not 0 <= i < 94])


@functools.cache
def toy_tokenizer() -> Tokenizer:
    """258 tokens: the bytes in GPT-2's order (0 to 93 are the printable ASCII), END and START."""
    with tempfile.TemporaryDirectory() as folder:
        save_byte_tokenizer(Path(folder))
        loaded = Tokenizer.from_pretrained(folder)
    return Tokenizer(loaded.backend, named_tokens={"eos_token": END}, chat_template=CHAT_TEMPLATE)


class ToyCache:
    """What a slot holds: a token and its position."""

    bytes_per_slot = 16
    device = torch.device("cpu")

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.tokens = np.full(slots, -1, dtype=np.int64)
        self.positions = np.full(slots, -1, dtype=np.int64)

    def gather(self, slots: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.stack([self.tokens[slots], self.positions[slots]], axis=1))

    def scatter(self, slots: np.ndarray, rows: torch.Tensor) -> None:
        self.tokens[slots], self.positions[slots] = rows.numpy().T

    def host_rows(self, count: int) -> torch.Tensor:
        return torch.full((count, 2), -1)


class ToyModel:
    """The `Model` protocol over a hash of the tokens in the slots."""

    def __init__(
        self,
        slots: int = 4096,
        context_length: int = 2048,
        eos_bias: float = -2.0,
        shape_sensitive: bool = False,
    ) -> None:
        """``shape_sensitive``: what a token leaves in its slot depends on the row and the batch
        that it was computed in, like the last bits of a real model's."""
        self.config = ModelConfig(
            model_type="toy",
            vocab_size=VOCAB,
            context_length=context_length,
            hidden_size=1,
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=1,
            windows=(None,),
            eos_token_ids=(EOS,),
            bos_token_id=None,
            torch_dtype="float32",
            raw={},
        )
        self.device = torch.device("cpu")
        self.dtype = torch.float32
        self.eos_bias = eos_bias
        self.shape_sensitive = shape_sensitive
        self.kv_cache = ToyCache(slots)
        self.tokens, self.positions = self.kv_cache.tokens, self.kv_cache.positions
        self.computed: list[tuple[int, int]] = []
        self.before_step: Any = lambda: None

    def forward(self, batch: Batch) -> torch.Tensor:
        self.before_step()
        ids, hidden, offset = batch.input_ids.numpy(), [], 0
        for row in batch.rows:
            new = ids[offset : offset + row.new_tokens]
            if self.shape_sensitive:
                new = new + 1000 * (row.start + 7 * row.end + 49 * len(batch.rows))
            self.tokens[row.slots[row.start :]] = new
            self.positions[row.slots[row.start :]] = np.arange(row.start, row.end)
            offset += row.new_tokens
            self.computed.append((row.start, row.end))
        for row in batch.rows:
            # Read after all rows have written: a slot written twice in one step shows up.
            wrong = np.flatnonzero(self.positions[row.slots] != np.arange(row.end))
            if len(wrong):
                held = self.positions[row.slots[wrong[0]]]
                raise AssertionError(f"the slot of position {wrong[0]} holds position {held}")
            hidden.append(history_hash(self.tokens[row.slots])[row.start :])
        return torch.from_numpy(np.concatenate(hidden))[:, None]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return toy_logits(hidden, self.eos_bias)


def history_hash(tokens: np.ndarray) -> np.ndarray:
    """For each position a number that depends on all tokens up to it, in order (mod 2**31)."""
    weights = np.cumprod(np.full(len(tokens), 1103515245, dtype=np.uint64), dtype=np.uint64)
    mixed = (tokens.astype(np.uint64) + np.uint64(12345)) * weights
    return (np.cumsum(mixed, dtype=np.uint64) >> np.uint64(33)).astype(np.int64)


def toy_logits(hidden: torch.Tensor, eos_bias: float) -> torch.Tensor:
    ids = torch.arange(VOCAB)
    bits = (hidden * 2654435761 + ids * 40503 + (hidden ^ ids) * 69069) % 1000003
    logits = ((bits * bits) % 1000003).float() / 1000003 * 12
    logits[:, PRINTABLE] -= 20
    logits[:, EOS] += 20 + eos_bias
    return logits


def expected_greedy(prompt: list[int], count: int, eos_bias: float = -2.0) -> list[int]:
    """What the model generates alone, without engine, cache or batch."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        hashed = history_hash(np.array(tokens))[-1:]
        logits = toy_logits(torch.from_numpy(hashed)[:, None], eos_bias)
        tokens.append(int(logits.argmax()))
        if tokens[-1] == EOS:
            break
    return tokens[len(prompt) :]


def toy_engine(
    slots: int = 4096, context_length: int = 2048, eos_bias: float = -2.0, **options: Any
) -> Engine:
    """An engine around a new toy model; ``engine.toy`` is the model."""
    model = ToyModel(slots, context_length, eos_bias)
    engine = Engine.from_model(model, toy_tokenizer(), **{**DEFAULTS, **options})
    engine.toy = model  # type: ignore[attr-defined]
    return engine


def ids_of(engine: Engine, text: str) -> list[int]:
    return engine.tokenizer.encode(text)


def greedy(count: int = 20, **fields: object) -> dict:
    return {"temperature": 0, "max_new_tokens": count, **fields}


def request(engine: Engine, text: str, rid: str = "", **fields: object) -> GenerateRequest:
    params = SamplingParams.from_dict(fields)
    return GenerateRequest(tuple(ids_of(engine, text)), params, rid)


def wait_until_idle(engine: Engine) -> None:
    wait_for(lambda: not engine.stats()["num_running_reqs"] + engine.stats()["num_queue_reqs"])
