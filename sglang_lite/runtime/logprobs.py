"""Log probabilities of the raw model distribution: before temperature, penalties and masks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from sglang_lite.runtime.request import LogprobLog

SCORE_ROWS = 64
"""Prompt positions are scored in blocks of so many rows: a row of logits is a whole vocabulary."""


def log_tokens(logits: torch.Tensor, tokens: Sequence[int], logs: Sequence[LogprobLog]) -> None:
    """Append one entry to each log: that of its token, given the row of ``logits`` (float32[R, V]).

    A log that occurs several times gets its entries in the order of the rows.
    """
    totals = torch.logsumexp(logits, dim=-1, keepdim=True)
    wanted = torch.tensor(tokens, device=logits.device)[:, None]
    own = (logits.gather(1, wanted) - totals)[:, 0].tolist()
    most = max(log.top_num for log in logs)
    if most:
        values, ids = torch.topk(logits, min(most, logits.shape[1]), dim=-1)
        top_values, top_ids = (values - totals).tolist(), ids.tolist()
    for row, (log, token) in enumerate(zip(logs, tokens, strict=True)):
        top = list(zip(top_values[row], top_ids[row], strict=True))[: log.top_num] if most else []
        chosen = []
        if log.chosen_ids:
            ids = torch.from_numpy(np.array(log.chosen_ids)).to(logits.device)
            chosen_values = (logits[row, ids] - totals[row]).tolist()
            chosen = list(zip(chosen_values, log.chosen_ids, strict=True))
        log.append((own[row], token), top, chosen)
