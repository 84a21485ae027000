"""The engine's behaviour on the toy model: text, stops, streams, logprobs, errors, life cycle."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from sglang_lite.constraint import Regex
from sglang_lite.errors import EngineError, InvalidRequest, PromptTooLong, QueueFull
from sglang_lite.outputs import RequestOutput
from sglang_lite.runtime.engine import Engine
from sglang_lite.runtime.messages import GenerateRequest
from sglang_lite.sampling_params import SamplingParams
from tests.runtime.toy import (
    EOS,
    VOCAB,
    ToyModel,
    expected_greedy,
    history_hash,
    toy_engine,
    toy_logits,
    toy_tokenizer,
)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with toy_engine() as engine:
        yield engine
        engine.check()


def ids_of(engine: Engine, text: str) -> list[int]:
    return engine.tokenizer.encode(text)


def greedy(count: int = 20, **fields: object) -> dict:
    return {"temperature": 0, "max_new_tokens": count, **fields}


def request(engine: Engine, text: str, rid: str = "", **fields: object) -> GenerateRequest:
    params = SamplingParams.from_dict(fields)
    return GenerateRequest(tuple(ids_of(engine, text)), params, rid)


# Text and batches


def test_greedy_equals_the_model_alone(engine: Engine) -> None:
    result = engine.generate("Hello", greedy(30))
    expected = expected_greedy(ids_of(engine, "Hello"), 30)
    assert result["output_ids"] == expected
    assert result["text"] == engine.tokenizer.decode(expected)
    assert result["meta_info"]["finish_reason"] == {"type": "length", "length": 30}
    assert result["meta_info"]["prompt_tokens"] == 5


def test_a_batch_gives_what_each_prompt_gives_alone(engine: Engine) -> None:
    texts = [f"prompt number {i}" * (i + 1) for i in range(12)]
    results = engine.generate(texts, greedy())
    assert [r["output_ids"] for r in results] == [
        expected_greedy(ids_of(engine, text), 20) for text in texts
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("length", [1, 6, 7, 8, 14, 15, 63, 64, 65])
def test_chunks_of_any_size_give_the_same(size: int, length: int) -> None:
    with toy_engine(chunked_prefill_size=size) as engine:
        prompt = [(i * 7) % 90 for i in range(length)]
        result = engine.generate(input_ids=prompt, sampling_params=greedy(8))
        assert result["output_ids"] == expected_greedy(prompt, 8)
        assert max(end - start for start, end in engine.toy.computed) <= size
        engine.check()


def test_second_time_all_but_one_prompt_token_are_cached(engine: Engine) -> None:
    first = engine.generate("a prompt to remember", greedy())
    second = engine.generate("a prompt to remember", greedy())
    assert first["meta_info"]["cached_tokens"] == 0
    assert second["meta_info"]["cached_tokens"] == second["meta_info"]["prompt_tokens"] - 1
    assert second["output_ids"] == first["output_ids"]


def test_the_next_turn_computes_only_what_is_new(engine: Engine) -> None:
    prompt = ids_of(engine, "first turn, ")
    answer = engine.generate(input_ids=prompt, sampling_params=greedy(10))["output_ids"]
    longer = prompt + answer + ids_of(engine, " second")
    result = engine.generate(input_ids=longer, sampling_params=greedy())
    # The last generated token was never computed, so it is new too.
    assert result["meta_info"]["cached_tokens"] == len(prompt) + 9
    assert result["output_ids"] == expected_greedy(longer, 20)


def test_without_radix_cache_nothing_is_cached() -> None:
    with toy_engine(disable_radix_cache=True) as engine:
        for _ in range(2):
            result = engine.generate("the same prompt", greedy())
            assert result["meta_info"]["cached_tokens"] == 0
            assert result["output_ids"] == expected_greedy(ids_of(engine, "the same prompt"), 20)
        assert engine.stats()["kv_available_tokens"] == engine.stats()["max_total_num_tokens"]
        engine.check()


def test_salts_do_not_share_prefixes(engine: Engine) -> None:
    ids = tuple(ids_of(engine, "a shared secret prompt"))
    for salt in ("alice", "bob"):
        made = GenerateRequest(ids, SamplingParams(max_new_tokens=1), cache_salt=salt)
        assert list(engine.submit(made))[-1].usage.cached_tokens == 0
    again = GenerateRequest(ids, SamplingParams(max_new_tokens=1), cache_salt="bob")
    assert list(engine.submit(again))[-1].usage.cached_tokens == len(ids) - 1


def test_requests_with_a_common_prefix_wait_for_the_one_that_computes_it() -> None:
    with toy_engine(chunked_prefill_size=50) as engine:
        prefix = [(i * i) % 90 for i in range(200)]
        prompts = [[*prefix, i, i + 1] for i in range(8)]
        results = engine.generate(input_ids=prompts, sampling_params=greedy(4))
        assert [r["output_ids"] for r in results] == [expected_greedy(p, 4) for p in prompts]
        cached = sorted(r["meta_info"]["cached_tokens"] for r in results)
        assert cached == [0] + [200] * 7
        engine.check()


def test_a_prompt_that_continues_a_running_request_shares_its_outputs(engine: Engine) -> None:
    """Fork of a running request: one recomputed token."""
    parent = engine.submit(request(engine, "parent", temperature=0, max_new_tokens=400))
    tokens = ids_of(engine, "parent")
    for output in parent:
        tokens += output.token_ids
        if len(tokens) >= 60:
            break
    child = engine.generate(input_ids=tokens, sampling_params=greedy(5))
    assert child["meta_info"]["cached_tokens"] == len(tokens) - 1
    assert child["output_ids"] == expected_greedy(tokens, 5)
    parent.abort()
    list(parent)


# Sampling


def test_seed_gives_the_same_text_in_any_company(engine: Engine) -> None:
    params = {"temperature": 1.5, "max_new_tokens": 20, "seed": 7}
    alone = engine.generate("Hello", params)["text"]
    noise = [{"temperature": 1.0, "max_new_tokens": n} for n in (3, 30, 11)]
    together = engine.generate(["x", "Hello", "y", "Hello!"], [noise[0], params, *noise[1:]])
    assert together[1]["text"] == alone
    assert engine.generate("Hello", {**params, "seed": 8})["text"] != alone


def test_unseeded_requests_differ_but_the_engine_seed_repeats_them() -> None:
    texts = []
    for _ in range(2):
        with toy_engine(random_seed=5) as engine:
            params = {"temperature": 2.0, "max_new_tokens": 12}
            texts.append([engine.generate("Hello", params)["text"] for _ in range(3)])
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3


def test_n_samples_differ_and_share_the_prompt(engine: Engine) -> None:
    prompt = "a prompt that is somewhat longer than the deferral threshold of tokens"
    results = engine.generate(prompt, {"n": 4, "temperature": 2.0, "max_new_tokens": 12, "seed": 1})
    assert len({r["text"] for r in results}) == 4
    assert [r["meta_info"]["cached_tokens"] for r in results] == [0] + [len(prompt) - 1] * 3
    assert len({r["meta_info"]["id"] for r in results}) == 4


def test_penalties_and_bias_reach_the_logits(engine: Engine) -> None:
    favourite = expected_greedy(ids_of(engine, "Hello"), 1)[0]
    banned = engine.generate("Hello", greedy(1, logit_bias={favourite: -100}))
    assert banned["output_ids"] != [favourite]
    forced = engine.generate("Hello", greedy(5, logit_bias={70: 100}))
    assert forced["output_ids"] == [70] * 5


def test_penalties_follow_their_formulas(engine: Engine) -> None:
    """Against a loop that recomputes them from all tokens: prompt and outputs for repetition,
    outputs for the others."""
    prompt = ids_of(engine, "Hello")
    tokens = list(prompt)
    for _ in range(40):
        hashed = torch.from_numpy(history_hash(np.array(tokens))[-1:])[:, None]
        logits = toy_logits(hashed, -2.0)[0]
        for token in set(tokens):
            logits[token] = logits[token] / 1.2 if logits[token] > 0 else logits[token] * 1.2
        for token in set(tokens[len(prompt) :]):
            logits[token] -= 0.5 * tokens[len(prompt) :].count(token) + 1.5
        logits[70] += 3
        tokens.append(int(logits.argmax()))
    fields = {"repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": 1.5}
    result = engine.generate("Hello", greedy(40, ignore_eos=True, logit_bias={70: 3}, **fields))
    assert result["output_ids"] == tokens[len(prompt) :]


# Ends


def test_stop_text_across_tokens_is_cut_off_and_named(engine: Engine) -> None:
    whole = engine.generate("Hello", greedy(20))["text"]
    stop = whole[5:8]
    at = whole.index(stop)
    result = engine.generate("Hello", greedy(20, stop=[stop, "zzz"]))
    assert result["text"] == whole[:at]
    assert result["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    kept = engine.generate("Hello", greedy(20, stop=stop, no_stop_trim=True))
    assert kept["text"] == whole[: at + 3]


def test_streaming_never_shows_a_part_of_a_stop(engine: Engine) -> None:
    whole = engine.generate("Hello", greedy(20))["text"]
    stop = whole[8:12]
    texts = [r["text"] for r in engine.generate("Hello", greedy(20, stop=stop), stream=True)]
    assert texts[-1] == whole[: whole.index(stop)]
    assert all(texts[-1].startswith(text) for text in texts)


def test_a_held_back_start_of_a_stop_is_sent_at_the_end(engine: Engine) -> None:
    whole = engine.generate("Hello", greedy(10))["text"]
    stop = whole[-2:] + "never"
    result = engine.generate("Hello", greedy(10, stop=stop))
    assert result["text"] == whole
    assert result["meta_info"]["finish_reason"]["type"] == "length"


def test_stop_ids_end_without_their_text(engine: Engine) -> None:
    expected = expected_greedy(ids_of(engine, "Hello"), 10)
    stop = expected[6]
    cut = expected.index(stop)
    result = engine.generate("Hello", greedy(10, stop_token_ids=[stop]))
    assert result["output_ids"] == expected[: cut + 1]
    assert result["text"] == engine.tokenizer.decode(expected[:cut])
    assert result["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


def test_stop_regex_ends_after_its_match(engine: Engine) -> None:
    whole = engine.generate("Hello", greedy(40))["text"]
    digit = next(i for i, character in enumerate(whole) if character.isdigit())
    result = engine.generate("Hello", greedy(40, stop_regex="[0-9]"))
    assert result["text"] == whole[: digit + 1]
    assert result["meta_info"]["finish_reason"] == {"type": "stop", "matched": "[0-9]"}


def test_eos_ends_and_can_be_ignored() -> None:
    with toy_engine(eos_bias=6.0) as engine:
        prompt = ids_of(engine, "Hello")
        expected = expected_greedy(prompt, 50, eos_bias=6.0)
        assert expected[-1] == EOS
        result = engine.generate("Hello", greedy(50))
        assert result["output_ids"] == expected
        assert result["meta_info"]["finish_reason"] == {"type": "stop", "matched": EOS}
        assert "<|end|>" not in result["text"]
        longer = engine.generate("Hello", greedy(50, ignore_eos=True))
        assert len(longer["output_ids"]) == 50
        at_least = engine.generate("Hello", greedy(50, min_new_tokens=len(expected) + 3))
        assert len(at_least["output_ids"]) > len(expected) + 3
        assert EOS not in at_least["output_ids"][: len(expected) + 3]
        shown = engine.generate("Hello", greedy(50, ignore_eos=True, skip_special_tokens=False))
        assert "<|end|>" in shown["text"]


def test_zero_new_tokens_computes_the_prompt_only(engine: Engine) -> None:
    result = engine.generate("Hello there", greedy(0))
    assert (result["text"], result["output_ids"]) == ("", [])
    assert result["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert engine.stats()["kv_evictable_tokens"] == 11


def test_the_context_bounds_the_output() -> None:
    with toy_engine(context_length=16) as engine:
        result = engine.generate(input_ids=[5] * 10, sampling_params=greedy(100))
        assert len(result["output_ids"]) == 6
        assert result["meta_info"]["finish_reason"]["type"] == "length"
        assert (
            len(engine.generate(input_ids=[5] * 15, sampling_params=greedy(9))["output_ids"]) == 1
        )
        assert engine.generate(input_ids=[5] * 16, sampling_params=greedy(0))["output_ids"] == []
        everything = engine.generate(input_ids=[5], sampling_params={"max_new_tokens": None})
        assert everything["meta_info"]["completion_tokens"] <= 15


# Log probabilities


def test_logprobs_are_complete_and_raw(engine: Engine) -> None:
    params = {"temperature": 1.7, "max_new_tokens": 4, "seed": 3, "logit_bias": {70: 5}}
    engine.generate("some prompt", params)
    options = {"logprob_start_len": 0, "top_logprobs_num": 2, "token_ids_logprob": [9]}
    result = engine.generate("some prompt", params, return_logprob=True, **options)
    meta = result["meta_info"]
    tokens = ids_of(engine, "some prompt") + result["output_ids"]
    entries = meta["input_token_logprobs"] + meta["output_token_logprobs"]
    assert [entry[1] for entry in entries] == tokens
    assert entries[0] == [None, tokens[0], None]
    assert meta["input_top_logprobs"][0] is None
    hashed = torch.from_numpy(history_hash(np.array(tokens)))[:, None]
    expected = torch.log_softmax(toy_logits(hashed, -2.0), -1)
    for position, entry in enumerate(entries[1:]):
        assert entry[0] == pytest.approx(expected[position, entry[1]].item(), abs=1e-4)
    tops = meta["input_top_logprobs"] + meta["output_top_logprobs"]
    for position, top in enumerate(tops[1:]):
        assert [t[0] for t in top] == pytest.approx(expected[position].topk(2).values.tolist())
    chosen = meta["input_token_ids_logprobs"] + meta["output_token_ids_logprobs"]
    assert chosen[1][0] == [pytest.approx(expected[0, 9].item()), 9, None]


@pytest.mark.parametrize("start", [-1, 0, 1, 5, 10, 11])
def test_logprob_start_len_says_where_they_begin(engine: Engine, start: int) -> None:
    prompt = ids_of(engine, "some prompt")
    engine.generate("some prompt", greedy(1))
    result = engine.generate("some prompt", greedy(2), return_logprob=True, logprob_start_len=start)
    meta = result["meta_info"]
    begin = len(prompt) if start < 0 else start
    assert [entry[1] for entry in meta["input_token_logprobs"]] == prompt[begin:]
    assert len(meta["output_token_logprobs"]) == 2
    # What is returned was computed in this request; what isn't needed came from the cache.
    assert meta["cached_tokens"] == min(max(begin - 1, 0), len(prompt) - 1)


def test_logprobs_survive_chunks_and_name_their_tokens() -> None:
    with toy_engine(chunked_prefill_size=3) as engine:
        result = engine.generate(
            "some prompt",
            greedy(2),
            return_logprob=True,
            logprob_start_len=0,
            return_text_in_logprobs=True,
        )
        entries = result["meta_info"]["input_token_logprobs"]
        assert "".join(entry[2] for entry in entries) == "some prompt"
        assert all(entry[0] < 0 for entry in entries[1:])


# Streams


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


# Constraints


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
    assert len(engine.toy.computed) - before == 1, "the end is forced, so nothing follows the digit"


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


# Refusals


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"input_ids": [VOCAB]}, "input_ids"),
        ({"input_ids": [-1]}, "input_ids"),
        ({"input_ids": []}, "input_ids"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "a", "input_ids": [1]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": "a", "sampling_params": {"stop_token_ids": [9999]}}, "stop_token_ids"),
        ({"prompt": "a", "sampling_params": {"logit_bias": {9999: 1}}}, "logit_bias"),
        ({"prompt": "a", "sampling_params": {"stop_regex": "("}}, "stop_regex"),
        ({"prompt": "a", "sampling_params": {"stop_regex": "a*"}}, "stop_regex"),
        ({"prompt": "a", "sampling_params": {"temprature": 1}}, "temprature"),
        ({"prompt": "a", "sampling_params": [{}, {}]}, "sampling_params"),
        ({"prompt": ["a", "b"], "rid": "same"}, "rid"),
        ({"prompt": "a", "logprob_start_len": 0}, "return_logprob"),
        ({"prompt": "a", "return_logprob": True, "logprob_start_len": 2}, "logprob_start_len"),
        ({"prompt": "a", "return_logprob": True, "top_logprobs_num": 99}, "top_logprobs_num"),
        ({"prompt": "a", "return_logprob": True, "token_ids_logprob": [-1]}, "token_ids_logprob"),
    ],
)
def test_bad_requests_are_refused_by_name(engine: Engine, fields: dict, name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        engine.generate(**fields)
    assert caught.value.field == name
    assert engine.generate("still alive", greedy(2))["output_ids"]


def test_a_prompt_that_can_never_fit_is_refused_with_the_numbers() -> None:
    with toy_engine(slots=64, context_length=100) as engine:
        with pytest.raises(PromptTooLong, match=r"64 tokens.*\(64 in the messages"):
            engine.generate(input_ids=[1] * 64, sampling_params=greedy(5))
        assert engine.generate(input_ids=[1] * 63, sampling_params=greedy(1))["output_ids"]


def test_a_lone_request_out_of_slots_ends_with_its_text() -> None:
    with toy_engine(slots=32, context_length=100) as engine:
        prompt = [1, 2, 3]
        result = engine.generate(input_ids=prompt, sampling_params=greedy(90))
        assert result["meta_info"]["finish_reason"]["type"] == "length"
        assert len(result["output_ids"]) == 30, "32 computed tokens and one more"
        assert result["output_ids"] == expected_greedy(prompt, 30)
        engine.check()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("schedule_policy", "best"),
        ("context_length", 0),
        ("context_length", 10**6),
        ("max_total_tokens", 10**6),
        ("max_running_requests", 0),
        ("chunked_prefill_size", -1),
        ("max_queued_requests", "many"),
    ],
)
def test_bad_options_are_refused_by_name(option: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=option):
        Engine.from_model(ToyModel(), toy_tokenizer(), **{option: value})


def test_a_full_queue_refuses() -> None:
    with toy_engine(max_queued_requests=3, max_running_requests=1) as engine:
        gate = threading.Event()
        engine.toy.before_step = gate.wait
        try:
            streams = [engine.submit(request(engine, "x", max_new_tokens=2))]
            wait_for(lambda: engine.stats()["num_running_reqs"] == 1)
            streams += [engine.submit(request(engine, "x", max_new_tokens=2)) for _ in range(3)]
            with pytest.raises(QueueFull, match="3 samples are waiting, and 3 is the limit"):
                engine.submit(request(engine, "x"))
        finally:
            gate.set()
        assert all(list(stream)[-1].finish_reason for stream in streams)
        assert engine.generate("x", greedy(2))["output_ids"]
        assert engine.stats()["num_rejected_requests_total"] == 1


def test_a_name_in_use_is_refused_and_free_again_after(engine: Engine) -> None:
    stream = engine.submit(request(engine, "x", rid="mine", max_new_tokens=1500, ignore_eos=True))
    with pytest.raises(InvalidRequest, match="rid"):
        engine.submit(request(engine, "x", rid="mine"))
    engine.abort("mine")
    assert list(stream)[-1].finish_reason.type == "abort"
    assert list(engine.submit(request(engine, "x", rid="mine", max_new_tokens=1)))


# Life cycle


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.001)


def wait_until_idle(engine: Engine) -> None:
    wait_for(lambda: not engine.stats()["num_running_reqs"] + engine.stats()["num_queue_reqs"])


def test_abort_all_and_unknown_names(engine: Engine) -> None:
    streams = [
        engine.submit(request(engine, f"{i}", max_new_tokens=1500, ignore_eos=True, n=2))
        for i in range(5)
    ]
    engine.abort("unknown")
    engine.abort(abort_all=True)
    for stream in streams:
        reasons = [o.finish_reason.type for o in stream if o.finish_reason]
        assert reasons == ["abort", "abort"]
    with pytest.raises(InvalidRequest):
        engine.abort()
    wait_until_idle(engine)


def test_a_failing_step_ends_its_requests_and_the_engine_goes_on(engine: Engine) -> None:
    def fail() -> None:
        raise MemoryError("no memory left")

    engine.toy.before_step = fail
    with pytest.raises(EngineError, match="no memory left") as caught:
        engine.generate("x", greedy())
    assert isinstance(caught.value.__cause__, MemoryError)
    engine.toy.before_step = lambda: None
    assert engine.generate("x", greedy())["output_ids"] == expected_greedy(
        [ids_of(engine, "x")[0]], 20
    )
    engine.check()


def test_what_was_produced_before_a_failure_is_delivered(engine: Engine) -> None:
    steps = iter(range(100))

    def fail_later() -> None:
        if next(steps) == 3:
            raise RuntimeError("late")

    engine.toy.before_step = fail_later
    stream = engine.submit(request(engine, "x", temperature=0))
    tokens: list[int] = []

    def read() -> None:
        for output in stream:
            tokens.extend(output.token_ids)

    with pytest.raises(EngineError, match="late"):
        read()
    assert tokens == expected_greedy([ids_of(engine, "x")[0]], 3)
    with pytest.raises(EngineError):
        next(stream)


def test_bad_logits_end_one_request(engine: Engine) -> None:
    original = engine.toy.logits

    def poisoned(hidden: torch.Tensor) -> torch.Tensor:
        logits = original(hidden)
        logits[0] = float("nan")
        return logits

    engine.toy.logits = poisoned
    with pytest.raises(EngineError, match="not finite"):
        engine.generate("x", greedy())
    engine.toy.logits = original
    assert engine.generate("x", greedy())["output_ids"]


def test_a_fatal_failure_reaches_every_present_and_future_waiter() -> None:
    engine = toy_engine()
    stream = engine.submit(request(engine, "x", max_new_tokens=1500, ignore_eos=True))
    next(stream)

    def fatal() -> None:
        raise SystemError("fatal")

    engine._loop.core.step = fatal  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="fatal"):
        list(stream)
    for call in (lambda: engine.generate("x"), engine.check, engine.flush_cache):
        with pytest.raises(EngineError, match="fatal"):
            call()
    engine.shutdown()


def test_shutdown_ends_streams_and_refuses_more() -> None:
    engine = toy_engine()
    stream = engine.submit(request(engine, "x", max_new_tokens=1500, ignore_eos=True))
    next(stream)
    engine.shutdown()
    engine.shutdown()
    with pytest.raises(EngineError, match="shut down"):
        list(stream)
    with pytest.raises(EngineError, match="shut down"):
        engine.generate("x")


def test_an_engine_that_is_dropped_stops_its_thread() -> None:
    engine = toy_engine()
    thread = engine._loop._thread
    engine.generate("x", greedy(2))
    del engine
    thread.join(10)
    assert not thread.is_alive()


def test_idle_engine_does_nothing(engine: Engine) -> None:
    engine.generate("x", greedy(2))
    wait_until_idle(engine)
    started, steps = time.process_time(), engine.stats()["steps_total"]
    time.sleep(0.3)
    assert time.process_time() - started < 0.2
    assert engine.stats()["steps_total"] == steps


def test_flush_cache_forgets_everything_unused(engine: Engine) -> None:
    engine.generate("a prompt", greedy())
    assert engine.flush_cache() is True
    assert engine.generate("a prompt", greedy(1))["meta_info"]["cached_tokens"] == 0


def test_priorities_run_first() -> None:
    with toy_engine(max_running_requests=1) as engine:
        gate = threading.Event()
        engine.toy.before_step = gate.wait
        done: list[int] = []
        threads = []
        for priority in (0, 0, 5, 1):
            made = GenerateRequest(
                (priority + 1,), SamplingParams(max_new_tokens=3), priority=priority
            )
            stream = engine.submit(made)

            def read(stream: object = stream, priority: int = priority) -> None:
                list(stream)
                done.append(priority)

            threads.append(threading.Thread(target=read))
            threads[-1].start()
        gate.set()
        for thread in threads:
            thread.join(10)
        # The very first was already running when the others came.
        assert done[1:3] == [5, 1] or done[:2] == [5, 1]


def test_snapshot_is_json(engine: Engine) -> None:
    engine.generate("a prompt", greedy(3))
    shot = engine.snapshot()
    assert json.loads(json.dumps(shot))["slots"]["total"] == 4096
    assert shot["tree"][0]["text"] == "a prompt"


def test_outputs_are_request_outputs(engine: Engine) -> None:
    outputs = list(engine.submit(request(engine, "x", rid="name", max_new_tokens=2)))
    assert all(isinstance(output, RequestOutput) and output.rid == "name" for output in outputs)
