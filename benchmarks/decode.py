"""Time of a step and of prefill against transformers and llama.cpp, interleaved in one run.

    python benchmarks/decode.py --threads 2 --out benchmarks/results/decode.md

All three run the default model: transformers in bfloat16, llama.cpp (if llama-cpp-python is
installed) on the Q4_1 file that the default model was converted from.  The runners take turns, so
that a slow moment of the machine hits all of them; a cell is the median of the repeats, a ratio
is ours over the peer's (below 1: we are faster).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from sglang_lite.runtime.batch import Batch, Row
from sglang_lite.runtime.default_model import default_model_path
from sglang_lite.runtime.models.loader import load_model

TOKENS = np.random.default_rng(0).integers(1000, 40000, 4096)
Runner = Callable[[], None]


class Ours:
    """Steps on the loaded model; each sequence's KV slots are one run."""

    name = "sglang_lite"

    def __init__(self, folder: Path, slots: int, quantization: str | None) -> None:
        self.model = load_model(
            folder, kv_slots=slots, dtype="bfloat16", device="cpu", quantization=quantization
        )

    def _step(self, rows: list[Row]) -> None:
        ids = np.concatenate([TOKENS[: row.new_tokens] for row in rows])
        last = np.cumsum([row.new_tokens for row in rows]) - 1
        batch = Batch.build(rows, ids, last)
        hidden = self.model.forward(batch)
        self.model.logits(hidden[batch.logit_rows]).argmax(-1)

    def decode(self, batch: int, context: int) -> Runner:
        rows = [
            Row(np.arange(i * (context + 1), (i + 1) * (context + 1)), context)
            for i in range(batch)
        ]
        for row in rows:
            self._step([Row(row.slots[:context], 0)])
        return lambda: self._step(rows)

    def forks(self, batch: int, prefix: int, own: int) -> Runner:
        shared = np.arange(prefix)
        self._step([Row(shared, 0)])
        rows = []
        for i in range(batch):
            first = prefix + i * (own + 1)
            rows.append(Row(np.append(shared, np.arange(first, first + own + 1)), prefix + own))
            self._step([Row(rows[-1].slots[: prefix + own], prefix)])
        return lambda: self._step(rows)

    def prefill(self, tokens: int) -> Runner:
        return lambda: self._step([Row(np.arange(tokens), 0)])


class Transformers:
    """Its own cache and attention (sdpa), bfloat16."""

    name = "transformers"

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

    @torch.inference_mode()
    def decode(self, batch: int, context: int) -> Runner:
        from transformers import DynamicCache

        cache = DynamicCache(config=self.model.config)
        ids = torch.from_numpy(TOKENS[:context]).repeat(batch, 1)
        self.model(ids, past_key_values=cache, logits_to_keep=1)
        new = ids[:, :1]

        @torch.inference_mode()
        def step() -> None:
            self.model(new, past_key_values=cache).logits[:, -1].float().argmax(-1)
            cache.crop(-1)

        return step

    def forks(self, batch: int, prefix: int, own: int) -> Runner:
        return self.decode(batch, prefix + own)

    def prefill(self, tokens: int) -> Runner:
        ids = torch.from_numpy(TOKENS[:tokens])[None]

        @torch.inference_mode()
        def run() -> None:
            self.model(ids, use_cache=True, logits_to_keep=1).logits.float().argmax(-1)

        return run


