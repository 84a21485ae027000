"""SGLang's own requests."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from sglang_lite.runtime.server.schemas.wire import Many, WireModel


class GenerateBody(WireModel):
    """The body of ``/generate``; one prompt, or a list of them and lists beside it."""

    text: str | Many[str] | None = None
    input_ids: Many[int] | Many[Many[int]] | None = None
    sampling_params: dict[str, Any] | Many[dict[str, Any]] | None = None
    stream: bool = False
    return_logprob: bool | Many[bool] = False
    logprob_start_len: int | Many[int] = -1
    top_logprobs_num: int | Many[int] = 0
    token_ids_logprob: Many[int] | Many[Many[int]] | None = None
    return_text_in_logprobs: bool = False
    rid: str | Many[str] | None = None
    priority: int = Field(default=0, ge=-(2**31), lt=2**31)
    cache_salt: str = Field(default="", max_length=128)
    timeout: float | None = Field(default=None, gt=0)


class AbortBody(WireModel):
    """The body of ``/abort_request``."""

    rid: str = ""
    abort_all: bool = False
