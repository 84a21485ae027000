"""Recorded answers in a JSONL file: to replay a run without a model, and to resume a batch.

A call is known by its prompt, its parameters and (in a batch) its row, so the order of calls does
not matter; equal calls give their answers in the order of the recording.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import threading
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from sglang_lite.errors import BackendError
from sglang_lite.lang.backends.base import Backend, ChoiceScores
from sglang_lite.lang.chat_template import ChatTemplate, chatml
from sglang_lite.lang.nodes import LogprobOptions
from sglang_lite.lang.seams import before_healing
from sglang_lite.lang.transcript import Piece, Prompt
from sglang_lite.outputs import FinishReason, Logprobs, RequestOutput, Usage
from sglang_lite.sampling_params import SamplingParams


class Tape:
    """The file, and the answers in it that were not used yet."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._answers: dict[str, deque[Any]] = defaultdict(deque)
        self.prompts: list[str] = []
        self._torn = False
        if self.path.exists():
            lines = self.path.read_text(encoding="utf-8").split("\n")
            self._torn = lines[-1] != ""  # of a run that was killed while it wrote
            for line in lines:
                self._load(line)

    def _load(self, line: str) -> None:
        try:
            entry = json.loads(line)
        except ValueError:
            return  # empty or torn
        self._answers[entry["key"]].append(entry["answer"])
        self.prompts.append(entry["prompt"])

    def take(self, key: str) -> Any | None:
        """The next answer to this call, if there is one."""
        with self._lock:
            answers = self._answers.get(key)
            return answers.popleft() if answers else None

    def add(self, key: str, prompt: str, answer: Any) -> None:
        """Append one answer to the file; it is there when this returns."""
        line = json.dumps({"key": key, "prompt": prompt, "answer": answer}, ensure_ascii=False)
        with self._lock, self.path.open("a", encoding="utf-8") as file:
            file.write(("\n" if self._torn else "") + line + "\n")
            self._torn = False


class Cassette(Backend):
    """Answers from a tape where it has one, else from ``inner``, whose answers it records.

    Without ``inner`` a call that is not on the tape raises :class:`BackendError`, which shows
    where its prompt departs from the nearest recorded one.  ``scope`` keeps the rows of a batch
    apart.
    """

    name = "cassette"
    heals = True

    def __init__(self, tape: Tape, inner: Backend | None = None, scope: str = "") -> None:
        self._tape = tape
        self._inner = inner
        self._scope = scope
        self.chat_template = ChatTemplate(chatml, "chatml")
        if inner is not None:
            self.chat_template = inner.template()
            self.obeys_constraints, self.heals = inner.obeys_constraints, inner.heals
            self.ends_outside = inner.ends_outside

    async def encode(self, pieces: Sequence[Piece], *, start: bool) -> tuple[int, ...] | None:
        """As the recorded backend does."""
        return None if self._inner is None else await self._inner.encode(pieces, start=start)

    async def pieces(self, token_ids: Sequence[int]) -> list[bytes] | None:
        """As the recorded backend does."""
        return None if self._inner is None else await self._inner.pieces(token_ids)

    def token_text(self, token_id: int) -> str | None:
        """As the recorded backend does."""
        return None if self._inner is None else self._inner.token_text(token_id)

    def control_ids(self) -> frozenset[int]:
        """As the recorded backend does."""
        return frozenset() if self._inner is None else self._inner.control_ids()

    async def stream(
        self, prompt: Prompt, params: SamplingParams, logprobs: LogprobOptions
    ) -> AsyncIterator[RequestOutput]:
        """See :meth:`Backend.stream`; a recorded answer comes in one piece."""
        asked = {**_told(prompt, params), "logprobs": dataclasses.asdict(logprobs)}
        key = self._key("gen", prompt, asked)
        recorded = self._tape.take(key)
        if recorded is not None:
            for fields in recorded:
                output = _output(fields)
                yield dataclasses.replace(output, text=prompt.healed + output.text)
            return
        inner = self._live(prompt)
        merged: dict[int, RequestOutput] = {}
        outputs = inner.stream(prompt, params, logprobs)
        try:
            async for output in outputs:
                before = merged.get(output.index)
                merged[output.index] = output if before is None else _merge(before, output)
                yield output
        finally:
            await outputs.aclose()  # type: ignore[attr-defined]
        answer = [dataclasses.asdict(merged[index]) for index in sorted(merged)]
        for fields in answer:
            fields["text"] = fields["text"][len(prompt.healed) :]
        self._tape.add(key, prompt.text, answer)

    async def score(
        self, prompt: Prompt, choices: Sequence[str], *, suffix: str, unconditional: str | None
    ) -> ChoiceScores:
        """See :meth:`Backend.score`."""
        asked = {"choices": list(choices), "suffix": suffix, "unconditional": unconditional}
        key = self._key("select", prompt, asked)
        recorded = self._tape.take(key)
        if recorded is None:
            scores = await self._live(prompt).score(
                prompt, choices, suffix=suffix, unconditional=unconditional
            )
            recorded = {
                "input": scores.input,
                "output": scores.output,
                "unconditional": scores.unconditional,
            }
            self._tape.add(key, prompt.text, recorded)
        return ChoiceScores(**recorded)

    async def choose(self, prompt: Prompt, choices: Sequence[str]) -> str | None:
        """See :meth:`Backend.choose`; only a choice that was made is recorded."""
        key = self._key("choose", prompt, list(choices))
        chosen = self._tape.take(key)
        if chosen is None and self._inner is not None:
            chosen = await self._inner.choose(prompt, choices)
            if chosen is not None:
                self._tape.add(key, prompt.text, chosen)
        return chosen

    def _key(self, kind: str, prompt: Prompt, asked: Any) -> str:
        told = json.dumps([self._scope, kind, prompt.text, asked], default=repr, sort_keys=True)
        return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def _live(self, prompt: Prompt) -> Backend:
        if self._inner is not None:
            return self._inner
        near = difflib.get_close_matches(prompt.text, self._tape.prompts, 1, cutoff=0.0)
        at = 0
        while near and at < len(near[0]) and prompt.text[at : at + 1] == near[0][at]:
            at += 1
        told = repr(near[0][at : at + 60]) if near else "nothing"
        raise BackendError(
            f"this call is not on the tape {self._tape.path}: from character {at} on the prompt is "
            f"{prompt.text[at : at + 60]!r}, the nearest recorded one {told}"
        )


