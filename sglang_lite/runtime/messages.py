"""The typed messages between the engine and whoever calls it (language, server, Python).

Text never enters the scheduler and HTTP never enters the engine: a caller turns its input into a
:class:`GenerateRequest` of token ids and reads :class:`RequestOutput` deltas.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sglang_lite.outputs import FinishReason, Logprobs, RequestOutput, TokenLogprob, Usage
from sglang_lite.sampling_params import SamplingParams

__all__ = [
    "FinishReason",
    "GenerateRequest",
    "Logprobs",
    "RequestOutput",
    "TokenLogprob",
    "Usage",
]


@dataclass(frozen=True)
class GenerateRequest:
    """One prompt to continue.

    * ``input_ids``: the whole prompt, at least one token.
    * ``rid``: a unique name, the handle of ``Engine.abort``; "" lets the engine make one.
    * ``logprob_start_len``: prompt position from which log probabilities are returned; -1 = none
      of the prompt.  They are natural logarithms of the raw model distribution, before
      temperature, penalties and masks.
    * ``top_logprobs_num``: so many alternatives per position.
    * ``token_ids_logprob``: these ids' log probabilities at each position too.
    * ``priority``: higher runs earlier.  ``cache_salt``: prefixes are shared among equal
      salts only.
    """

    input_ids: tuple[int, ...]
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    rid: str = ""
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: tuple[int, ...] = ()
    priority: int = 0
    cache_salt: str = ""
