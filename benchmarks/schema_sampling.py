"""Random texts from the engine's masks, judged by the ``jsonschema`` library.

    python benchmarks/schema_sampling.py MASKBENCH.jsonl[.gz] [--schemas N] [--texts N] [--seed N]

For each schema texts are sampled from the masks of a byte vocabulary until the end of text: evenly
at first, and with a preference for closing quotes and brackets as they grow.  Every text must be
JSON that the schema's own draft accepts.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter

import jsonschema
import numpy as np
from maskbench_verdicts import cases
from schema_verdicts import TimeoutReached, at_most, byte_vocabulary

from sglang_lite.constrained.compiler import GrammarCompiler
from sglang_lite.constrained.matcher import GrammarMatcher, allocate_token_bitmask
from sglang_lite.constraint import JsonSchema
from sglang_lite.errors import ConstraintError

END = 256
CLOSING = [ord('"'), ord("]"), ord("}")]


def sample(matcher: GrammarMatcher, rng: random.Random, limit: int) -> bytes | None:
    """One text, or None if it has not ended after ``limit`` bytes."""
    mask = allocate_token_bitmask(1, matcher.compiled.vocabulary.size)
    text = bytearray()
    while len(text) < limit:
        matcher.fill_next_token_bitmask(mask)
        allowed = np.flatnonzero(np.unpackbits(mask[0].view(np.uint8), bitorder="little")).tolist()
        if not allowed:
            raise AssertionError(f"nothing is allowed after {bytes(text)!r}")
        hurry = rng.random() < len(text) / 400
        closing = [byte for byte in CLOSING if byte in allowed]
        if END in allowed and (hurry or len(allowed) == 1 or rng.random() < 0.3):
            return bytes(text)
        chosen = rng.choice(closing if closing and hurry else [b for b in allowed if b != END])
        if not matcher.accept_token(chosen):
            raise AssertionError(f"the mask allows {chosen} after {bytes(text)!r}, no step does")
        text.append(chosen)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path")
    parser.add_argument("--schemas", type=int, default=2000)
    parser.add_argument("--texts", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=20, help="time for one schema")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    chosen = list(cases(arguments.path))
    rng.shuffle(chosen)
    vocabulary, counts = byte_vocabulary(), Counter[str]()
    for case in chosen[: arguments.schemas]:
        try:
            with at_most(arguments.seconds):
                constraint = JsonSchema.of(case.schema, max_whitespace=1, max_digits=12)
                compiled = GrammarCompiler(vocabulary).compile(constraint)
                kind = jsonschema.validators.validator_for(
                    case.schema, default=jsonschema.Draft202012Validator
                )
                for _ in range(arguments.texts):
                    text = sample(GrammarMatcher(compiled), rng, 20_000)
                    if text is None:
                        counts["unfinished"] += 1
                        print(f"unfinished {case.name}")
                        continue
                    good = kind(case.schema).is_valid(json.loads(text))
                    counts["valid" if good else "INVALID"] += 1
                    if not good:
                        print(f"INVALID {case.name}: {text.decode()}")
        except ConstraintError:
            counts["refused schemas"] += 1
        except TimeoutReached:
            counts["timeouts"] += 1
            print(f"timeout {case.name}")
    print(dict(counts))


if __name__ == "__main__":
    main()
