"""From what a caller asks for to the engine's requests: one for each sample."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_lite.runtime.config import EngineConfig
from sglang_lite.runtime.detokenizer import IncrementalDetokenizer, StopScanner
from sglang_lite.runtime.messages import GenerateRequest
from sglang_lite.runtime.noise import derived_seed
from sglang_lite.runtime.output_stream import OutputStream
from sglang_lite.runtime.request import Request
from sglang_lite.runtime.tokenizer import Tokenizer


def new_samples(
    source: GenerateRequest,
    rid: str,
    stream: OutputStream,
    numbers: Sequence[int],
    tokenizer: Tokenizer,
    config: EngineConfig,
) -> list[Request]:
    """The samples of a request; ``numbers`` are their places among all that ever arrived."""
    params = source.sampling_params
    eos = frozenset(tokenizer.eos_token_ids)
    ends_at_eos = params.constraint is not None or not params.ignore_eos
    limit = config.context_length
    if params.max_new_tokens is not None:
        limit = min(limit, len(source.input_ids) + params.max_new_tokens)
    seed = derived_seed(config.random_seed, numbers[0]) if params.seed is None else params.seed

    def piece_bytes(token: int) -> bytes:
        return tokenizer.piece_bytes(token, skip_special_tokens=params.skip_special_tokens)

    requests = [
        Request(
            source=source,
            rid=rid,
            index=index,
            stream=stream,
            seed=seed,
            arrival=number,
            length_limit=limit,
            stop_ids=frozenset(params.stop_token_ids) | (eos if ends_at_eos else frozenset()),
            eos_ids=eos,
            detokenizer=IncrementalDetokenizer(piece_bytes),
            stops=StopScanner(params.stop, params.stop_regex, params.no_stop_trim),
        )
        for index, number in enumerate(numbers)
    ]
    for request in requests:
        request.siblings = requests
    return requests
