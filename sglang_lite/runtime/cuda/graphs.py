"""Decode steps from CUDA graphs: the launches of a whole forward pass replayed by one call.

A graph has fixed shapes and addresses, so there is one for each of a few numbers of rows.  A step
is padded to the next of them by rows that read and write the cache's scratch slot, its inputs and
its attention plan are copied to where the graph reads them, and the graph is replayed.  Whatever
does not fit (a chunk of a prompt, more rows, more keys than the plan has room for) is run as ever.
"""

from __future__ import annotations

import importlib.util
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from sglang_lite.runtime.attention.plan import MIN_SHARED_KEYS
from sglang_lite.runtime.batch import Batch, Row
from sglang_lite.runtime.config import EngineConfig
from sglang_lite.runtime.device import on
from sglang_lite.runtime.models.base import Model
from sglang_lite.runtime.options import integers

if TYPE_CHECKING:
    from sglang_lite.runtime.attention.triton import StaticPlan, TritonAttention

log = logging.getLogger("sglang_lite")

MOST_ROWS = 256
"""Without another wish there are graphs of up to so many rows."""

_CHECKED_PREFIX = 192


class Graph(Protocol):
    """Something that repeats what a function did, on the same tensors."""

    def capture(self, run: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Record ``run``; its result, whose contents every replay renews."""
        ...

    def replay(self) -> None:
        """Do it again."""
        ...


class CudaGraph:
    """A graph of the device.  Graphs that share a ``pool`` share memory: one runs at a time."""

    def __init__(self, pool: Any) -> None:
        self._graph, self._pool = torch.cuda.CUDAGraph(), pool

    def capture(self, run: Callable[[], torch.Tensor]) -> torch.Tensor:
        """See :class:`Graph`; ``run`` is called twice more before, so that it is set up."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
            run()
        torch.cuda.current_stream().wait_stream(side)
        # Other threads may go on using the device.
        with torch.cuda.graph(self._graph, pool=self._pool, capture_error_mode="thread_local"):
            return run()

    def replay(self) -> None:
        """See :class:`Graph`."""
        self._graph.replay()


@dataclass
class _Captured:
    graph: Graph
    plans: dict[int | None, StaticPlan]
    hidden: torch.Tensor


class GraphedModel:
    """A :class:`~sglang_lite.runtime.models.base.Model` with graphs for its decode steps.

    ``sizes``: numbers of rows to make graphs for.  They are captured here, the largest first, and
    each is compared with an ordinary forward; where it differs, or cannot be captured, there is a
    warning and steps of that size run without.  The KV cache must not be in use yet.
    """

    def __init__(
        self,
        model: Model,
        attention: TritonAttention,
        sizes: Iterable[int],
        new_graph: Callable[[], Graph] | None = None,
    ) -> None:
        self.model, self.attention = model, attention
        self.config, self.kv_cache = model.config, model.kv_cache
        self.device, self.dtype = model.device, model.dtype
        sizes = sorted({size for size in sizes if size <= model.kv_cache.slots}, reverse=True)
        self._graphs: dict[int, _Captured] = {}
        self.sizes: list[int] = []
        if sizes:
            with on(self.device):
                self._capture_all(sizes, new_graph or _cuda_graphs())

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor:
        """See :class:`~sglang_lite.runtime.models.base.Model`.

        The result of a replayed step is valid until the next step.
        """
        hidden = self.replayed(batch)
        return self.model.forward(batch) if hidden is None else hidden

    @torch.inference_mode()
    def replayed(self, batch: Batch) -> torch.Tensor | None:
        """:meth:`forward` from a graph, or None if there is none for this step."""
        rows = len(batch.rows)
        at = bisect_left(self.sizes, rows)
        if at == len(self.sizes) or len(batch.input_ids) != rows:
            return None
        captured = self._graphs[self.sizes[at]]
        if not self._fill(captured, self.sizes[at], batch):
            return None
        captured.graph.replay()
        return captured.hidden[:rows]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See :class:`~sglang_lite.runtime.models.base.Model`."""
        return self.model.logits(hidden)

    def _fill(self, captured: _Captured, size: int, batch: Batch) -> bool:
        """Put a step where the graph reads it; False if its plan doesn't fit."""
        used = len(batch.rows)
        rows = [*batch.rows, *self._idle_rows[used:size]]
        if not all(self.attention.fill(plan, rows) for plan in captured.plans.values()):
            return False
        for target, source in zip(
            self._inputs, (batch.input_ids, batch.positions, batch.write_slots), strict=True
        ):
            target[:used].copy_(source)
        if used < size:
            # What the last step left there would be written to its slots once more.
            self._inputs[:, used:size].copy_(self._idle_inputs[:, used:size])
        return True

    @torch.inference_mode()
    def _capture_all(self, sizes: list[int], new_graph: Callable[[], Graph]) -> None:
        largest, scratch = sizes[0], self.kv_cache.scratch_slot
        self._idle_rows = [Row(np.array([scratch]), 0)] * largest
        self._idle_inputs = torch.tensor([[0], [0], [scratch]], device=self.device).repeat(
            1, largest
        )
        self._inputs = self._idle_inputs.clone()
        # Short prefixes are listed for each of the rows that share them.
        room = self.kv_cache.slots + MIN_SHARED_KEYS * largest
        self._plans = {
            window: self.attention.static_plan(largest, window, room)
            for window in dict.fromkeys(self.config.windows)
        }
        check = _Check(self.model, largest)
        try:
            for size in sizes:
                self._graphs[size] = self._capture(size, room, new_graph())
                self.sizes = sorted(self._graphs)
                if not check.passes(self, size):
                    del self._graphs[size]
                    self.sizes = sorted(self._graphs)
        except Exception as error:
            # Whatever a model does that a graph cannot record, the model itself still works.
            self._graphs, self.sizes = {}, []
            log.warning("no CUDA graphs, steps will be slower: %s", error)

    def _capture(self, size: int, room: int, graph: Graph) -> _Captured:
        plans = {
            window: self.attention.static_plan(size, window, room, largest.buffer)
            for window, largest in self._plans.items()
        }
        for plan in plans.values():
            self.attention.fill(plan, self._idle_rows[:size])
        self._inputs.copy_(self._idle_inputs)
        ids, positions, write_slots = self._inputs[:, :size]
        rows = tuple(self._idle_rows[:size])
        batch = Batch(
            rows,
            ids,
            positions,
            write_slots,
            torch.arange(size, device=self.device),
            _plans={window: static.plan for window, static in plans.items()},
        )
        return _Captured(graph, plans, graph.capture(lambda: self.model.forward(batch)))


class _Check:
    """Decode steps of which the replayed result is compared with the ordinary one.

    The rows share parts of one prefix in the first slots and write a slot each after it.
    """

    def __init__(self, model: Model, largest: int) -> None:
        self._model = model
        self._prefix = min(
            _CHECKED_PREFIX, model.kv_cache.slots - largest, model.config.context_length - 1
        )
        if self._prefix:
            ids = np.arange(self._prefix) % model.config.vocab_size
            row = Row(np.arange(self._prefix), 0)
            model.forward(Batch.build([row], ids, np.array([0]), model.device))

    def passes(self, graphed: GraphedModel, size: int) -> bool:
        """Whether a replay gives the model's hidden states; warns if it doesn't."""
        rows = []
        for i in range(size):
            length = self._prefix * (1 + i % 4) // 4
            rows.append(Row(np.append(np.arange(length), self._prefix + i), length))
        ids = np.arange(size) * 7 % self._model.config.vocab_size
        batch = Batch.build(rows, ids, np.arange(size), self._model.device)
        wanted = self._model.forward(batch)
        got = graphed.replayed(batch)
        if got is None:
            log.warning("no CUDA graph for %d rows: their plan doesn't fit it", size)
            return False
        difference, spread = (got - wanted).abs().max().item(), wanted.float().std().item()
        tolerance = 1e-3 if self._model.dtype == torch.float32 else 5e-2
        # Written so that NaN doesn't pass.
        if difference <= tolerance * max(spread, 1e-6):
            return True
        reason = f"its result differs by {difference:.2g} at a spread of {spread:.2g}"
        log.warning("no CUDA graph for %d rows: %s", size, reason)
        return False


def with_decode_graphs(model: Model, config: EngineConfig) -> Model:
    """The model with the graphs for decode steps that the options ask for, if there can be any.

    That is on a CUDA device with our Triton attention; elsewhere it is the model itself.
    """
    if model.device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return model
    from sglang_lite.runtime.attention.triton import TritonAttention

    attention = getattr(model, "attention", None)
    if not isinstance(attention, TritonAttention):
        return model
    graphed = GraphedModel(model, attention, wanted_sizes(config))
    return graphed if graphed.sizes else model


def wanted_sizes(config: EngineConfig) -> list[int]:
    """Numbers of rows to make graphs for, by the options."""
    if config.disable_cuda_graph:
        return []
    chosen = integers(config.cuda_graph_bs)
    most = config.cuda_graph_max_bs or (max(chosen) if chosen else MOST_ROWS)
    most = min(most, config.max_running_requests)
    return [size for size in chosen if size <= most] if chosen else graph_sizes(most)


def graph_sizes(largest: int) -> list[int]:
    """Numbers of rows up to ``largest`` that graphs are made for unless others are asked for.

    At most a fifth is padding beyond 32 rows; with fewer a step reads weights most of its time.
    """
    sizes = [1, 2, 4]
    for step, end in ((8, 64), (16, 128), (32, MOST_ROWS), (128, largest)):
        sizes += range(sizes[-1] + step - sizes[-1] % step, end + 1, step)
    return [size for size in sizes if size < largest] + [largest]


def _cuda_graphs() -> Callable[[], Graph]:
    pool = torch.cuda.graph_pool_handle()
    return lambda: CudaGraph(pool)
