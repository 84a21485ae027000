"""An engine whose answers are written down, so that tests can assert exact chunks.

It has the engine's seam and its real output streams; only model and scheduler are missing.  Token
ids are bytes, 256 ends a sequence.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from jinja2 import TemplateError

from sglang_lite.constrained import GrammarCompiler, Vocabulary
from sglang_lite.constraint import Constraint
from sglang_lite.errors import (
    EngineError,
    InvalidRequest,
    PromptTooLong,
    QueueFull,
)
from sglang_lite.runtime.messages import (
    FinishReason,
    GenerateRequest,
    Logprobs,
    RequestOutput,
    Usage,
)
from sglang_lite.runtime.output_stream import OutputStream
from tests.waiting import comes_true

EOS = 256
VOCAB = 258
CONTEXT = 4096
TOKEN_BYTES = [*(bytes([byte]) for byte in range(256)), b"", b""]
COMPILER = GrammarCompiler(Vocabulary(TOKEN_BYTES, eos_token_ids=[EOS], special_ids=[257]))


class ByteTokenizer:
    """One token per byte; a chat template of one line per message."""

    chat_template: str | None = "<role>text"
    eos_token_ids = (EOS,)
    bos_token_id = None
    special_ids = (256, 257)
    named_tokens = {"eos_token": "<|end|>"}
    control_tokens = {"<|end|>": 256, "<|start|>": 257}
    control_ids = frozenset({256, 257})

    def __init__(self) -> None:
        self.vocabulary = SimpleNamespace(token_bytes=TOKEN_BYTES, size=VOCAB)

    def encode(
        self, text: str, *, add_special_tokens: bool = False, parse_special: bool = False
    ) -> list[int]:
        if not parse_special:
            return list(text.encode())
        parts = re.split(r"(<[|](?:end|start)[|]>)", text)
        ids = [[self.control_tokens[p]] if p in self.control_tokens else p.encode() for p in parts]
        return [token for part in ids for token in part]

    def decode(self, ids: Any, *, skip_special_tokens: bool = True) -> str:
        names = {} if skip_special_tokens else {256: b"<|end|>", 257: b"<|start|>"}
        data = b"".join(names.get(i, b"") if i > 255 else bytes([i]) for i in ids)
        return data.decode("utf-8", "replace")

    def piece_bytes(self, token: int, *, skip_special_tokens: bool = True) -> bytes:
        return TOKEN_BYTES[token]

    def token_text(self, token: int) -> str:
        return self.decode([token], skip_special_tokens=False)

    def apply_chat_template(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> list[int]:
        roles = [message["role"] for message in messages]
        if any(first == second == "user" for first, second in itertools.pairwise(roles)):
            raise TemplateError("Conversation roles must alternate")
        lines = [f"<tools>{json.dumps(tools)}\n"] if tools else []
        for message in messages:
            calls = message.get("tool_calls")
            extra = json.dumps(calls) if calls else ""
            lines.append(f"<{message['role']}>{message['content']}{extra}\n")
        text = "".join(lines)
        if continue_final_message:
            text = text[:-1]
        return self.encode(text + ("<assistant>" if add_generation_prompt else ""))


@dataclass
class Script:
    """What one request gets: ``pieces`` of text, each an output of one token per byte.

    ``gate``: wait for it before each piece after the first.  ``fail``: raise it after the pieces.
    """

    pieces: tuple[str, ...] = ("Hel", "lo")
    finish: FinishReason = field(default_factory=lambda: FinishReason("stop", matched=EOS))
    gate: threading.Event | None = None
    fail: Exception | None = None
    pause: float = 0.0
    cached: int = 0


class ScriptedEngine:
    """Answers each request by ``script(request, prompt_text)``."""

    def __init__(
        self,
        script: Script | Callable[[GenerateRequest, str], Script] | None = None,
        max_queued: int = 1000,
    ) -> None:
        self.script = script or Script()
        self.tokenizer: Any = ByteTokenizer()
        self.model_config = SimpleNamespace(vocab_size=VOCAB)
        self.context_length = CONTEXT
        self.served_model_name = "scripted"
        self.requests: list[GenerateRequest] = []
        self.aborted: list[str] = []
        self.live: dict[str, threading.Event] = {}
        self.flushed = 0
        self.closed = False
        self.max_queued = max_queued
        self.compiling: threading.Event | None = None
        self.step_age = 0.0
        self.waits_for_readers = True

    def compile(self, constraint: Constraint) -> object:
        return COMPILER.compile(constraint)

    def submit(self, request: GenerateRequest) -> OutputStream:
        params = request.sampling_params
        if not request.input_ids:
            raise InvalidRequest("input_ids", request.input_ids, "at least one token")
        ids = (*request.input_ids, *params.stop_token_ids, *request.token_ids_logprob)
        if not all(isinstance(i, int) and 0 <= i < VOCAB for i in ids):
            raise InvalidRequest("stop_token_ids", ids[-1], f"token ids below {VOCAB}")
        if len(request.input_ids) >= CONTEXT:
            raise PromptTooLong(len(request.input_ids), params.max_new_tokens or 0, CONTEXT)
        if request.rid in self.live:
            raise InvalidRequest("rid", request.rid, "a name that is not in use")
        if len(self.live) >= self.max_queued:
            raise QueueFull(f"{len(self.live)} requests are waiting already")
        if params.constraint is not None:
            self.compile(params.constraint)
        self.requests.append(request)
        stop = threading.Event()
        self.live[request.rid] = stop
        stream = OutputStream(request.rid, params.n, lambda: self._stop(request.rid))
        threading.Thread(target=self._play, args=(request, stream, stop), daemon=True).start()
        return stream

    async def asubmit(self, request: GenerateRequest) -> OutputStream:
        if self.compiling is not None and request.sampling_params.constraint is not None:
            import asyncio

            await asyncio.to_thread(self.compiling.wait, 10)
        return self.submit(request)

    def _stop(self, rid: str) -> None:
        if rid in self.live:
            self.aborted.append(rid)
            self.live[rid].set()

    def _play(self, request: GenerateRequest, stream: OutputStream, stop: threading.Event) -> None:
        prompt = self.tokenizer.decode(request.input_ids)
        script = self.script if isinstance(self.script, Script) else self.script(request, prompt)
        try:
            for index in range(request.sampling_params.n):
                self._play_sample(request, index, script, stream, stop)
        except EngineError as error:
            self.live.pop(request.rid, None)
            stream.fail(error)

    def _play_sample(
        self,
        request: GenerateRequest,
        index: int,
        script: Script,
        stream: OutputStream,
        stop: threading.Event,
    ) -> None:
        usage = Usage(len(request.input_ids), cached_tokens=script.cached, ttft_s=0.001)
        limit = request.sampling_params.max_new_tokens
        limit = CONTEXT if limit is None else limit
        finish = script.finish
        last = index == request.sampling_params.n - 1
        for number, piece in enumerate(script.pieces):
            while script.gate is not None and number and not stop.is_set():
                if script.gate.wait(0.01):
                    break
            if script.pause:
                stop.wait(script.pause)
            if stop.is_set():
                finish = FinishReason("abort", message="The request was aborted.")
                break
            data = piece.encode()[: limit - usage.completion_tokens]
            if len(data) < len(piece.encode()):
                finish = FinishReason("length")
            usage = Usage(
                **{**vars(usage), "completion_tokens": usage.completion_tokens + len(data)}
            )
            text = data.decode("utf-8", "ignore")
            self._wait_for_reader(stream, stop)
            stream.put(self._output(request, index, number, text, tuple(data), usage))
            if finish.type == "length":
                break
        if script.fail is not None:
            raise script.fail
        if limit == 0:
            finish = FinishReason("length")
            stream.put(self._output(request, index, 0, "", (), usage))
        if last:
            self.live.pop(request.rid, None)
        self._wait_for_reader(stream, stop)
        stream.put(RequestOutput(request.rid, index, finish_reason=finish, usage=usage))

    def _wait_for_reader(self, stream: OutputStream, stop: threading.Event) -> None:
        """Outputs that wait together are joined; the script's are meant to come one by one."""
        end = time.monotonic() + 0.5
        while self.waits_for_readers and stream._outputs and time.monotonic() < end:
            if stop.wait(0.0005):
                return

    def _output(
        self,
        request: GenerateRequest,
        index: int,
        number: int,
        text: str,
        ids: tuple[int, ...],
        usage: Usage,
    ) -> RequestOutput:
        logprobs = prompt = None
        if request.return_logprob:
            logprobs = self._logprobs(request, ids)
            if number == 0 and request.logprob_start_len >= 0:
                prompt = self._logprobs(request, request.input_ids[request.logprob_start_len :])
                if request.logprob_start_len == 0:
                    first = ((None, request.input_ids[0]), *prompt.tokens[1:])
                    prompt = Logprobs(first, ((), *prompt.top[1:]), prompt.chosen_ids)
        return RequestOutput(request.rid, index, text, ids, logprobs, prompt, None, usage)

    def _logprobs(self, request: GenerateRequest, ids: tuple[int, ...]) -> Logprobs:
        top = tuple(
            tuple((-0.5 - rank, (token + rank) % 256) for rank in range(request.top_logprobs_num))
            for token in ids
        )
        chosen = tuple(tuple((-3.0, t) for t in request.token_ids_logprob) for _ in ids)
        return Logprobs(tuple((-0.5, token) for token in ids), top, chosen)

    def abort(self, rid: str | None = None, *, abort_all: bool = False) -> None:
        for name in list(self.live):
            if abort_all or name == rid:
                self._stop(name)

    def flush_cache(self) -> bool:
        self.flushed += 1
        return not self.live

    def stats(self) -> dict[str, Any]:
        return {
            "num_running_reqs": len(self.live),
            "num_queue_reqs": 0,
            "prompt_tokens_total": sum(len(r.input_ids) for r in self.requests),
            "seconds_since_step": self.step_age,
        }

    def snapshot(self, max_nodes: int = 200) -> dict[str, Any]:
        return {"tree": [], "slots": {}, "running": [], "waiting": [], "truncated": False}

    def check(self) -> None:
        assert not self.closed

    def shutdown(self) -> None:
        self.closed = True

    def wait_idle(self) -> bool:
        """True as soon as nothing runs any more."""
        return comes_true(lambda: not self.live)
