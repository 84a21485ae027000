"""From process start to the first token, and resident memory, of a fresh process.

    python benchmarks/startup.py --repeats 5 --out benchmarks/results/startup.md

Each run is a new Python process that loads the default model (its cache is prepared first), reads
a prompt and generates; llama-cpp-python, if it is installed, does the same on the Q4_1 file.
Modules are compiled beforehand, as an installed package's are, whatever PYTHONDONTWRITEBYTECODE
says.  Memory is resident size after a 1,500-token prompt and some decoding, in a pool of 2,048
tokens, when the engine has been idle for a while.  The compiler of constraints is held back: it
would be made five seconds after the start, whether the run is over by then or not, and its tables
are another 20 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from sglang_lite.runtime.default_model import default_model_path

OURS = """
import json, os, time
import sglang_lite as sgl
from sglang_lite.runtime import late_compiler
late_compiler.SECONDS = 3600.0
options = json.loads(os.environ["OPTIONS"])
engine = sgl.Engine(max_total_tokens=2048, context_length=2048, **options)
prompt = "The capital of France is"
engine.generate(prompt, {"max_new_tokens": 1, "temperature": 0})
first = time.time() - float(os.environ["STARTED"])
ids = list(range(1000, 2500))
options = {"max_new_tokens": 16, "temperature": 0, "ignore_eos": True}
engine.generate(input_ids=ids, sampling_params=options)
time.sleep(2)
"""
LLAMA = """
import os, time
import llama_cpp
model = llama_cpp.Llama(os.environ["GGUF"], n_ctx=2048, n_threads=2, verbose=False)
model.create_completion("The capital of France is", max_tokens=1, temperature=0)
first = time.time() - float(os.environ["STARTED"])
model.create_completion(list(range(1000, 2500)), max_tokens=16, temperature=0)
"""
REPORT = """
import re, sys
status = open("/proc/self/status").read()
resident = int(re.search(r"VmRSS:\\s+(\\d+)", status).group(1)) / 1024
print("RESULT", first, resident, "transformers" in sys.modules)
"""


def run(program: str, environment: dict[str, str]) -> tuple[float, float, bool]:
    """Seconds to the first token, resident MB at the end, whether transformers was imported."""
    own = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    output = subprocess.run(
        [sys.executable, "-c", program + REPORT],
        env={**own, **environment, "STARTED": str(time.time())},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    fields = next(line for line in output.splitlines() if line.startswith("RESULT")).split()
    return float(fields[1]), float(fields[2]), fields[3] == "True"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    gguf = str(default_model_path() / "model.gguf")
    cases = {
        "sglang_lite": (OURS, {"OPTIONS": json.dumps({})}),
        "sglang_lite, int4": (OURS, {"OPTIONS": json.dumps({"quantization": "int4"})}),
    }
    try:
        import llama_cpp  # noqa: F401

        cases["llama-cpp-python"] = (LLAMA, {"GGUF": gguf})
    except ImportError:
        print("llama-cpp-python isn't installed: without it")
    for case in cases.values():
        run(*case)  # what is made at the first start is there at the others
    results: dict[str, list[tuple[float, float, bool]]] = {name: [] for name in cases}
    for _ in range(options.repeats):
        for name, case in cases.items():
            results[name].append(run(*case))
    lines = [
        f"median of {options.repeats}, alternating",
        "",
        "| | first token, s | resident, MB | imports transformers |",
        "|---|---|---|---|",
    ]
    for name, found in results.items():
        seconds, memory = (
            statistics.median(column) for column in list(zip(*found, strict=True))[:2]
        )
        lines.append(
            f"| {name} | {seconds:.2f} | {memory:.0f} | {'yes' if found[0][2] else 'no'} |"
        )
    print("\n".join(lines))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
