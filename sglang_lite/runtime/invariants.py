"""What must hold between two steps, whatever happened before."""

from __future__ import annotations

import numpy as np

from sglang_lite.runtime.request import Status
from sglang_lite.runtime.scheduler import Scheduler


def check_invariants(scheduler: Scheduler) -> None:
    """Raise :class:`AssertionError` that names the first broken invariant.

    * Every slot has exactly one owner: the free list, one tree node, or one request's tail.
    * The tree's keys, locks and counters are consistent (see :meth:`RadixTree.check`).
    * ``protected <= computed <= allocated`` for each request, and its protected slots are those
      that the tree holds for its tokens.
    * Waiting and finished requests hold nothing.
    * Every slot of the host tier is free or belongs to one node of its tree, and none is locked.
    """
    pool, tree = scheduler.pool, scheduler.tree
    owners = np.zeros(pool.size, dtype=np.int64)
    free = 0
    for start, length in pool.runs():
        owners[start : start + length] += 1
        free += length
    assert free == pool.free, f"{pool.free} slots are counted as free, {free} are"
    for _, node in tree.nodes():
        np.add.at(owners, node.slots, 1)
    for request in scheduler.running:
        name = f"request {request.rid}[{request.index}]"
        assert request.status is Status.RUNNING, f"{name} runs, but is {request.status}"
        lengths = (request.protected, request.computed, request.allocated)
        assert 0 <= lengths[0] <= lengths[1] <= lengths[2] <= len(request.slots), (
            f"{name}: protected, computed, allocated = {lengths}"
        )
        assert request.computed <= len(request.tokens), f"{name} computed more than its tokens"
        np.add.at(owners, request.slots[request.protected : request.allocated], 1)
        if request.node is not None:
            path = request.node.path()
            held = np.concatenate([node.slots for node in path]) if path else owners[:0]
            assert np.array_equal(held, request.slots[: request.protected]), (
                f"{name}: its slots differ from those of its tree node"
            )
            key = b"".join(node.key for node in path)
            assert key == request.tokens[: request.protected].tobytes(), (
                f"{name}: its tokens differ from those of its tree node"
            )
    for request in scheduler.waiting:
        name = f"request {request.rid}[{request.index}]"
        assert request.status is Status.WAITING, f"{name} waits, but is {request.status}"
        assert request.node is None, f"{name} waits, but locks a prefix"
        assert request.allocated == 0, f"{name} waits, but holds slots"
    wrong = np.flatnonzero(owners != 1)
    assert not len(wrong), f"slot {wrong[:1]} has {owners[wrong[:1]]} owners ({len(wrong)} wrong)"
    if scheduler.host is not None:
        scheduler.host.check()
    tree.check(request.node for request in scheduler.running if request.node is not None)
