"""The engine: requests, scheduler, radix tree and KV pool, models, and the server over them."""

import os

# How long OpenMP's threads spin at a barrier before they sleep; libgomp reads it when torch is
# imported.  Its own limit of some milliseconds is harmless on an idle machine and ruinous on a
# busy one: with another program on two cores a token takes up to fifty times as long, because a
# thread spins while the one that it waits for has no processor (benchmarks/results/contention.md).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
