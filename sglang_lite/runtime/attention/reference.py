"""Attention the obvious way: every token by itself, in float32.  Tests compare with this."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sglang_lite.runtime.batch import Row


class ReferenceAttention:
    """An :class:`~sglang_lite.runtime.attention.plan.AttentionBackend` without any cleverness."""

    def plan(self, rows: Sequence[Row], window: int | None) -> tuple[Sequence[Row], int | None]:
        """The rows themselves: nothing is worked out in advance."""
        return rows, window

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        plan: tuple[Sequence[Row], int | None],
        *,
        scale: float,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See :class:`AttentionBackend`; everything is read from the caches."""
        rows, window = plan
        heads, kv_heads = query.shape[1], key.shape[1]
        outputs: list[torch.Tensor] = []
        for row in rows:
            for position in range(row.start, row.end):
                first = 0 if window is None else max(0, position + 1 - window)
                slots = torch.from_numpy(row.slots[first : position + 1]).to(query.device)
                keys = key_cache[:, slots].float().repeat_interleave(heads // kv_heads, 0)
                values = value_cache[:, slots].float().repeat_interleave(heads // kv_heads, 0)
                q = query[len(outputs)].float()
                scores = torch.einsum("hd,hkd->hk", q, keys) * scale
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                if sinks is not None:
                    scores = torch.cat([scores, sinks.float()[:, None]], dim=1)
                weights = scores.softmax(dim=1)[:, : len(slots)]
                outputs.append(torch.einsum("hk,hkd->hd", weights, values))
        return torch.stack(outputs).to(query.dtype)
