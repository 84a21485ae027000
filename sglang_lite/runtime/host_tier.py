"""The second tier of the prefix cache: what the device has no room for is kept in host memory.

It is a radix tree and a pool of its own over other memory, so a prefix is on the device, on the
host, or on both, by the tree that knows it.  A prefix leaves the device with its whole path: what
the host tree holds is always complete from the first token on.  It comes back into the slots of
the request that needs it, as if the request had computed it.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime.config import EngineConfig, free_memory
from sglang_lite.runtime.kv_pool import KVPool
from sglang_lite.runtime.radix_node import Node
from sglang_lite.runtime.radix_tree import RadixTree

if TYPE_CHECKING:
    from sglang_lite.runtime.kv_cache import KVCache

BLOCK = 1024
"""So many tokens are copied at once, which bounds the temporary memory."""

PROBE = 64
"""The speed of copies is measured with so many tokens."""

LEAST_PREFILL = 32
"""Steps with fewer prompt tokens say little about the cost of one."""


class HostTier:
    """Host copies of evicted prefixes: least recently used ones go first, outputs before prompts.

    All copies are issued on the current stream, between two steps: they are in order with the
    forwards that write and read the same slots.
    """

    def __init__(self, cache: KVCache, slots: int) -> None:
        """``cache``: the device's keys and values.  ``slots``: most tokens kept on the host."""
        self.slots = slots
        self._cache = cache
        self._rows = cache.host_rows(slots)
        self.cost = SwapCost.measure(self)
        self.swapped_out = self.swapped_in = 0
        self.clear()

    @classmethod
    def of(cls, cache: KVCache, config: EngineConfig) -> HostTier | None:
        """The tier that the options ask for, or None.

        Raises :class:`InvalidRequest` where that is more than there is memory.
        """
        if not config.enable_hierarchical_cache:
            return None
        slots = int(config.max_total_tokens * config.hicache_ratio)
        name, value = "hicache_ratio", config.hicache_ratio
        if config.hicache_size:
            slots = int(config.hicache_size * 1e9 / cache.bytes_per_slot)
            name, value = "hicache_size", config.hicache_size
        most = free_memory() // cache.bytes_per_slot
        if not 1 <= slots <= most:
            raise InvalidRequest(name, value, f"room for 1 to {most:,} tokens, not for {slots:,}")
        return cls(cache, slots)

    def clear(self) -> None:
        """Forget everything."""
        self.tree, self.pool = RadixTree(), KVPool(self.slots)

    def evict(self, device: RadixTree, count: int) -> np.ndarray:
        """:meth:`RadixTree.evict` of the device's tree that keeps copies here, where it pays."""
        pairs: list[tuple[np.ndarray, np.ndarray]] = []

        def keep(node: Node) -> None:
            if (pair := self._keep(node)) is not None:
                pairs.append(pair)

        freed = device.evict(count, keep)
        if pairs:
            # In this order: of two that were given the same host slot, the later has it.
            device_slots, host_slots = (np.concatenate(part) for part in zip(*pairs, strict=True))
            self.copy_out(device_slots, host_slots)
            self.swapped_out += len(host_slots)
        return freed

    def _keep(self, node: Node) -> tuple[np.ndarray, np.ndarray] | None:
        """Make room for the path to a node that leaves the device.

        Returns which device slots to copy to which host slots, if any.
        """
        path = node.path()
        root = path[0].parent
        namespace = root.namespace  # type: ignore[union-attr]
        tokens = array("i", b"".join(part.key for part in path))
        match = self.tree.match(tokens, len(tokens), namespace)
        missing = len(tokens) - len(match)
        if not missing or not self.cost.pays(missing, copies=2):
            return None
        self.tree.lock(match.node)
        if self.pool.free < missing:
            self.pool.release(self.tree.evict(missing - self.pool.free))
        taken = self.pool.allocate(missing)
        if taken is not None:
            prompt_len = sum(len(part) for part in path if part.is_prompt)
            row = np.concatenate([match.slots, taken])
            self.tree.insert(tokens, row, prompt_len, namespace)
        self.tree.unlock(match.node)
        if taken is None:
            return None
        return np.concatenate([part.slots for part in path])[len(match) :], taken

    def find(self, tokens: array[int], limit: int, namespace: str) -> int:
        """How many of ``tokens[:limit]`` are on the host, from the first on."""
        return self.tree.peek(tokens, limit, namespace)[0]

    def restore(
        self, tokens: array[int], start: int, end: int, namespace: str, slots: np.ndarray
    ) -> bool:
        """Copy the tokens ``[start, end)`` into the device's ``slots[start:end]``.

        False if that would take longer than to compute them.  ``end`` is at most :meth:`find`'s.
        """
        if end <= start or not self.cost.pays(end - start, copies=1):
            return False
        match = self.tree.match(tokens, end, namespace)
        self.copy_in(match.slots[start:], slots[start:end])
        self.swapped_in += end - start
        return True

    def copy_out(self, device_slots: np.ndarray, host_slots: np.ndarray) -> None:
        """Copy keys and values from the device to the host."""
        for start in range(0, len(device_slots), BLOCK):
            block = slice(start, start + BLOCK)
            rows = self._cache.gather(device_slots[block])
            for at, first, count in _runs(host_slots[block]):
                self._rows[first : first + count].copy_(rows[at : at + count], non_blocking=True)

    def copy_in(self, host_slots: np.ndarray, device_slots: np.ndarray) -> None:
        """Copy keys and values from the host to the device."""
        for start in range(0, len(device_slots), BLOCK):
            block = slice(start, start + BLOCK)
            pieces = [
                self._rows[first : first + count].to(self._cache.device, non_blocking=True)
                for _, first, count in _runs(host_slots[block])
            ]
            self._cache.scatter(device_slots[block], torch.cat(pieces))

    def numbers(self) -> dict[str, Any]:
        """Gauges and counters, for :meth:`Engine.stats`."""
        return {
            "hicache_host_total_tokens": self.slots,
            "hicache_host_used_tokens": self.slots - self.pool.free,
            "host_cached_tokens_total": self.swapped_in,
            "swapped_out_tokens_total": self.swapped_out,
            "swap_seconds_per_token": self.cost.copy_seconds,
            "prefill_seconds_per_token": self.cost.prefill_seconds or 0.0,
        }

    def check(self) -> None:
        """Raise :class:`AssertionError` unless every host slot is free or in one tree node."""
        owners = np.zeros(self.slots, dtype=np.int64)
        for start, length in self.pool.runs():
            owners[start : start + length] += 1
        for _, node in self.tree.nodes():
            np.add.at(owners, node.slots, 1)
        assert (owners == 1).all(), "a host slot is lost, or has two owners"
        self.tree.check([])


