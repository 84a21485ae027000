"""A structured-generation language and runtime; ``import sglang_lite as sgl``.

Names are loaded when they are first used, so that importing the package needs neither torch nor
transformers.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "sglang_lite.lang.expressions": "gen gen_int gen_string image select separate_reasoning video",
    "sglang_lite.lang.roles": (
        "assistant assistant_begin assistant_end system system_begin system_end "
        "user user_begin user_end"
    ),
    "sglang_lite.lang.program": "SglFunction function",
    "sglang_lite.lang.state": "AsyncProgramState ProgramState",
    "sglang_lite.lang.fork": "ProgramStateGroup",
    "sglang_lite.lang.variable": "MISSING Failure",
    "sglang_lite.lang.choices": (
        "ChoicesDecision ChoicesSamplingMethod byte_mean greedy_token_selection sum_logprob "
        "token_length_normalized unconditional_likelihood_normalized"
    ),
    "sglang_lite.lang.api": "flush_cache get_server_info",
    "sglang_lite.lang.backends.registry": "set_default_backend",
    "sglang_lite.lang.backends.base": "Backend",
    "sglang_lite.lang.backends.endpoint": "RuntimeEndpoint",
    "sglang_lite.lang.backends.openai": "OpenAI",
    "sglang_lite.lang.backends.runtime": "Runtime",
    "sglang_lite.lang.backends.mock": "Mock",
    "sglang_lite.lang.backends.fuzz": "Fuzz",
    "sglang_lite.lang.backends.cassette": "Record Replay",
    "sglang_lite.runtime.engine": "Engine",
    "sglang_lite.runtime.default_model": "default_model_path",
    "sglang_lite.sampling_params": "SamplingParams",
    "sglang_lite.constraint": "Choice Constraint Grammar JsonSchema Regex StructuralTag",
    "sglang_lite.constrained": (
        "CompiledGrammar GrammarCompiler GrammarMatcher Vocabulary allocate_token_bitmask"
    ),
    "sglang_lite.errors": (
        "BackendError CheckFailed ConstraintError EngineError GrammarTooComplex Incomplete "
        "InvalidGrammar InvalidRegex InvalidRequest InvalidSchema ModelNotFound NotSupported "
        "ProgramCancelled ProgramError PromptTooLong QueueFull RequestAborted SglangLiteError "
        "UnsatisfiableSchema UnsupportedModel UnsupportedSchema"
    ),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'sglang_lite' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
