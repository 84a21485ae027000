"""The engine's streams and constraints, on the toy model."""

from __future__ import annotations

import asyncio
import re
import threading

import numpy as np
import pytest

from sglang_lite.constraint import Constraint, Regex
from sglang_lite.errors import ConstraintError, EngineError
from sglang_lite.runtime.engine import Engine
from sglang_lite.runtime.messages import GenerateRequest
from sglang_lite.sampling_params import SamplingParams
from tests.runtime.toy import (
    VOCAB,
    expected_greedy,
    greedy,
    ids_of,
    request,
    wait_until_idle,
)
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("both_schedules")


def test_deltas_concatenate_to_the_result(engine: Engine) -> None:
    expected = engine.generate("Hello", greedy(15))
    outputs = list(engine.submit(request(engine, "Hello", temperature=0, max_new_tokens=15)))
    assert "".join(output.text for output in outputs) == expected["text"]
    assert [t for output in outputs for t in output.token_ids] == expected["output_ids"]
    assert [o.finish_reason is not None for o in outputs] == [False] * (len(outputs) - 1) + [True]
    usage = outputs[-1].usage
    assert usage.completion_tokens == 15
    assert 0 <= usage.queue_s <= usage.ttft_s <= usage.e2e_s


def test_characters_of_several_tokens_come_whole(engine: Engine) -> None:
    """The bytes of two emoji, forced by a constraint, are eight tokens."""
    constraint = Regex("né🎉🎊!")
    params = SamplingParams(temperature=0, constraint=constraint, max_new_tokens=20)
    stream = engine.submit(GenerateRequest(tuple(ids_of(engine, "x")), params))
    texts = [output.text for output in stream]
    assert "".join(texts) == "né🎉🎊!"
    assert all("\ufffd" not in text for text in texts)


def test_a_character_cut_by_the_length_is_flushed(engine: Engine) -> None:
    params = {"regex": "🎉", "temperature": 0, "max_new_tokens": 2}
    result = engine.generate("x", params)
    assert result["meta_info"]["finish_reason"]["type"] == "length"
    assert result["text"] == "\ufffd" == engine.tokenizer.decode(result["output_ids"])


def test_stream_of_a_list_has_indices(engine: Engine) -> None:
    last = {}
    params = [greedy(3, n=2), greedy(5)]
    for result in engine.generate(["ab", "cd"], params, stream=True):
        last[result["index"]] = result
    assert sorted(last) == [0, 1, 2]
    assert [len(last[i]["output_ids"]) for i in range(3)] == [3, 3, 5]
    assert all(last[i]["meta_info"]["finish_reason"] for i in range(3))


def test_async_generate_and_streams(engine: Engine) -> None:
    async def main() -> None:
        many = [engine.async_generate(f"prompt {i}", greedy()) for i in range(8)]
        results = await asyncio.gather(*many)
        for i, result in enumerate(results):
            assert result["output_ids"] == expected_greedy(ids_of(engine, f"prompt {i}"), 20)
        stream = await engine.async_generate("prompt 0", greedy(), stream=True)
        texts = [result["text"] async for result in stream]
        assert texts[-1] == results[0]["text"]
        outputs = await engine.asubmit(request(engine, "prompt 0", temperature=0))
        got = [output async for output in outputs]
        assert got[-1].finish_reason.type in ("length", "stop")

    asyncio.run(main())


def test_leaving_an_async_stream_aborts(engine: Engine) -> None:
    async def main() -> None:
        stream = await engine.asubmit(request(engine, "x", max_new_tokens=1500, ignore_eos=True))
        outputs = aiter(stream)
        await anext(outputs)
        await outputs.aclose()

    asyncio.run(main())
    wait_until_idle(engine)
    assert engine.stats()["num_aborted_requests_total"] == 1


def test_a_result_iterator_that_is_never_read_aborts(engine: Engine) -> None:
    endless = {"max_new_tokens": 1500, "ignore_eos": True}
    results = engine.generate(["a", "b"], endless, stream=True)
    del results
    wait_until_idle(engine)
    results = engine.generate("c", endless, stream=True)
    results.close()
    wait_until_idle(engine)
    assert engine.stats()["num_aborted_requests_total"] == 3
    texts = [result["text"] for result in engine.generate("d", greedy(3), stream=True)]
    assert all(texts), "nothing comes before the first token"


def test_an_async_result_iterator_that_is_never_read_aborts(engine: Engine) -> None:
    endless = {"max_new_tokens": 1500, "ignore_eos": True}

    async def main() -> None:
        results = await engine.async_generate("a", endless, stream=True)
        del results
        await asyncio.to_thread(wait_until_idle, engine)
        results = await engine.async_generate("b", endless, stream=True)
        await results.aclose()
        await asyncio.to_thread(wait_until_idle, engine)
        await engine.async_generate("c", endless, stream=True)

    asyncio.run(main())
    wait_until_idle(engine)
    assert engine.stats()["num_aborted_requests_total"] == 3


