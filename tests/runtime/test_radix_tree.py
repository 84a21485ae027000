"""The radix tree against a plain model of what it must remember, and its edge cases."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sglang_lite.runtime.kv_pool import KVPool
from sglang_lite.runtime.radix_node import Node
from sglang_lite.runtime.radix_tree import RadixTree


def ids(*tokens: int) -> array[int]:
    return array("i", tokens)


def put(tree: RadixTree, tokens: array[int], first_slot: int, prompt_len: int = 1000) -> int:
    slots = np.arange(first_slot, first_slot + len(tokens))
    return tree.insert(tokens, slots, prompt_len)[1]


def test_empty_tree_matches_nothing() -> None:
    assert len(RadixTree().match(ids(1, 2, 3), 3)) == 0


def test_match_stops_inside_a_node_and_splits_it() -> None:
    tree = RadixTree()
    put(tree, ids(1, 2, 3, 4, 5), 10)
    match = tree.match(ids(1, 2, 3, 9), 4)
    assert match.slots.tolist() == [10, 11, 12]
    assert [len(node) for _, node in tree.nodes()] == [3, 2]
    assert tree.evictable == 5
    tree.check([])


def test_limit_cuts_a_full_match() -> None:
    tree = RadixTree()
    put(tree, ids(1, 2, 3), 0)
    assert tree.match(ids(1, 2, 3), 2).slots.tolist() == [0, 1]


def test_insert_reports_and_rewrites_what_was_there() -> None:
    tree = RadixTree()
    put(tree, ids(1, 2, 3), 0)
    slots = np.array([50, 51, 52, 53])
    _, present = tree.insert(ids(1, 2, 7, 8), slots, 4)
    assert present == 2
    assert slots.tolist() == [0, 1, 52, 53]
    assert tree.match(ids(1, 2, 7, 8), 4).slots.tolist() == [0, 1, 52, 53]
    tree.check([])


def test_the_tree_keeps_a_copy_of_the_slots() -> None:
    tree = RadixTree()
    row = np.arange(4)
    tree.insert(ids(1, 2, 3, 4), row, 4)
    row[:] = -1
    assert tree.match(ids(1, 2, 3, 4), 4).slots.tolist() == [0, 1, 2, 3]


def test_peek_finds_the_same_length_and_changes_nothing() -> None:
    tree = RadixTree()
    put(tree, ids(1, 2, 3, 4), 0)
    assert tree.peek(ids(1, 2, 9), 3)[0] == 2
    assert tree.peek(ids(1, 2, 9), 3, "other")[0] == 0
    assert [len(node) for _, node in tree.nodes()] == [4]


def test_least_recently_used_goes_first() -> None:
    tree = RadixTree()
    for token in (1, 2, 3):
        put(tree, ids(token), token)
    tree.match(ids(1), 1)
    assert tree.evict(1).tolist() == [2]
    assert tree.evict(1).tolist() == [3]
    assert tree.evict(5).tolist() == [1]
    assert tree.evictable == 0


def test_outputs_go_before_older_prompts() -> None:
    tree = RadixTree()
    put(tree, ids(1, 2), 0)
    put(tree, ids(3, 4, 5), 10, prompt_len=2)
    assert tree.evict(1).tolist() == [12]
    assert sorted(tree.evict(1).tolist()) == [0, 1]


def test_an_output_that_became_a_prompt_counts_as_one() -> None:
    tree = RadixTree()
    put(tree, ids(1, 2, 3, 4), 0, prompt_len=2)
    put(tree, ids(1, 2, 3), 20, prompt_len=3)
    kinds = {len(node.path()): (len(node), node.is_prompt) for _, node in tree.nodes()}
    assert kinds == {1: (2, True), 2: (1, True), 3: (1, False)}
    tree.check([])


def test_locked_paths_survive_eviction() -> None:
    tree = RadixTree()
    put(tree, ids(1, 2, 3), 0)
    put(tree, ids(1, 2, 4), 10)
    node = tree.match(ids(1, 2, 3), 3).node
    tree.lock(node)
    assert (tree.evictable, tree.protected) == (1, 3)
    assert tree.evict(100).tolist() == [12]
    tree.check([node])
    tree.unlock(node)
    assert sorted(tree.evict(100).tolist()) == [0, 1, 2]


def test_a_split_below_a_handle_keeps_its_lock() -> None:
    tree = RadixTree()
    put(tree, ids(1, 2, 3, 4), 0)
    node = tree.match(ids(1, 2, 3, 4), 4).node
    tree.lock(node)
    tree.match(ids(1, 2), 2)
    tree.check([node])
    assert len(tree.evict(4)) == 0
    tree.unlock(node)
    tree.check([])
    assert len(tree.evict(4)) == 4


def test_namespaces_share_nothing_and_vanish_when_empty() -> None:
    tree = RadixTree()
    tree.insert(ids(1, 2), np.array([0, 1]), 2, "alice")
    assert len(tree.match(ids(1, 2), 2, "bob")) == 0
    assert len(tree.match(ids(1, 2), 2, "alice")) == 2
    tree.evict(2)
    assert [name for name in tree._roots if name == "alice"] == []


def test_oldest_is_evicted_before_everything_of_its_kind() -> None:
    tree = RadixTree()
    put(tree, ids(1), 0)
    tree.insert(ids(2), np.array([5]), 1, oldest=True)
    assert tree.evict(1).tolist() == [5]


def test_snapshot_is_bounded() -> None:
    tree = RadixTree()
    for token in range(20):
        put(tree, ids(token, 1, 2), 10 * token)
    shot = tree.snapshot(max_nodes=5)
    assert len(shot["nodes"]) == 5
    assert shot["truncated"]
    assert shot["nodes"][0]["length"] == 3


def test_evict_touches_only_what_it_frees() -> None:
    """Eviction must not walk the tree: its heap work is bounded by the entries it pops."""
    tree = RadixTree()
    for token in range(5000):
        put(tree, ids(token, 1), 2 * token)
    before = len(tree._leaves)
    tree.evict(2)
    assert before - len(tree._leaves) == 1


class TreeMachine(RuleBasedStateMachine):
    """Random inserts, matches, locks and evictions against a dict from prefixes to slots."""

    @initialize()
    def start(self) -> None:
        self.tree = RadixTree()
        self.pool = KVPool(200)
        self.known: dict[tuple[str, tuple[int, ...]], int] = {}
        self.handles: list[tuple[Node, str, tuple[int, ...]]] = []

    tokens = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)
    spaces = st.sampled_from(["", "x"])

    def owned(self) -> set[int]:
        return {int(slot) for _, node in self.tree.nodes() for slot in node.slots}

    def forget(self, freed: np.ndarray) -> None:
        self.pool.release(freed)
        gone = set(freed.tolist())
        self.known = {key: slot for key, slot in self.known.items() if slot not in gone}

    @rule(tokens=tokens, space=spaces, prompt=st.integers(0, 12), oldest=st.booleans())
    def insert(self, tokens: tuple[int, ...], space: str, prompt: int, oldest: bool) -> None:
        slots = self.pool.allocate(len(tokens))
        if slots is None:
            return
        mine = slots.copy()
        _, present = self.tree.insert(array("i", tokens), slots, prompt, space, oldest=oldest)
        self.pool.release(mine[:present])
        for end in range(1, len(tokens) + 1):
            key = (space, tokens[:end])
            assert (key in self.known) == (end <= present)
            assert self.known.setdefault(key, int(slots[end - 1])) == slots[end - 1]

    @rule(tokens=tokens, space=spaces, lock=st.booleans())
    def match(self, tokens: tuple[int, ...], space: str, lock: bool) -> None:
        expected = []
        while (space, tokens[: len(expected) + 1]) in self.known and len(expected) < len(tokens):
            expected.append(self.known[space, tokens[: len(expected) + 1]])
        assert self.tree.peek(array("i", tokens), len(tokens), space)[0] == len(expected)
        match = self.tree.match(array("i", tokens), len(tokens), space)
        assert match.slots.tolist() == expected
        if lock:
            self.tree.lock(match.node)
            self.handles.append((match.node, space, tokens[: len(expected)]))

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.handles) - 1))
        node, space, tokens = self.handles.pop(index)
        for end in range(1, len(tokens) + 1):
            assert (space, tokens[:end]) in self.known, "a locked prefix was evicted"
        self.tree.unlock(node)

    @rule(count=st.integers(1, 40))
    def evict(self, count: int) -> None:
        evictable = self.tree.evictable
        freed = self.tree.evict(count)
        assert len(freed) >= min(count, evictable)
        self.forget(freed)

    @invariant()
    def consistent(self) -> None:
        if not hasattr(self, "tree"):
            return
        self.tree.check(node for node, _, _ in self.handles)
        owned = self.owned()
        assert owned == set(self.known.values())
        assert len(owned) == len(self.known) == self.tree.evictable + self.tree.protected
        assert self.pool.free + len(owned) == self.pool.size


TreeMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestTreeMachine = pytest.mark.filterwarnings("ignore")(TreeMachine.TestCase)
