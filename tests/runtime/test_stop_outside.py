"""``stop_outside``: a complete value ends where the model goes on with something else."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from sglang_lite.constrained import GrammarCompiler, Vocabulary
from sglang_lite.constraint import Constraint, Prefixed, Regex
from sglang_lite.runtime import progress
from sglang_lite.runtime.detokenizer import IncrementalDetokenizer, StopScanner
from sglang_lite.runtime.engine import Engine
from sglang_lite.runtime.messages import GenerateRequest
from sglang_lite.runtime.output_stream import OutputStream
from sglang_lite.runtime.request import Request
from sglang_lite.sampling_params import SamplingParams
from tests.runtime.toy import (
    EOS,
    greedy,
    history_hash,
    ids_of,
    request,
    toy_engine,
    toy_logits,
    wait_until_idle,
)

pytestmark = pytest.mark.usefixtures("both_schedules")

STOP = {"type": "stop"}
PROMPTS = ["x", "xy", "A: ", "7 + 5 = ", "zzz", "Ends?"]


def by_hand(engine: Engine, prompt: str, pattern: str, most: int) -> str:
    """Characters of ``pattern``, the first the best of them, until a free choice is another."""
    prompt_ids, text = ids_of(engine, prompt), ""
    fitting = [chr(33 + token) for token in range(94) if re.fullmatch(pattern, chr(33 + token))]
    while len(text) < most:
        tokens = np.array(prompt_ids + ids_of(engine, text))
        logits = toy_logits(torch.from_numpy(history_hash(tokens)[-1:])[:, None], -2.0)[0]
        if text:
            choice = int(logits.argmax())
        else:
            choice = max(ids_of(engine, "".join(fitting)), key=lambda token: float(logits[token]))
        if not 0 <= choice < 94 or chr(33 + choice) not in fitting:
            return text
        text += chr(33 + choice)
    return text


def test_greedy_is_a_free_choice_once_the_text_is_complete(engine: Engine) -> None:
    lengths = set()
    for prompt in PROMPTS:
        result = engine.generate(prompt, greedy(30, regex="[0-9A-Z]+", stop_outside=True))
        assert result["text"] == by_hand(engine, prompt, "[0-9A-Z]", 30)
        assert result["meta_info"]["finish_reason"] == STOP
        assert result["meta_info"]["completion_tokens"] == len(result["output_ids"])
        assert result["output_ids"] == ids_of(engine, result["text"])
        lengths.add(len(result["text"]))
    assert len(lengths) > 1, "some texts go on after they are complete"


def test_by_default_only_eos_ends(engine: Engine) -> None:
    for value in (None, False):
        result = engine.generate("x", greedy(30, regex="[0-9]+", stop_outside=value))
        assert len(result["text"]) == 27
        assert result["meta_info"]["finish_reason"] == {**STOP, "matched": EOS}


def test_nothing_of_what_was_rejected_stays_in_the_cache(engine: Engine) -> None:
    asked = greedy(30, regex="[0-9A-Z]+", stop_outside=True)
    text = engine.generate("7 + 5 = ", asked)["text"]
    wait_until_idle(engine)
    assert "".join(node["text"] for node in engine.snapshot()["tree"]) == "7 + 5 = " + text
    following = engine.generate("7 + 5 = " + text + "; and", greedy(1))
    assert following["meta_info"]["cached_tokens"] == len("7 + 5 = " + text)


@pytest.mark.parametrize("fields", [{"temperature": 1.0, "seed": 3}, {"temperature": 0}])
def test_company_preemption_and_log_probabilities_change_nothing(fields: dict) -> None:
    asked = {**fields, "max_new_tokens": 30, "regex": "[!-~]+", "stop_outside": True}
    with toy_engine() as engine:
        alone = [engine.generate(prompt, asked)["output_ids"] for prompt in PROMPTS]
    with toy_engine(slots=40) as engine:
        together = engine.generate(
            [*PROMPTS, *PROMPTS],
            [asked] * 6 + [{"max_new_tokens": 25, "ignore_eos": True, "seed": i} for i in range(6)],
        )
        assert [result["output_ids"] for result in together[:6]] == alone
        engine.check()
    with toy_engine() as engine:
        logged = [engine.generate(prompt, asked, return_logprob=True) for prompt in PROMPTS]
    assert [result["output_ids"] for result in logged] == alone
    for result in logged:
        entries = result["meta_info"]["output_token_logprobs"]
        assert [entry[1] for entry in entries] == result["output_ids"]


def test_samples_and_continuations(engine: Engine) -> None:
    fields = {"temperature": 1.5, "seed": 5, "regex": "[!-~]+", "stop_outside": True}
    results = engine.generate("x", {**fields, "n": 6, "max_new_tokens": 40})
    lengths = [len(result["text"]) for result in results]
    assert len(set(lengths)) > 1
    whole = max(results, key=lambda result: len(result["text"]))
    assert whole["meta_info"]["completion_tokens"] == len(whole["text"])


@pytest.mark.parametrize(
    ("fields", "least"),
    [({"min_new_tokens": 9}, 9), ({"logit_bias": {str(t): 100 for t in range(15, 25)}}, 30)],
)
def test_no_end_before_min_new_tokens_and_biases_count(
    engine: Engine, fields: dict, least: int
) -> None:
    result = engine.generate("x", greedy(30, regex="[0-9]+", stop_outside=True, **fields))
    assert len(result["text"]) >= least


def test_what_is_forced_is_not_asked_for(engine: Engine) -> None:
    """The text is complete after "ab" only, so "cd" is a choice, but "ab" and the "d" are not."""
    result = engine.generate("x", greedy(30, regex="ab(cd)?", stop_outside=True))
    assert result["text"] == "ab"
    assert result["meta_info"]["forced_tokens"] == 2
    wanted = {"logit_bias": {str(ids_of(engine, "c")[0]): 100}}
    result = engine.generate("x", greedy(30, regex="ab(cd)?", stop_outside=True, **wanted))
    assert result["text"] == "abcd"
    assert result["meta_info"]["forced_tokens"] == 3


@pytest.mark.parametrize("regex", ["(a|aa)", "(aa|a)"])
def test_a_choice_that_begins_another_one_can_be_reached_and_left(
    engine: Engine, regex: str
) -> None:
    a = ids_of(engine, "a")[0]
    assert engine.generate("x", greedy(9, regex=regex, stop_outside=True))["text"] == "a"
    more = greedy(9, regex=regex, stop_outside=True, logit_bias={str(a): 100})
    assert engine.generate("x", more)["text"] == "aa"


def test_stops_ids_and_eos_keep_their_meaning(engine: Engine) -> None:
    semicolon = ids_of(engine, ";")[0]
    wants = {"logit_bias": {str(semicolon): 100}, "regex": "[0-9]+", "stop_outside": True}
    result = engine.generate("x", greedy(9, **wants, stop_token_ids=[semicolon]))
    assert len(result["text"]) == 1
    assert result["meta_info"]["finish_reason"] == {**STOP, "matched": semicolon}
    result = engine.generate("x", greedy(9, **wants, ignore_eos=True))
    assert len(result["text"]) == 1
    digits = {str(t): 50 for t in ids_of(engine, "0123456789")}
    asked = greedy(30, regex="[0-9]+", stop_outside=True, logit_bias=digits)
    whole = engine.generate("x", asked)["text"]
    assert engine.generate("x", {**asked, "stop": whole[2:4]})["text"] == whole[:2]


# Tokens that reach over the end of a value exist in larger vocabularies only.

PIECES = [bytes([byte]) for byte in range(256)]
FULL_STOP_QUOTE, PAIR, EUROS = 257, 258, 259
WORDS = Vocabulary([*PIECES, b"", b'."', b"23", "€\n".encode()], eos_token_ids=[EOS])
COMPILER = GrammarCompiler(WORDS)


def written(constraint: Constraint, tokens: list[int], **fields: object) -> Request:
    """A request after the model has chosen ``tokens``, each where it was asked to."""
    params = SamplingParams(constraint=constraint, stop_outside=True, **fields)  # type: ignore[arg-type]
    made = Request(
        source=GenerateRequest((1,), params),
        rid="r",
        index=0,
        stream=OutputStream("r", 1, lambda: None),
        seed=0,
        arrival=0,
        length_limit=50,
        stop_ids=frozenset({EOS}),
        eos_ids=frozenset({EOS}),
        detokenizer=IncrementalDetokenizer(WORDS.token_bytes.__getitem__),
        stops=StopScanner(params.stop),
    )
    progress.start(made, COMPILER.compile(constraint))
    for token in tokens:
        assert made.finish_reason is None
        progress.accept(made, token)
    if made.finish_reason is not None:
        progress.flush_text(made)
    return made


@pytest.mark.parametrize(
    ("constraint", "tokens", "text", "kept"),
    [
        # What of the token still belongs to the value stays, the rest does not.
        (Regex('[^"]*'), [*b"Hi", FULL_STOP_QUOTE], "Hi.", 3),
        (Regex("[a-z]+"), [*b"hi", FULL_STOP_QUOTE], "hi", 2),
        (Regex(r"[0-9]+(\.[0-9]+)?"), [*b"3", FULL_STOP_QUOTE], "3", 1),
        (Regex("[0-9]{1,3}"), [*b"12", PAIR], "122", 3),
        (Regex("[0-9]+€?"), [*b"9", EUROS], "9€", 2),
        (Regex("[0-9]+"), [*b"9", *b"\xff"], "9", 1),
        # A prefix is not the value.
        (Prefixed("a", Regex("b*")), [*b"ba"], "ab", 2),
    ],
)
def test_a_token_that_reaches_over_the_end(
    constraint: Constraint, tokens: list[int], text: str, kept: int
) -> None:
    request = written(constraint, tokens)
    assert request.finish_reason is not None
    assert request.finish_reason.type == "stop"
    assert request.unsent_text == text
    assert request.output_len == kept


def test_a_stop_text_in_what_is_kept_counts() -> None:
    request = written(Regex('[^"]*'), [*b"Hi", FULL_STOP_QUOTE], stop=("i.",))
    assert request.finish_reason is not None
    assert request.finish_reason.matched == "i."
    assert request.unsent_text == "H"
    held = written(Regex("[a-z]+"), [*b"hi", FULL_STOP_QUOTE], stop=("i.",))
    assert held.unsent_text == "hi", "what was held back is sent"


def test_before_the_value_has_begun_its_constraint_masks() -> None:
    assert not written(Regex("[a-z]*"), []).may_leave
    assert written(Regex("[a-z]*"), [*b"a"]).may_leave
    assert not written(Prefixed("ab", Regex("[a-z]*")), []).may_leave
    assert written(Prefixed("ab", Regex("[a-z]*")), [*b"c"]).may_leave


def test_ids_that_no_token_has_are_outside() -> None:
    request = written(Regex("[0-9]+"), [*b"9"])
    assert request.leaves(5_000)
    assert not request.leaves(EOS)
    progress.accept(request, 5_000)
    assert request.finish_reason is not None
    assert request.unsent_text == "9"


def test_requests_of_an_engine_take_it(engine: Engine) -> None:
    source = request(engine, "x", regex="[0-9]+", stop_outside=True, temperature=0)
    outputs = list(engine.submit(source))
    assert "".join(output.text for output in outputs) == by_hand(engine, "x", "[0-9]", 30)
