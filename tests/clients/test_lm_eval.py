"""lm-eval over HTTP: its remote tokenizer, log likelihoods and generations, on tasks of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.live import Live

lm_eval = pytest.importorskip("lm_eval")
pytestmark = pytest.mark.model

DOCS = [
    {"question": "The capital of France is", "choices": ["Paris", "a cold river"], "answer": 0},
    {"question": "Two and two make", "choices": ["a banana", "four"], "answer": 1},
    {"question": "Café crème is a", "choices": ["drink", "mountain"], "answer": 0},
]
CHOICE = """
task: tiny_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list: [{{metric: acc}}]
"""
GENERATION = """
task: tiny_generation
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[answer]}}}}"
generation_kwargs: {{until: ["\\n", ".", ",", ";", "!", "?"], max_gen_toks: 8, temperature: 0}}
metric_list: [{{metric: exact_match}}]
"""


@pytest.fixture(scope="module")
def samples(real: Live, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("tasks")
    file = folder / "docs.jsonl"
    file.write_text("".join(json.dumps(doc) + "\n" for doc in DOCS))
    for name, text in (("choice", CHOICE), ("generation", GENERATION)):
        Path(folder, f"{name}.yaml").write_text(text.format(file=file))
    made = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": "smollm2",
            "base_url": f"{real.url}/v1/completions",
            "num_concurrent": 2,
            "max_retries": 1,
            "max_length": 2048,
        },
        tasks=["tiny_choice", "tiny_generation"],
        task_manager=lm_eval.tasks.TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
    )
    return made["samples"]


def test_log_likelihoods_are_the_engines(real: Live, samples: dict[str, Any]) -> None:
    assert len(samples["tiny_choice"]) == len(DOCS)
    for sample in samples["tiny_choice"]:
        for [context, continuation], [[got, _]] in zip(
            sample["arguments"], sample["resps"], strict=True
        ):
            tokenizer = real.engine.tokenizer
            ids, begin = tokenizer.encode(context + continuation), len(tokenizer.encode(context))
            made = real.engine.generate(
                input_ids=ids,
                sampling_params={"max_new_tokens": 0},
                return_logprob=True,
                logprob_start_len=0,
            )
            values = [entry[0] for entry in made["meta_info"]["input_token_logprobs"]]
            assert got == pytest.approx(sum(values[begin:]), abs=0.3)


def test_the_easy_questions_are_answered(samples: dict[str, Any]) -> None:
    assert sum(sample["acc"] for sample in samples["tiny_choice"]) >= 2


def test_generations_are_the_engines(real: Live, samples: dict[str, Any]) -> None:
    for sample in samples["tiny_generation"]:
        params = {"max_new_tokens": 8, "temperature": 0, "stop": ["\n", ".", ",", ";", "!", "?"]}
        made = real.engine.generate(sample["doc"]["question"], params)
        assert sample["resps"] == [[made["text"]]]
