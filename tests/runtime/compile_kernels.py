"""Compile every Triton kernel for an H200 (compute capability 9.0); no GPU is needed for that.

Prints one JSON line per kernel and configuration: its name, the shared memory of a program in
bytes, and whether it multiplies on tensor cores.  To be run by itself, because Triton decides at
import whether kernels are compiled or interpreted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sglang_lite.runtime.attention import triton_kernels
from sglang_lite.runtime.attention.items import FEW_ROWS, many_rows
from sglang_lite.runtime.attention.triton import _Tile
from sglang_lite.runtime.cuda import kernels, layer_kernels

TARGET = GPUTarget("cuda", 90, 32)
FLOATS = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}
# The strides of real tensors are multiples of 16, and Triton makes use of it.
STRIDES = ("query_by_token", "query_by_head", "cache_by_head", "cache_by_slot")

Case = tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]


def attention_cases() -> Iterator[Case]:
    """The shapes of common models: both block sizes, both dtypes, every option."""
    integers = dict.fromkeys(("items", "merges", "tokens", "places", "slots", "positions"), "*i32")
    partial = {"partial_out": "*fp32", "partial_lse": "*fp32", "scale": "fp32", "softcap": "fp32"}
    for dtype, dim, group, options in (
        (torch.bfloat16, 128, 2, ()),
        (torch.bfloat16, 64, 3, ("SINKS", "WINDOW")),
        (torch.bfloat16, 80, 1, ()),
        (torch.bfloat16, 256, 8, ("SOFTCAP", "WINDOW")),
        (torch.float32, 128, 2, ()),
    ):
        tensors = ("query", "key_cache", "value_cache", "out", "sinks")
        types = {**integers, **partial, **dict.fromkeys(tensors, FLOATS[dtype])}
        block_dim = max(16, 1 << (dim - 1).bit_length())
        tile = _Tile.of(block_dim, dtype)
        shared = {"HEADS": 8 * group, "DIM": dim, "BLOCK_D": block_dim, "SINKS": "SINKS" in options}
        launch = {"num_warps": tile.warps, "num_stages": tile.stages}
        for rows in (FEW_ROWS, many_rows(group)):
            constants = {
                **shared,
                "GROUP": group,
                "BLOCK_M": rows,
                "BLOCK_N": tile.keys,
                "SOFTCAP": "SOFTCAP" in options,
                "WINDOW": "WINDOW" in options,
            }
            yield triton_kernels.attend_items, types, constants, launch
        yield triton_kernels.merge_parts, types, {**shared, "BLOCK_P": 16}, {}


def sampling_cases() -> Iterator[Case]:
    """The kernels of sampling."""
    types = {
        "logits": "*fp32",
        "out": "*fp32",
        "table": "*i32",
        "lines": "*i32",
        "parameters": "*fp32",
        "tokens": "*i64",
        "candidate_values": "*fp32",
        "candidate_ids": "*i32",
    }
    yield kernels.mask_logits, types, {"BLOCK": 1024}, {}
    yield kernels.sample_rows, types, {"BLOCK": 4096, "SMALL": 1024}, {"num_warps": 16}


def layer_cases() -> Iterator[Case]:
    """The kernels between the matrices, for a model of Qwen3-0.6B's shape."""
    names = ("stream", "added", "weight", "out", "qkv", "norm_weight", "cos", "sin", "turned")
    types = dict.fromkeys((*names, "cache", "gate_up"), "*bf16")
    types |= {"slots": "*i64", "eps": "fp32"}
    yield layer_kernels.add_and_norm, types, {"SIZE": 1024, "BLOCK": 1024, "ADD": True}, {}
    heads = {"HEADS": 16, "KV_HEADS": 8, "DIM": 128, "BLOCK": 128, "NORM": True, "ROTARY": True}
    yield layer_kernels.turn_and_store, types, heads, {"num_warps": 1}
    yield layer_kernels.gate_and_multiply, types, {"SIZE": 3072, "BLOCK": 1024}, {}


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, Any], launch: dict[str, int]):
    """The kernel for arguments of these types (others are int32); tensors are aligned."""
    names = kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else types.get(name, "i32") for name in names
    }
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if signature[name].startswith("*") or name in STRIDES
    }
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, constexprs=values, attrs=aligned)
    return triton.compile(source, target=TARGET, options=launch)


def main() -> None:
    """Compile all."""
    for kernel, types, constants, launch in (*attention_cases(), *sampling_cases(), *layer_cases()):
        result = compiled(kernel, types, constants, launch)
        assembly = result.asm["ptx"]
        report = {
            "kernel": kernel.__name__,
            "constants": constants,
            "shared": result.metadata.shared,
            "tensor_cores": "wgmma" in assembly or "mma.sync" in assembly,
            "cubin": len(result.asm["cubin"]),
        }
        print(json.dumps(report))


if __name__ == "__main__":
    main()
