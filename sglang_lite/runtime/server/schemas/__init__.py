"""What clients may send: one strict Pydantic model per request, types only.

Ranges are :class:`~sglang_lite.sampling_params.SamplingParams`' business; these models hold only
what the wire adds to them.
"""
