"""Log probabilities of the raw model distribution: before temperature, penalties and masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sglang_lite.runtime.device import send
from sglang_lite.runtime.request import LogprobLog

SCORE_ROWS = 64
"""Prompt positions are scored in blocks of so many rows: a row of logits is a whole vocabulary."""


@dataclass(frozen=True)
class Scores:
    """What goes into the logs of R rows, on its way to the host.

    ``own`` float32[R], ``top`` and ``top_ids`` [R, most wanted], ``chosen`` [R, most wanted].
    """

    logs: Sequence[LogprobLog]
    own: torch.Tensor
    top: torch.Tensor
    top_ids: torch.Tensor
    chosen: torch.Tensor

    def append(self, tokens: Sequence[int]) -> None:
        """Append an entry to each log, for these tokens; the tensors must have arrived.

        A log that occurs several times gets its entries in the order of the rows.
        """
        own, chosen = self.own.tolist(), self.chosen.tolist()
        top, top_ids = self.top.tolist(), self.top_ids.tolist()
        for row, (log, token) in enumerate(zip(self.logs, tokens, strict=True)):
            pairs = list(zip(top[row], top_ids[row], strict=True))[: log.top_num]
            # The rows are as long as the longest list of wanted ids.
            wanted = list(zip(chosen[row], log.chosen_ids, strict=False))
            log.append((own[row], token), pairs, wanted)


def score(logits: torch.Tensor, tokens: torch.Tensor, logs: Sequence[LogprobLog]) -> Scores:
    """Log probabilities of ``tokens`` (int64[R]) and of what the logs want besides.

    ``logits``: float32[R, V].  On a GPU nothing is waited for.
    """
    totals = torch.logsumexp(logits, dim=-1, keepdim=True)
    own = (logits.gather(1, tokens.clamp(min=0)[:, None]) - totals)[:, 0]
    most = min(max(log.top_num for log in logs), logits.shape[1])
    values, ids = torch.topk(logits, most, dim=-1)
    wanted = np.zeros((len(logs), max(len(log.chosen_ids) for log in logs)), dtype=np.int64)
    for row, log in zip(wanted, logs, strict=True):
        row[: len(log.chosen_ids)] = log.chosen_ids
    chosen = logits.gather(1, send(wanted, logits.device)) - totals
    return Scores(logs, to_host(own), to_host(values - totals), to_host(ids), to_host(chosen))


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the host; from a GPU it arrives later, in pinned memory."""
    return tensor.to("cpu", non_blocking=True)
