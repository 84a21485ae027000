"""The tensors behind the slots."""

from pathlib import Path

import pytest
import torch

from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime.kv_cache import ALIGNMENT, KVCache


def test_shapes_zeros_and_alignment():
    cache = KVCache([(3, 64), (1, 32)], 100, torch.bfloat16)
    assert [tuple(keys.shape) for keys in cache.keys] == [(3, 101, 64), (1, 101, 32)]
    for tensor in (*cache.keys, *cache.values):
        assert tensor.dtype is torch.bfloat16
        assert not tensor.any()
        assert tensor.data_ptr() % ALIGNMENT == 0
    assert cache.bytes_per_slot == 2 * 2 * (3 * 64 + 32)


def test_a_written_slot_holds_what_was_written_and_no_other_does():
    cache = KVCache([(2, 4)], 8, torch.float32)
    key, value = torch.randn(2, 2, 4), torch.randn(2, 2, 4)
    cache.write(0, torch.tensor([5, 1]), torch.cat([key, value], dim=1))
    assert torch.equal(cache.keys[0][:, 5], key[0])
    assert torch.equal(cache.values[0][:, 1], value[1])
    assert not cache.keys[0][:, [0, 2, 3, 4, 6, 7, cache.scratch_slot]].any()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_unused_slots_take_no_memory():
    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096

    before = resident()
    cache = KVCache([(8, 128)], 200_000, torch.float32)
    assert cache.nbytes > 1_600_000_000
    assert resident() - before < 100_000_000


def test_more_slots_than_memory_are_refused_with_the_numbers() -> None:
    with pytest.raises(InvalidRequest, match=r"max_total_tokens=10{15} .* takes 1,024 bytes"):
        KVCache([(2, 64), (2, 64)], 10**15, torch.bfloat16)
