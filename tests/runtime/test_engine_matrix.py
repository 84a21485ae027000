"""Prompt lengths at the edges, by cache hit, by size of the pool, by an abort in each state."""

from __future__ import annotations

import pytest

from sglang_lite.runtime.request import Request
from tests.runtime.bench import Bench, outputs, reason, without_eos

pytestmark = pytest.mark.usefixtures("both_schedules")

EDGES = (1, 7, 8, 9, 16, 17, 30, 31, 39, 40, 41)
CONTEXT = 41
STATES = ("waiting", "first chunk", "last chunk", "decode", "with the end")


@pytest.mark.parametrize(
    ("pool", "host"),
    [(30, False), (48, False), (48, True), (400, False)],
    ids=["too small", "tight", "tight with a host tier", "ample"],
)
@pytest.mark.parametrize("hit", ["none", "partial", "full"])
@pytest.mark.parametrize("state", [None, *STATES])
def test_every_edge_in_every_state(pool: int, host: bool, hit: str, state: str | None) -> None:
    for length in EDGES:
        bench = Bench(
            pool,
            CONTEXT,
            chunked_prefill_size=8,
            max_running_requests=3,
            enable_hierarchical_cache=host,
        )
        prompt = [(i * i + 3) % 90 for i in range(length)]
        if hit != "none":
            cached = prompt if hit == "full" else prompt[: length // 2 + 1]
            bench.submit(cached, 1)
            bench.drain()
        others = [bench.submit([50 + i] * 6, 12) for i in range(3)]
        request = bench.submit(prompt, 6)
        abort_at(bench, request, state)
        bench.drain()
        for each in (request, *others):
            # The last token of a sequence needs no slot.
            room = max(min(CONTEXT, pool + 1) - each.prompt_len, 0)
            limit = min(each.params.max_new_tokens or 0, room)
            assert outputs(each) == without_eos(list(each.source.input_ids), 12)[: each.output_len]
            if reason(each) != "abort":
                assert each.output_len == limit
        assert bench.core.flush_cache()
        assert bench.scheduler.pool.free == pool


def abort_at(bench: Bench, request: Request, state: str | None) -> None:
    """Run until the request is in ``state``, then set its abort flag."""
    reached = {
        "waiting": lambda: True,
        "first chunk": lambda: request.computed > 0,
        "last chunk": lambda: request.computed > 0 and request.pending <= 8,
        "decode": lambda: request.output_len > 1,
        "with the end": lambda: request.finish_reason is not None,
        None: lambda: True,
    }[state]
    while not reached() and bench.core.busy:
        bench.step()
    request.aborted = state is not None