class Record(Cassette):
    """Run on ``backend`` and append every answer to the file ``path``."""

    def __init__(self, backend: Any, path: str | Path) -> None:
        from sglang_lite.lang.backends.registry import as_backend

        super().__init__(_Write(path), as_backend(backend))


class Replay(Cassette):
    """Run without a model on the answers that :class:`Record` wrote to ``path``."""

    def __init__(self, path: str | Path) -> None:
        if not Path(path).is_file():
            raise FileNotFoundError(f"no recording at {path}")
        super().__init__(Tape(path))


class _Write(Tape):
    """A tape that is only written: what it holds already is not an answer."""

    def take(self, key: str) -> Any | None:
        return None


def _told(prompt: Prompt, params: SamplingParams) -> dict[str, Any]:
    """What the program has asked for, without what a backend's abilities have made of it: the end
    token of the turn, the text of a healed seam, and how values end by default."""
    ends = None if params.stop_outside else params.stop_outside
    asked = before_healing(prompt, params).replace(stop_token_ids=(), stop_outside=ends)
    return dataclasses.asdict(asked)


def _merge(first: RequestOutput, second: RequestOutput) -> RequestOutput:
    return RequestOutput(
        second.rid,
        second.index,
        first.text + second.text,
        (*first.token_ids, *second.token_ids),
        _joined(first.logprobs, second.logprobs),
        first.prompt_logprobs or second.prompt_logprobs,
        second.finish_reason,
        second.usage,
    )


def _joined(first: Logprobs | None, second: Logprobs | None) -> Logprobs | None:
    if first is None or second is None:
        return first or second
    return Logprobs(
        [*first.tokens, *second.tokens],
        [*first.top, *second.top],
        [*first.chosen_ids, *second.chosen_ids],
    )


def _output(fields: dict[str, Any]) -> RequestOutput:
    made = dict(fields)
    made["token_ids"] = tuple(made["token_ids"])
    made["usage"] = Usage(**made["usage"])
    if made["finish_reason"] is not None:
        made["finish_reason"] = FinishReason(**made["finish_reason"])
    for name in ("logprobs", "prompt_logprobs"):
        if made[name] is not None:
            made[name] = Logprobs(**made[name])
    return RequestOutput(**made)
