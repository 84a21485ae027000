"""An engine without its thread, stepped by hand, on the toy model."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from sglang_lite.constrained import GrammarCompiler
from sglang_lite.runtime import progress
from sglang_lite.runtime.config import EngineConfig
from sglang_lite.runtime.core import EngineCore
from sglang_lite.runtime.detokenizer import IncrementalDetokenizer, StopScanner
from sglang_lite.runtime.engine_args import EngineArgs
from sglang_lite.runtime.host_tier import SwapCost
from sglang_lite.runtime.loop import new_samples
from sglang_lite.runtime.messages import GenerateRequest
from sglang_lite.runtime.output_stream import OutputStream
from sglang_lite.runtime.request import Request
from sglang_lite.sampling_params import SamplingParams
from tests.runtime.toy import DEFAULTS, EOS, ToyModel, expected_greedy, toy_tokenizer

NO_EOS = -1000.0


class Bench:
    """An :class:`EngineCore` without its thread, and everything that was submitted to it."""

    def __init__(self, slots: int = 4096, context_length: int = 2048, **options: Any) -> None:
        options = {**DEFAULTS, **options}
        shape_sensitive = bool(options.get("deterministic"))
        self.model = ToyModel(slots, context_length, NO_EOS, shape_sensitive)
        self.config = EngineConfig.of(
            EngineArgs(**options), self.model.config, slots, self.model.device
        )
        self.core = EngineCore(self.model, self.config, lambda request: None)
        self.scheduler = self.core.scheduler
        if self.scheduler.host is not None:
            # The toy computes faster than memory is copied: tests say what pays.
            self.scheduler.host.cost = Always()
        self.numbers = itertools.count()

    def submit(self, prompt: list[int], count: int, exact: bool = False, **fields: Any) -> Request:
        """``exact``: its length is known, so the scheduler need not guess."""
        params = SamplingParams(temperature=0, max_new_tokens=count, ignore_eos=exact)
        source = GenerateRequest(tuple(prompt), params, **fields)
        number = next(self.numbers)
        request = Request(
            source=source,
            rid=str(number),
            index=0,
            stream=OutputStream(str(number), 1, lambda: None),
            seed=0,
            arrival=number,
            length_limit=min(len(prompt) + count, self.config.context_length),
            stop_ids=frozenset(),
            eos_ids=frozenset((EOS,)),
            detokenizer=IncrementalDetokenizer(lambda token: b"x"),
            stops=StopScanner(),
        )
        self.core.add([request])
        return request

    def submit_source(self, source: GenerateRequest, compiler: GrammarCompiler) -> list[Request]:
        """All samples of a request as the engine itself would make them."""
        numbers = list(itertools.islice(self.numbers, source.sampling_params.n))
        stream = OutputStream(source.rid, len(numbers), lambda: None)
        requests = new_samples(source, source.rid, stream, numbers, toy_tokenizer(), self.config)
        constraint = source.sampling_params.constraint
        for request in requests:
            if constraint is not None:
                progress.start(request, compiler.compile(constraint))
        self.core.add(requests)
        return requests

    def step(self) -> None:
        self.core.finish_aborted()
        self.core.step()
        self.core.check()

    def drain(self, limit: int = 10_000) -> None:
        for _ in range(limit):
            if not self.core.busy:
                return
            self.step()
        raise AssertionError("the engine does not finish its work")


class Always(SwapCost):
    """Copies cost nothing."""

    def __init__(self) -> None:
        super().__init__(0.0, 0.0)

    def pays(self, tokens: int, copies: int) -> bool:
        return True


def outputs(request: Request) -> list[int]:
    return [token for output in request.stream for token in output.token_ids]


def reason(request: Request) -> str:
    assert request.finish_reason is not None
    return request.finish_reason.type


def expect_alone(request: Request, slots: int) -> None:
    """Its tokens are those of the model alone, as many as asked for or as the pool can hold."""
    prompt, count = list(request.source.input_ids), request.params.max_new_tokens
    assert count is not None
    got = outputs(request)
    assert got == without_eos(prompt, count)[: len(got)]
    if reason(request) != "abort":
        assert len(got) == min(count, slots + 1 - len(prompt))


def without_eos(prompt: list[int], count: int) -> list[int]:
    return list(_without_eos(tuple(prompt), count))


@functools.lru_cache(maxsize=4096)
def _without_eos(prompt: tuple[int, ...], count: int) -> list[int]:
    return expected_greedy(list(prompt), count, NO_EOS)