class SwapCost:
    """Whether to copy tokens or to compute them again: both measured, the latter while running.

    A copy takes ``call_seconds`` and ``copy_seconds`` for each token.
    """

    def __init__(self, call_seconds: float, copy_seconds: float) -> None:
        self.call_seconds = call_seconds
        self.copy_seconds = copy_seconds
        self.prefill_seconds: float | None = None

    @classmethod
    def measure(cls, tier: HostTier) -> SwapCost:
        """Time copies in and out of slots that hold nothing yet."""
        probe = min(PROBE, tier.slots, tier._cache.slots)
        one, many = (
            min(_seconds_to_copy(tier, np.arange(count)) for _ in range(3)) for count in (1, probe)
        )
        return cls(one, max(many - one, 0.0) / max(probe - 1, 1))

    def learn(self, tokens: int, prompt_tokens: int, seconds: float) -> None:
        """A step computed ``tokens``, of which ``prompt_tokens`` in rows of several."""
        if prompt_tokens < LEAST_PREFILL or 2 * prompt_tokens < tokens:
            return
        new = seconds / tokens
        old = new if self.prefill_seconds is None else self.prefill_seconds
        self.prefill_seconds = old + 0.2 * (new - old)

    def pays(self, tokens: int, copies: int) -> bool:
        """Whether ``copies`` copies are faster than one computation; yes while that is unknown."""
        if self.prefill_seconds is None:
            return True
        copy = copies * (self.call_seconds + tokens * self.copy_seconds)
        return copy < tokens * self.prefill_seconds


def _seconds_to_copy(tier: HostTier, slots: np.ndarray) -> float:
    """Half of the time from the device to the host and back."""
    wait: Callable[[], None] = lambda: None  # noqa: E731
    if tier._cache.device.type == "cuda":
        wait = torch.cuda.synchronize
    wait()
    started = time.perf_counter()
    tier.copy_out(slots, slots)
    tier.copy_in(slots, slots)
    wait()
    return (time.perf_counter() - started) / 2


def _runs(slots: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """The runs of consecutive slots: where each begins in ``slots``, its first slot, its length."""
    starts = np.flatnonzero(np.diff(slots, prepend=slots[0] - 2) != 1)
    for begin, end in zip(starts.tolist(), [*starts[1:].tolist(), len(slots)], strict=True):
        yield begin, int(slots[begin]), end - begin
