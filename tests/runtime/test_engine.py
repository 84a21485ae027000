"""The engine on the toy model: batches, prefixes, sampling, ends, log probabilities."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sglang_lite.runtime.engine import Engine
from sglang_lite.runtime.messages import GenerateRequest
from sglang_lite.sampling_params import SamplingParams
from tests.runtime.toy import (
    EOS,
    expected_greedy,
    greedy,
    history_hash,
    ids_of,
    request,
    toy_engine,
    toy_logits,
)

pytestmark = pytest.mark.usefixtures("both_schedules")


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
