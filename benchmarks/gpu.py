"""A CUDA device: decode steps against its memory bandwidth, kernels against torch's own.

    python benchmarks/gpu.py                       # writes benchmarks/results/gpu.md
    python benchmarks/gpu.py --device cpu          # the same code on a tiny model, to try it out

The model is random, with the shape of Qwen3-0.6B.  A step is everything from host arrays to token
ids on the device; steps follow each other without waiting, as in the engine.  The limit of a step
is the time in which the device, at the speed of a measured copy, reads the weights and the keys and
values of the step once; "host" is the time until a step has been handed to the device.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

REAL = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
}
TINY = {"num_hidden_layers": 1, "max_position_embeddings": 1024}
REPEATS = 5


class Bench:
    """The device, the model and the sizes of the runs."""

    def __init__(self, device: torch.device, folder: Path) -> None:
        from sglang_lite.runtime.attention.triton import TritonAttention
        from sglang_lite.runtime.models.loader import load_model
        from tests.runtime.tiny import make_tiny_model

        self.device, self.small = device, device.type == "cpu"
        shape = TINY if self.small else REAL
        self.dtype = "float32" if self.small else "bfloat16"
        self.batches = (1, 2) if self.small else (1, 8, 64, 256)
        self.contexts = (20,) if self.small else (256, 1024)
        self.folder = make_tiny_model(folder, model_type="qwen3", **shape)
        slots = max(self.batches) * (max(self.contexts) + 1) + 1
        self.model = load_model(
            self.folder, kv_slots=slots, dtype=self.dtype, device=self.device.type
        )
        config = self.model.config
        self.attention = TritonAttention(device, config.num_heads, config.num_kv_heads)
        self.model.attention = self.attention
        self.bandwidth = self._bandwidth()
        inner, hidden, dim = shape.get("intermediate_size", 96), config.hidden_size, config.head_dim
        heads = 2 * config.num_heads + 2 * config.num_kv_heads
        layer = hidden * (heads * dim + 3 * inner)
        numbers = config.num_layers * layer + config.vocab_size * hidden
        self.weight_bytes = numbers * self.model.dtype.itemsize

    def seconds(self, run: Callable[[], object], loops: int) -> float:
        """Median time of one call among ``loops`` that follow each other."""
        loops = 1 if self.small else loops
        run()
        times = []
        for _ in range(1 if self.small else REPEATS):
            self._wait()
            started = time.perf_counter()
            for _ in range(loops):
                run()
            self._wait()
            times.append((time.perf_counter() - started) / loops)
        return statistics.median(times)

    def host_seconds(self, run: Callable[[], object]) -> float:
        """Median time until a call returns, while the device works on it."""
        times = []
        for _ in range(1 if self.small else 4 * REPEATS):
            self._wait()
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)
        return statistics.median(times)

    def _wait(self) -> None:
        if not self.small:
            torch.cuda.synchronize()

    def _bandwidth(self) -> float:
        """Bytes per second, read and written, of a large copy."""
        size = 1 << (20 if self.small else 31)
        source = torch.empty(size, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * size / self.seconds(lambda: target.copy_(source), 20)

    def limit(self, batch: int, context: int) -> float:
        """Seconds in which the step's bytes can be read."""
        per_token = self.model.config.kv_bytes_per_token(self.model.dtype.itemsize)
        return (self.weight_bytes + batch * context * per_token) / self.bandwidth


def decode(bench: Bench) -> Iterator[str]:
    """Steps of different numbers of rows, from graphs and without."""
    from sglang_lite.runtime.batch import Batch, Row
    from sglang_lite.runtime.cuda.graphs import GraphedModel
    from sglang_lite.runtime.cuda.sampling import DeviceSampler
    from sglang_lite.runtime.sampler import SamplingRow
    from tests.runtime.kernels import Rerun

    graphed = GraphedModel(
        bench.model, bench.attention, bench.batches, Rerun if bench.small else None
    )
    yield "| rows | context | limit | from graphs | of the limit | host | without | tokens/s |"
    yield "|---|---|---|---|---|---|---|---|"
    sampler = DeviceSampler(bench.device)
    for batch in bench.batches:
        for context in bench.contexts:
            ends = [(i + 1) * (context + 1) for i in range(batch)]
            rows = [Row(np.arange(end - context - 1, end), context) for end in ends]
            ids, last = np.arange(batch) % 251, np.arange(batch)
            greedy = [SamplingRow()] * batch
            times, host = [], []
            for model in (graphed, bench.model):

                def step(model=model, rows=rows, ids=ids, last=last, greedy=greedy) -> None:
                    step = Batch.build(rows, ids, last, bench.device)
                    sampler(model.logits(model.forward(step)[step.logit_rows]), greedy)

                times.append(bench.seconds(step, 50))
                host.append(bench.host_seconds(step))
            limit = bench.limit(batch, context)
            cells = (
                batch,
                context,
                _ms(limit),
                _ms(times[0]),
                f"{limit / times[0]:.0%}",
                _ms(host[0]),
                _ms(times[1]),
                f"{batch / times[0]:,.0f}",
            )
            yield f"| {' | '.join(map(str, cells))} |"