class LlamaCpp:
    """llama.cpp through its C interface, with as many sequences as rows."""

    name = "llama.cpp"

    def __init__(self, path: Path, threads: int) -> None:
        import llama_cpp

        self.lib, self.threads = llama_cpp, threads
        # ctypes doesn't keep a callback alive.
        self._silence = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._silence, None)
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
        self.context = None

    def _open(self, sequences: int, cells: int) -> None:
        if self.context is not None:
            self.lib.llama_free(self.context)
        options = self.lib.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_seq_max = cells, 2048, sequences
        options.n_threads = options.n_threads_batch = self.threads
        options.kv_unified = True
        self.context = self.lib.llama_init_from_model(self.model, options)

    def _decode(self, tokens: list[tuple[int, int, int]], logits: bool = True) -> None:
        """``tokens``: (id, position, sequence)."""
        batch = self.lib.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence) in enumerate(tokens):
            batch.token[i], batch.pos[i] = int(token), position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = logits and (i == len(tokens) - 1 or tokens[i + 1][2] != sequence)
        if self.lib.llama_decode(self.context, batch):
            raise RuntimeError("llama_decode failed")
        self.lib.llama_batch_free(batch)

    def _steps(self, batch: int, context: int) -> Runner:
        tokens = [(TOKENS[0], context, i) for i in range(batch)]
        memory = self.lib.llama_get_memory(self.context)

        def step() -> None:
            self._decode(tokens)
            self.lib.llama_synchronize(self.context)
            for i in range(batch):
                self.lib.llama_memory_seq_rm(memory, i, context, -1)

        return step

    def decode(self, batch: int, context: int) -> Runner:
        self._open(batch, batch * (context + 8))
        for i in range(batch):
            self._decode([(TOKENS[p], p, i) for p in range(context)])
        return self._steps(batch, context)

    def forks(self, batch: int, prefix: int, own: int) -> Runner:
        self._open(batch, prefix + batch * (own + 8))
        self._decode([(TOKENS[p], p, 0) for p in range(prefix)])
        memory = self.lib.llama_get_memory(self.context)
        for i in range(1, batch):
            self.lib.llama_memory_seq_cp(memory, 0, i, -1, -1)
        for i in range(batch):
            self._decode([(TOKENS[p], prefix + p, i) for p in range(own)])
        return self._steps(batch, prefix + own)

    def prefill(self, tokens: int) -> Runner:
        self._open(1, tokens + 8)
        memory = self.lib.llama_get_memory(self.context)
        work = [(TOKENS[p], p, 0) for p in range(tokens)]

        def run() -> None:
            self._decode(work)
            self.lib.llama_synchronize(self.context)
            self.lib.llama_memory_seq_rm(memory, 0, -1, -1)

        return run


def interleaved(runners: list[Runner], repeats: int) -> list[float]:
    """Median milliseconds of each runner, one run of each in turn, after one warm-up."""
    times: list[list[float]] = [[] for _ in runners]
    for repeat in range(repeats + 1):
        for run, record in zip(runners, times, strict=True):
            start = time.perf_counter()
            run()
            if repeat:
                record.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(record) for record in times]


def peers(folder: Path, threads: int) -> list[Transformers | LlamaCpp]:
    """Those that are installed."""
    found: list[Transformers | LlamaCpp] = [Transformers(folder)]
    try:
        found.append(LlamaCpp(folder / "model.gguf", threads))
    except ImportError:
        print("llama-cpp-python isn't installed: without it")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--forks", type=int, nargs="*", default=[8, 32])
    parser.add_argument("--prefills", type=int, nargs="*", default=[128, 512, 2048])
    parser.add_argument("--quantization", default=None)
    parser.add_argument("--alone", action="store_true", help="without the peers in the process")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = default_model_path()
    slots = max([4096, *(b * (options.context + 1) for b in options.batches)])
    engines: list[Ours | Transformers | LlamaCpp] = [Ours(folder, slots, options.quantization)]
    if not options.alone:
        engines += peers(folder, options.threads)
    cases = [
        (f"decode {b} × {options.context}", "decode", (b, options.context)) for b in options.batches
    ]
    cases += [(f"{n} forks over 1024 + 32", "forks", (n, 1024, 32)) for n in options.forks]
    cases += [(f"prefill {n}", "prefill", (n,)) for n in options.prefills]
    names = [engine.name for engine in engines]
    header = ["case, ms", *names, *(f"ours / {name}" for name in names[1:])]
    lines = [
        f"torch {torch.__version__}, {options.threads} threads, median of {options.repeats}, "
        f"quantization={options.quantization}",
        "",
        f"| {' | '.join(header)} |",
        f"|{'---|' * len(header)}",
    ]
    print("\n".join(lines))
    for title, method, arguments in cases:
        times = interleaved([getattr(e, method)(*arguments) for e in engines], options.repeats)
        ratios = [times[0] / other for other in times[1:]]
        lines.append(f"| {title} | {' | '.join(f'{x:.2f}' for x in [*times, *ratios])} |")
        print(lines[-1], flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
