"""What a token's piece, as its tokenizer's file spells it, is in bytes."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any

from sglang_lite.errors import UnsupportedModel

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "▁"


def piece_reader(backend: Any) -> Callable[[str], bytes]:
    """How pieces of a ``tokenizers.Tokenizer`` become bytes, by its family; not for added tokens.

    Raises :class:`UnsupportedModel` for tokenizers whose tokens have no fixed bytes (WordPiece).
    """
    decoder, before = _state(backend.decoder), _state(backend.pre_tokenizer)
    if "ByteLevel" in decoder or (not decoder and "ByteLevel" in before):
        return byte_level
    if _SPACE in decoder or "Metaspace" in decoder or "ByteFallback" in decoder:
        fallback = "ByteFallback" in decoder or getattr(backend.model, "byte_fallback", False)
        return functools.partial(sentencepiece, is_byte=bool(fallback))
    raise UnsupportedModel(
        f"a {type(backend.model).__name__} tokenizer with decoder {sorted(decoder) or None}: its "
        "tokens have no fixed bytes; byte-level BPE and SentencePiece tokenizers work"
    )


def token_reader(backend: Any) -> Callable[[int], bytes]:
    """The bytes of one id of a ``tokenizers.Tokenizer``; b"" for the unknown token and for none.

    The ids are those of the whole vocabulary's table, without the time to make one.
    Raises like :func:`piece_reader`.
    """
    read = piece_reader(backend)
    added = {id: each.content.encode() for id, each in backend.get_added_tokens_decoder().items()}
    unknown = getattr(backend.model, "unk_token", None)
    unknown_id = None if unknown is None else backend.model.token_to_id(unknown)

    @functools.cache
    def token_bytes(id: int) -> bytes:
        if id == unknown_id:
            return b""
        if id in added:
            return added[id]
        piece = backend.id_to_token(id)
        return b"" if piece is None else read(piece)

    return token_bytes


@functools.cache
def _byte_of_char() -> dict[str, int]:
    """GPT-2's spelling of bytes as printable characters, inverted.

    Printable Latin-1 stands for itself; the other bytes are, in order, the characters from 256 up.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    table = {chr(byte): byte for byte in visible}
    table.update({chr(256 + index): byte for index, byte in enumerate(hidden)})
    return table


def byte_level(piece: str) -> bytes:
    """The bytes of a piece in GPT-2's spelling; as it stands if it isn't in that spelling."""
    table = _byte_of_char()
    try:
        return bytes([table[char] for char in piece])
    except KeyError:
        return piece.encode()


def sentencepiece(piece: str, is_byte: bool) -> bytes:
    """The bytes of a SentencePiece piece; ``is_byte``: those like "<0x0A>" stand for a byte."""
    match = _BYTE_TOKEN.fullmatch(piece) if is_byte else None
    return bytes([int(match[1], 16)]) if match else piece.replace(_SPACE, " ").encode()


def _state(component: Any) -> frozenset[str]:
    """The types in a decoder or pre-tokenizer, and the space mark if it names it."""
    if component is None:
        return frozenset()
    found: set[str] = set()
    work: list[Any] = [json.loads(component.__getstate__())]
    while work:
        item = work.pop()
        if isinstance(item, dict):
            found.update(item[key] for key in ("type",) if isinstance(item.get(key), str))
            work += item.values()
        elif isinstance(item, list):
            work += item
        elif item == _SPACE:
            found.add(_SPACE)
    return frozenset(found)