def attention(bench: Bench) -> Iterator[str]:
    """One layer's attention against torch's on keys and values that lie side by side already."""
    from sglang_lite.runtime.batch import Row

    config, device = bench.model.config, bench.device
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    cases = [("decode", b, c, 1) for b in bench.batches for c in bench.contexts]
    chunk = max(bench.contexts)
    cases += [("prompt", 1, chunk, chunk), ("chunk after a prefix", 1, chunk, chunk // 4)]
    yield "| what | rows | keys | new tokens | ours | torch, contiguous |"
    yield "|---|---|---|---|---|---|"
    keys, values = bench.model.kv_cache.keys[0], bench.model.kv_cache.values[0]
    for name, batch, context, new in cases:
        rows = [Row(np.arange(i * context, (i + 1) * context), context - new) for i in range(batch)]
        query = torch.randn(batch * new, heads, dim, device=device).to(keys.dtype)
        plan = bench.attention.plan(rows, None)
        own = keys[:, : batch * new].transpose(0, 1)

        def ours(query=query, own=own, plan=plan) -> None:
            bench.attention.attend(query, own, own, keys, values, plan, scale=dim**-0.5)

        shape = (kv_heads, batch, context, dim)
        k = keys[:, : batch * context].reshape(shape).transpose(0, 1).contiguous()
        v = values[:, : batch * context].reshape(shape).transpose(0, 1).contiguous()
        q = query.view(batch, new, heads, dim).transpose(1, 2).contiguous()
        mask = None
        if 1 < new < context:
            at = torch.arange(context, device=device)
            mask = at <= at[-new:, None]

        def theirs(q=q, k=k, v=v, mask=mask, causal=new == context) -> None:
            F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=True)

        times = [bench.seconds(run, 100) for run in (ours, theirs)]
        yield f"| {name} | {batch} | {context} | {new} | {_ms(times[0])} | {_ms(times[1])} |"


def sampling(bench: Bench) -> Iterator[str]:
    """Top-p sampling and masks on logits as wide as the vocabulary."""
    from sglang_lite.runtime.cuda.sampling import DeviceSampler
    from sglang_lite.runtime.sampler import SamplingRow

    vocab, sampler = bench.model.config.vocab_size, DeviceSampler(bench.device)
    mask = np.full(-(-vocab // 32), 0x55555555, dtype=np.int32)
    yield "| rows | greedy | masked | temperature 1 | top-p 0.9 | torch: softmax, sort, draw |"
    yield "|---|---|---|---|---|---|"
    for batch in bench.batches:
        logits = 4 * torch.randn(batch, vocab, device=bench.device)
        kinds = (
            SamplingRow(),
            SamplingRow(mask=mask),
            SamplingRow(1.0, uniform=0.5),
            SamplingRow(1.0, top_p=0.9, uniform=0.5),
        )
        times = [
            bench.seconds(
                lambda kind=kind, logits=logits: sampler(logits, [kind] * len(logits)), 50
            )
            for kind in kinds
        ]

        def theirs(logits=logits) -> None:
            probabilities, ids = logits.softmax(-1).sort(descending=True)
            cut = probabilities.cumsum(-1) - probabilities > 0.9
            ids.gather(1, torch.multinomial(probabilities.masked_fill(cut, 0.0), 1))

        times.append(bench.seconds(theirs, 50))
        yield f"| {batch} | {' | '.join(map(_ms, times))} |"


def engine(bench: Bench) -> Iterator[str]:
    """Whole requests, with and without overlap and graphs: tokens per second."""
    from sglang_lite.runtime.engine import Engine

    ways = {"graphs, overlap": {}, "no overlap": {"disable_overlap_schedule": True}}
    if not bench.small:
        ways["no graphs"] = {"disable_cuda_graph": True}
    length = 4 if bench.small else 256
    yield f"| requests of {length} tokens | {' | '.join(ways)} |"
    yield "|---" * (1 + len(ways)) + "|"
    made = {
        name: Engine(
            bench.folder,
            dtype=bench.dtype,
            device=bench.device.type,
            max_total_tokens=max(bench.batches) * (length + 8),
            **options,
        )
        for name, options in ways.items()
    }
    for batch in bench.batches:
        params = {"temperature": 0, "max_new_tokens": length, "ignore_eos": True}
        cells = []
        for each in made.values():
            prompts = [[i % 250, 1, 2, 3] for i in range(batch)]
            run = partial(each.generate, input_ids=prompts, sampling_params=params)
            cells.append(f"{batch * length / bench.seconds(run, 1):,.0f}")
        yield f"| {batch} | {' | '.join(cells)} |"
    for each in made.values():
        each.shutdown()


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3f} ms"


def report(bench: Bench) -> str:
    """All tables, as Markdown."""
    import triton

    name = "CPU" if bench.small else torch.cuda.get_device_name(bench.device)
    lines = [
        "# Figures of a CUDA device",
        "",
        f"`python benchmarks/gpu.py` on {name}; torch {torch.__version__}, triton "
        f"{triton.__version__}. A copy moves {bench.bandwidth / 1e12:.2f} TB/s; the weights are "
        f"{bench.weight_bytes / 1e9:.2f} GB in {bench.dtype}. Times are medians.",
    ]
    sections = {
        "Decode steps": decode,
        "Attention of one layer": attention,
        "Sampling": sampling,
        "The engine, tokens per second": engine,
    }
    for title, table in sections.items():
        print(f"{title} ...", file=sys.stderr)
        with torch.inference_mode():
            lines += ["", f"## {title}", "", *table(bench)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run all and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/gpu.md; cpu: none")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit(
            "benchmarks/gpu.py needs a CUDA device, and this torch sees none (try --device cpu)"
        )
    if args.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        text = report(Bench(torch.device(args.device), Path(folder) / "model"))
    print(text)
    out = args.out
    if out is None and args.device == "cuda":
        out = Path(__file__).parent / "results" / "gpu.md"
    if out is not None:
        out.write_text(text)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
