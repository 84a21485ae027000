"""Recording, replaying, and resuming a batch from its journal; the fuzz backend."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel

import sglang_lite as sgl
from sglang_lite.lang.backends.cassette import Cassette, Tape
from sglang_lite.lang.backends.engine import EngineBackend
from tests.runtime.toy import toy_engine


@sgl.function
def program(s, i):
    s += sgl.user(f"q{i}") + sgl.assistant(sgl.gen("x", n=2))
    s += sgl.select("y", ["a", "b"])
    s += sgl.gen("z", type=int)


def answer(prompt, params):
    return "12" if params.constraint else ["t", prompt[-6:]]


def test_a_recorded_run_replays_without_a_model(tmp_path):
    path = tmp_path / "run.jsonl"
    first = program.run(1, backend=sgl.Record(sgl.Mock(answer), path))
    again = program.run(1, backend=sgl.Replay(path))
    for name in ("x", "y", "z"):
        assert again[name] == first[name]
    assert again.text() == first.text()
    assert again.usage("x") == first.usage("x")
    assert again.finish_reason("z") == "stop"
    with pytest.raises(sgl.ProgramError, match="not on the tape"):
        program.run(1, backend=sgl.Replay(path), seed=5)


def test_a_run_with_healed_seams_replays_without_tokens(tmp_path):
    @sgl.function
    def healed(s):
        s += (
            "Age: "
            + sgl.gen("x", regex="[0-9]{3}")
            + " and "
            + sgl.gen("y", max_tokens=3, heal=True)
        )
        s += " or " + sgl.gen("z", regex="[0-9]+", stop_outside=False)

    path = tmp_path / "run.jsonl"
    with toy_engine() as engine:
        first = healed.run(backend=sgl.Record(engine, path), seed=1)
        resumed = healed.run(backend=Cassette(Tape(path), EngineBackend(engine)), seed=1)
    assert healed.run(backend=sgl.Replay(path), seed=1).text() == first.text() == resumed.text()
    assert len(path.read_text().splitlines()) == 3


def test_a_changed_prompt_is_shown_where_it_departs(tmp_path):
    path = tmp_path / "run.jsonl"
    program.run(1, backend=sgl.Record(sgl.Mock(answer), path))
    with pytest.raises(sgl.ProgramError, match=r"from character 18 .* '2<\|im_end.* '1<\|im_end"):
        program.run(2, backend=sgl.Replay(path))
    with pytest.raises(FileNotFoundError):
        sgl.Replay(tmp_path / "nothing")


def test_equal_calls_replay_in_order(tmp_path):
    @sgl.function
    def twice(s):
        for _ in range(2):
            with s.scratch():
                s += sgl.gen("x")
        return s.all("x")

    path = tmp_path / "run.jsonl"
    assert twice.run(backend=sgl.Record(sgl.Mock(["1", "2"]), path)).ret_value == ["1", "2"]
    assert twice.run(backend=sgl.Replay(path)).ret_value == ["1", "2"]


def test_choices_that_a_chat_api_writes_are_recorded(tmp_path):
    class Chat(sgl.Mock):
        async def choose(self, prompt, choices):
            self.calls.append((prompt.text, None))
            return choices[-1]

    @sgl.function
    def pick(s):
        s += sgl.select("x", ["a", "b"])

    path, chat = tmp_path / "run.jsonl", Chat()
    assert pick.run(backend=sgl.Record(chat, path))["x"] == "b"
    assert pick.run(backend=sgl.Replay(path))["x"] == "b"
    assert len(chat.calls) == 1


def test_a_batch_goes_on_from_its_journal(tmp_path):
    path = tmp_path / "batch.jsonl"
    rows = [(i,) for i in range(6)]
    calls = []

    def failing(prompt, params):
        calls.append(prompt)
        if len(calls) > 7:
            raise OSError("killed")
        return answer(prompt, params)

    with pytest.raises(sgl.ProgramError, match="killed"):
        program.run_batch(rows, backend=sgl.Mock(failing), journal=path, max_concurrency=1)
    recorded = len(path.read_text().splitlines())
    with path.open("a") as file:
        file.write('{"key": "half a li')
    mock = sgl.Mock(answer)
    states = program.run_batch(rows, backend=mock, journal=path)
    assert [state["z"] for state in states] == [12] * 6
    assert len(mock.calls) == 6 * 3 - recorded
    untouched = sgl.Mock(OSError("not called"))
    again = program.run_batch(rows, backend=untouched, journal=path)
    assert [state.text() for state in again] == [state.text() for state in states]
    assert untouched.calls == []


def test_equal_rows_have_their_own_answers(tmp_path):
    path = str(tmp_path / "batch.jsonl")

    @sgl.function
    def ask(s, q):
        s += q + sgl.gen("x")

    rows = [{"q": "same"}] * 3
    mock = sgl.Mock(iter(["1", "2", "3"]))
    first = ask.run_batch(rows, backend=mock, journal=path, max_concurrency=1)
    again = ask.run_batch(rows, backend=sgl.Mock(OSError()), journal=path)
    assert [s["x"] for s in again] == [s["x"] for s in first] == ["1", "2", "3"]


class Order(BaseModel):
    item: str
    count: int
    tags: list[str]


@sgl.function
def fuzzed(s):
    s += sgl.user("q") + sgl.assistant(sgl.gen("order", type=Order))
    s += sgl.gen("code", regex=r"[A-Z]{3}-\d+") + sgl.gen("free", max_tokens=20, stop="\n")
    s += sgl.select("way", ["in", "out"])


def test_fuzzed_values_satisfy_their_constraints():
    seen = set()
    for seed in range(30):
        state = fuzzed.run(backend=sgl.Fuzz(seed))
        assert isinstance(state["order"], Order)
        json.loads(state.raw("order"))
        assert state["code"][3] == "-"
        assert "\n" not in state["free"]
        seen.add(state["way"])
    assert seen == {"in", "out"}


def test_fuzzing_repeats_with_its_seed():
    texts = [fuzzed.run(backend=sgl.Fuzz(3)).text() for _ in range(2)]
    assert texts[0] == texts[1] != fuzzed.run(backend=sgl.Fuzz(4)).text()
