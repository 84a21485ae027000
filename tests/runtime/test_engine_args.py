"""The engine's options: one list behind the constructor, its checks and the command line."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields

import pytest
from typer.testing import CliRunner

from sglang_lite import cli
from sglang_lite.errors import InvalidRequest
from sglang_lite.runtime import late_compiler
from sglang_lite.runtime.engine import Engine
from sglang_lite.runtime.engine_args import EngineArgs, engine_options
from sglang_lite.runtime.late_compiler import LateCompiler
from tests.runtime.toy import ToyModel, toy_engine, toy_tokenizer


def test_the_constructor_shows_every_option() -> None:
    shown = inspect.signature(Engine).parameters
    assert list(shown) == [field.name for field in fields(EngineArgs)] == list(engine_options())
    assert shown["max_running_requests"].annotation == int | None
    assert shown["schedule_policy"].default == "fcfs"
    assert "stream" in inspect.signature(Engine.generate).parameters


def test_the_command_line_has_every_option_with_its_default() -> None:
    result = CliRunner().invoke(cli.app, ["serve", "--print-config"])
    made = json.loads(result.output)
    different = {"served_model_name", "log_level"}
    for name, (_, _, default) in engine_options().items():
        if name not in different:
            assert made[name] == default, name


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("schedule_policy", "best"),
        ("max_running_requests", True),
        ("max_running_requests", 0),
        ("max_queued_requests", None),
        ("mem_fraction_static", 1.0),
        ("mem_fraction_static", float("nan")),
        ("hicache_ratio", 0),
        ("disable_radix_cache", 1),
        ("dtype", 32),
        ("log_level", "loud"),
        ("random_seed", "7"),
    ],
)
def test_values_out_of_range_are_refused_by_name(option: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=option):
        Engine(**{option: value})


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="max_runing_requests"):
        Engine(max_runing_requests=3)  # type: ignore[call-arg]


def test_a_loaded_model_is_not_loaded_otherwise() -> None:
    with pytest.raises(InvalidRequest, match="dtype"):
        Engine.from_model(ToyModel(), toy_tokenizer(), dtype="float32")


def test_every_constraint_has_one_compiler() -> None:
    with toy_engine() as engine:
        assert engine.compiler is engine.compiler
        assert engine.compiler.vocabulary is engine.tokenizer.vocabulary


def test_the_compiler_is_made_unasked_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_compiler, "SECONDS", 0.01)
    tokenizer = toy_tokenizer()
    late = LateCompiler(tokenizer)
    late.start()
    made_by(late)
    assert "vocabulary" in vars(tokenizer)
    assert late.get().vocabulary is tokenizer.vocabulary


def test_without_a_wish_a_stopped_engine_makes_no_compiler() -> None:
    with toy_engine() as engine:
        late, tokenizer = engine._late, engine.tokenizer
        engine.generate("ab", {"max_new_tokens": 2})
    made_by(late)
    assert "vocabulary" not in vars(tokenizer)


def made_by(late: LateCompiler) -> None:
    """Wait until it has made its compiler unasked, or never will."""
    late._timer.join(timeout=4)
    assert not late._timer.is_alive()
