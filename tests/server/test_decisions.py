"""``/v1/decisions``."""

from __future__ import annotations

import math

import openai
import pytest

from tests.server.live import Live, error_of

PREDICATE = {"type": "predicate", "name": "late", "instructions": "It arrived late."}
CHOICE = {
    "type": "choice",
    "name": "topic",
    "instructions": "What is it about?",
    "choices": [{"value": "billing"}, {"value": "technical", "description": "errors"}],
}
SCORE = {
    "type": "score",
    "name": "anger",
    "instructions": "How angry?",
    "levels": [{"label": "calm"}, {"label": "cross"}, {"label": "furious"}],
}


def decide(live: Live, *questions: dict, **fields: object) -> dict:
    response = live.post("/v1/decisions", input="My parcel is late.", questions=questions, **fields)
    assert response.status_code == 200, response.text
    return response.json()


def prefer(live: Live, monkeypatch: pytest.MonkeyPatch, *favourites: str) -> None:
    """Give these one-byte labels the log probability of 1/2, all others that of 1/8."""
    plain = live.engine._logprobs

    def logprobs(request: object, ids: tuple[int, ...]) -> object:
        made = plain(request, ids)
        chosen = tuple(
            tuple((math.log(1 / 2 if chr(t) in favourites else 1 / 8), t) for _, t in entries)
            for entries in made.chosen_ids
        )
        return type(made)(made.tokens, made.top, chosen)

    monkeypatch.setattr(live.engine, "_logprobs", logprobs)


def test_choice_and_score(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer(live, monkeypatch, "B", "2")
    topic, anger = decide(live, CHOICE, SCORE)["answers"]
    assert topic["choice"] == "technical"
    assert topic["confidence"] == pytest.approx(4 / 5)
    assert [p["probability"] for p in topic["probabilities"]] == pytest.approx([1 / 5, 4 / 5])
    assert anger["score"] == pytest.approx((0 + 1 + 2 * 4) / 6)
    assert anger["probabilities"][2]["label"] == "furious"
    assert sum(p["probability"] for p in anger["probabilities"]) == pytest.approx(1)


def test_the_questions_share_their_beginning(live: Live) -> None:
    body = decide(live, CHOICE, SCORE)
    first, second = (bytes(request.input_ids).decode() for request in live.engine.requests)
    assert first.startswith("<user>My parcel is late.\n\nWhat is it about?\nA: billing\n")
    assert "B: technical (errors)" in first
    assert second.startswith("<user>My parcel is late.\n\nHow angry?\n0: calm\n")
    assert body["usage"]["output_tokens"] == 0
    assert body["usage"]["input_tokens"] == len(first) + len(second)


def test_openai_client(live: Live) -> None:
    client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none")
    made = client.decisions.create(model="toy", input="x", questions=[CHOICE, SCORE])
    assert [answer.type for answer in made.answers] == ["choice", "score"]
    assert made.answers[0].name == "topic"


def test_many_questions(live: Live) -> None:
    assert len(decide(live, *[SCORE] * 100)["answers"]) == 100


def test_labels_that_are_no_tokens_are_refused(live: Live) -> None:
    # This tokenizer's tokens are bytes, so neither "Yes" nor a 27th letter is one token.
    error = error_of(live.post("/v1/decisions", input="x", questions=[PREDICATE]))
    assert error["param"] == "questions.0"
    many = {**CHOICE, "choices": [{"value": str(i)} for i in range(27)]}
    error = error_of(live.post("/v1/decisions", input="x", questions=[SCORE, many]))
    assert error["param"] == "questions.1"


@pytest.mark.parametrize(
    "fields",
    [
        {"questions": []},
        {"questions": [SCORE] * 401},
        {"questions": [{**CHOICE, "choices": [{"value": "a"}]}]},
        {"questions": [{**CHOICE, "choices": [{"value": "a"}, {"value": "a"}]}]},
        {"questions": [{**SCORE, "levels": [{"label": "x"}] * 11}]},
        {"questions": [{"type": "guess", "instructions": "x"}]},
        {"questions": [{**SCORE, "colour": "red"}]},
        {"questions": [SCORE], "input": None},
    ],
)
def test_what_is_refused(live: Live, fields: dict) -> None:
    error_of(live.post("/v1/decisions", **{"input": "x", **fields}))


def test_true_and_the_text_true_are_two_values(live: Live) -> None:
    choices = [{"value": True}, {"value": "true"}]
    [answer] = decide(live, {**CHOICE, "choices": choices})["answers"]
    assert [p["value"] for p in answer["probabilities"]] == [True, "true"]
