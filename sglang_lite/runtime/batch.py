"""One step's work as one flat ragged batch: rows of "compute tokens [start, end) of a sequence".

There are no prefill and decode phases.  A decoding sequence is a row with one new token, a chunk
of a prompt is a row with many, a run of forced tokens is one with a few; all share one forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sglang_lite.runtime.device import send

if TYPE_CHECKING:
    from sglang_lite.runtime.attention.plan import AttentionBackend


@dataclass(frozen=True)
class Row:
    """Compute the tokens ``[start, end)`` of one sequence.

    ``slots`` (int64[end]) holds the KV slot of each token from 0 to ``end - 1``.  Those before
    ``start`` already hold keys and values; the others are written by this step.
    """

    slots: np.ndarray
    start: int

    @property
    def end(self) -> int:
        """Number of tokens of the sequence after this step."""
        return len(self.slots)

    @property
    def new_tokens(self) -> int:
        """Number of tokens that this step computes."""
        return len(self.slots) - self.start


@dataclass(frozen=True)
class Relay:
    """New tokens that only the device knows: ``tokens[source]`` become the ids ``at``.

    ``at``, ``source``: int64[F] on the host; ``tokens``: int64 on the device.
    """

    at: np.ndarray
    source: np.ndarray
    tokens: torch.Tensor


@dataclass
class Batch:
    """The tensors of one step; T new tokens in the order of ``rows``, R of them with logits.

    * ``input_ids``, ``positions``, ``write_slots``: int64[T] on the model's device.
    * ``logit_rows``: int64[R], which of the T tokens need logits.
    """

    rows: tuple[Row, ...]
    input_ids: torch.Tensor
    positions: torch.Tensor
    write_slots: torch.Tensor
    logit_rows: torch.Tensor
    _plans: dict[int | None, Any] = field(default_factory=dict)

    @classmethod
    def build(
        cls,
        rows: Sequence[Row],
        token_ids: np.ndarray,
        logit_rows: np.ndarray,
        device: str | torch.device = "cpu",
        *,
        relay: Relay | None = None,
    ) -> Batch:
        """Make the tensors of a step.  ``token_ids``: int64[T], the new tokens of all rows; those
        that ``relay`` brings may be anything."""
        new_tokens = sum(row.new_tokens for row in rows)
        if len(token_ids) != new_tokens:
            raise ValueError(f"{len(token_ids)} token ids for rows with {new_tokens} new tokens")
        # One host array and one copy to the device: four small copies cost four times as much.
        sizes = [new_tokens] * 3 + [len(logit_rows)] + ([len(relay.at)] * 2 if relay else [])
        host = np.empty(sum(sizes), dtype=np.int64)
        ids, positions, write_slots, wanted, *relayed = np.split(host, np.cumsum(sizes)[:-1])
        ids[:], wanted[:] = token_ids, logit_rows
        if relay:
            relayed[0][:], relayed[1][:] = relay.at, relay.source
        offset = 0
        for row in rows:
            if not 0 <= row.start < row.end:
                raise ValueError(f"row [{row.start}, {row.end}) has no new token")
            after = offset + row.new_tokens
            positions[offset:after] = np.arange(row.start, row.end)
            write_slots[offset:after] = row.slots[row.start :]
            offset = after
        parts = send(host, device).split(sizes)
        if relay:
            # A row without a possible token has -1; it fails as soon as the host sees that.
            values = relay.tokens.index_select(0, parts[5]).clamp_(min=0)
            parts[0].index_copy_(0, parts[4], values)
        return cls(tuple(rows), *parts[:4])

    def plan(self, backend: AttentionBackend, window: int | None = None) -> Any:
        """The attention plan for layers with this sliding window; built once, used by all."""
        if window not in self._plans:
            self._plans[window] = backend.plan(self.rows, window)
        return self._plans[window]