def test_a_stream_may_be_collected_while_the_loop_is_locked(engine: Engine) -> None:
    """The garbage collector ends dropped streams in any thread, in the middle of anything."""
    results = engine.generate("a", {"max_new_tokens": 1500, "ignore_eos": True}, stream=True)

    def collect() -> None:
        with engine._loop._lock:
            results.close()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    wait_until_idle(engine)


def test_requests_whose_constraint_compiles_are_counted(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, compile_it = threading.Event(), engine.compile

    def slowly(constraint: Constraint) -> object:
        assert go_on.wait(20)
        return compile_it(constraint)

    def counted() -> int:
        return engine.stats()["num_grammar_queue_reqs"]

    monkeypatch.setattr(engine, "compile", slowly)

    async def main() -> None:
        params = [greedy(5, regex="[ab]{3}"), greedy(5, json_schema={"type": "banana"})]
        asked = [asyncio.ensure_future(engine.async_generate("x", each)) for each in params]
        await asyncio.to_thread(wait_for, lambda: counted() == 2)
        go_on.set()
        result, error = await asyncio.gather(*asked, return_exceptions=True)
        assert len(result["text"]) == 3
        assert isinstance(error, ConstraintError)

    assert counted() == 0
    asyncio.run(main())
    assert counted() == 0


def test_a_constraint_is_obeyed_and_its_end_is_a_stop(engine: Engine) -> None:
    result = engine.generate("x", greedy(50, regex="[0-9]{3}-[a-f]{2}"))
    assert re.fullmatch("[0-9]{3}-[a-f]{2}", result["text"])
    assert result["meta_info"]["finish_reason"] == {"type": "stop"}


def test_forced_tokens_are_not_sampled(engine: Engine) -> None:
    pattern = r"The answer is [0-9], as always\."
    before = len(engine.toy.computed)
    result = engine.generate("x", greedy(50, regex=pattern))
    meta = result["meta_info"]
    assert meta["completion_tokens"] == len(result["text"]) == 27
    assert meta["forced_tokens"] == 26
    # The end is forced, so nothing follows the digit but a row that was launched meanwhile.
    overlap = not engine.config.disable_overlap_schedule
    assert len(engine.toy.computed) - before == 1 + overlap


def test_forced_text_equals_sampled_text(engine: Engine) -> None:
    params = greedy(60, regex=r'\{"name": "[a-z]{4}", "age": [0-9]{2}\}')
    forced = engine.generate("x", params)
    sampled = engine.generate("x", params, return_logprob=True)
    assert forced["text"] == sampled["text"]
    assert sampled["meta_info"]["forced_tokens"] == 0
    assert len(sampled["meta_info"]["output_token_logprobs"]) == len(sampled["output_ids"])


def test_the_grammar_wins_over_min_new_tokens(engine: Engine) -> None:
    result = engine.generate("x", greedy(50, regex="[ab]{3}", min_new_tokens=10))
    assert len(result["text"]) == 3
    longer = engine.generate("x", greedy(50, regex="[ab]*", min_new_tokens=10))
    assert len(longer["text"]) >= 10


def test_constrained_samples_are_independent(engine: Engine) -> None:
    params = {"regex": "[a-z]{6}", "n": 5, "temperature": 2.0, "seed": 1}
    texts = [result["text"] for result in engine.generate("x", params)]
    assert all(len(text) == 6 and text.islower() for text in texts)
    assert len(set(texts)) == 5


def test_a_dead_end_is_an_error_not_an_end(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_lite.constrained import GrammarMatcher

    nothing = property(lambda self: np.zeros((VOCAB + 31) // 32, np.int32))
    monkeypatch.setattr(GrammarMatcher, "next_token_mask", nothing)
    with pytest.raises(EngineError, match="no token that could come next"):
        engine.generate("x", greedy(5, regex="[ab]+"))


def test_a_failing_matcher_ends_its_own_request_only(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang_lite.constrained import GrammarMatcher

    def broken(self: GrammarMatcher, token: int) -> bool:
        raise RuntimeError("matcher broke")

    other = engine.submit(request(engine, "other", temperature=0, max_new_tokens=200))
    next(other)
    monkeypatch.setattr(GrammarMatcher, "accept_token", broken)
    with pytest.raises(EngineError, match="matcher broke"):
        engine.generate("x", greedy(5, regex="[ab]+"))
    monkeypatch.undo()
    tokens = [t for output in other for t in output.token_ids]
    assert len(tokens) >= 1
    assert engine.generate("x", greedy(5, regex="[ab]{5}"))["text"].strip("ab") == ""
