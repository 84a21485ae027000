"""What every token id is in bytes, for each family of tokenizers, and the tables made from it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sglang_lite.constrained.tables import Tables
from sglang_lite.constrained.trie import Trie
from sglang_lite.errors import InvalidRequest, UnsupportedModel
from sglang_lite.token_pieces import byte_level, piece_reader, sentencepiece

Encode = Callable[[str], Sequence[int]]

# Bytes that occur in well-formed UTF-8; a vocabulary need not be able to write the others.
_UTF8 = frozenset(range(0x80)) | frozenset(range(0x80, 0xC0)) | frozenset(range(0xC2, 0xF5))


class Vocabulary:
    """The bytes of each token id and which ids end a text.

    * ``size``: width of the logits; ids from ``len(tokenizer)`` up to it are never allowed
    * ``token_bytes``: ``size`` byte strings; ``b""`` means "never text" (special tokens, padding)
    * ``eos_token_ids``: sorted; allowed exactly where the text is complete
    * ``special_ids``: control tokens, never text, whatever they are spelled like
    * ``encode``: the tokenizer's own segmentation of a text, without special tokens; None where
      there is none, then forced text is cut greedily
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        *,
        eos_token_ids: Iterable[int],
        special_ids: Iterable[int] = (),
        size: int | None = None,
        encode: Encode | None = None,
    ) -> None:
        count = len(token_bytes)
        self.size = count if size is None else size
        if self.size < count and any(token_bytes[self.size :]):
            raise InvalidRequest("vocab_size", size, f"at least the {count} ids of the tokenizer")
        self.eos_token_ids = tuple(sorted(set(eos_token_ids)))
        if not self.eos_token_ids:
            raise InvalidRequest("eos_token_ids", None, "at least one id that ends a text")
        for token in self.eos_token_ids:
            if not 0 <= token < self.size:
                accepted = f"ids from 0 to {self.size - 1}, the width of the logits"
                raise InvalidRequest("eos_token_ids", token, accepted)
        self.special_ids = frozenset(special_ids) | frozenset(self.eos_token_ids)
        texts = list(token_bytes[: self.size]) + [b""] * (self.size - count)
        for token in self.special_ids:
            if token < self.size:
                texts[token] = b""
        self.token_bytes: list[bytes] = texts
        self.encode = encode

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.token_bytes, self.eos_token_ids, self.special_ids, self.encode))

    @functools.cached_property
    def trie(self) -> Trie:
        """The byte trie of all tokens that are text."""
        return Trie(self.token_bytes, (i for i, text in enumerate(self.token_bytes) if text))

    @functools.cached_property
    def tables(self) -> Tables:
        """The token tables that all grammars of this vocabulary share."""
        return Tables(self.trie, self.size)

    @functools.cached_property
    def absent_bytes(self) -> frozenset[int]:
        """Bytes of well-formed UTF-8 that occur in no token: no text with them can be written."""
        return _UTF8 - {byte for text in self.token_bytes for byte in text}

    @functools.cached_property
    def trapped_bytes(self) -> frozenset[int]:
        """Bytes that occur in tokens but are no token alone.

        Empty for nearly every real vocabulary.  Otherwise a byte automaton may have states that no
        sequence of tokens leads out of, and the matcher checks each token for that.
        """
        alone = {text[0] for text in self.token_bytes if len(text) == 1}
        return _UTF8 - alone - self.absent_bytes

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: Any,
        vocab_size: int | None = None,
        eos_token_ids: int | Iterable[int] | None = None,
    ) -> Vocabulary:
        """Read a tokenizer's vocabulary.

        ``tokenizer`` is a ``tokenizers.Tokenizer``, a fast tokenizer of transformers, a
        ``tiktoken.Encoding`` or a ``sentencepiece.SentencePieceProcessor``.  ``vocab_size`` is the
        width of the model's logits where it is padded.  ``eos_token_ids`` default to what the
        tokenizer knows; give the union with the model's generation config.
        Raises :class:`UnsupportedModel` for tokenizers whose tokens have no fixed bytes
        (WordPiece), and :class:`InvalidRequest` where no EOS id is known.
        """
        eos = (eos_token_ids,) if isinstance(eos_token_ids, int) else eos_token_ids
        known = getattr(tokenizer, "eos_token_id", None)
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if hasattr(backend, "get_added_tokens_decoder") and hasattr(backend, "model"):
            tokens, special = _read_tokenizers(backend)
            encode: Encode | None = _HuggingFaceEncode(backend)
        elif hasattr(backend, "token_byte_values"):
            tokens, special = _read_tiktoken(backend)
            known = getattr(backend, "eot_token", None)
            encode = _TiktokenEncode(backend)
        elif hasattr(backend, "id_to_piece") and hasattr(backend, "is_byte"):
            tokens, special = _read_sentencepiece(backend)
            known, encode = backend.eos_id(), None
        else:
            raise UnsupportedModel(
                f"tokenizer {type(tokenizer).__name__} is none of tokenizers.Tokenizer, a fast "
                "tokenizer of transformers, tiktoken.Encoding, SentencePieceProcessor"
            )
        if eos is None:
            eos = () if known is None or known < 0 else (known,)
        return cls(tokens, eos_token_ids=eos, special_ids=special, size=vocab_size, encode=encode)

    @classmethod
    def from_gguf(
        cls,
        metadata: Mapping[str, Any],
        vocab_size: int | None = None,
        encode: Encode | None = None,
    ) -> Vocabulary:
        """Read the ``tokenizer.ggml.*`` keys of a GGUF file's metadata (lists and numbers)."""
        prefix = "tokenizer.ggml."
        kind = metadata[prefix + "model"]
        pieces: Sequence[str] = metadata[prefix + "tokens"]
        types: Sequence[int] = metadata.get(prefix + "token_type") or [1] * len(pieces)
        if kind not in ("gpt2", "llama"):
            raise UnsupportedModel(f"GGUF tokenizer model {kind!r}: only 'gpt2' and 'llama' work")
        # Token types: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.
        special = [i for i, type_ in enumerate(types) if type_ in (2, 3, 5)]
        if kind == "gpt2":
            tokens = [
                piece.encode() if type_ == 4 else byte_level(piece)
                for piece, type_ in zip(pieces, types, strict=True)
            ]
        else:
            tokens = [
                piece.encode() if type_ == 4 else sentencepiece(piece, type_ == 6)
                for piece, type_ in zip(pieces, types, strict=True)
            ]
        names = ("eos_token_id", "eot_token_id", "eom_token_id")
        eos = [metadata[prefix + name] for name in names if prefix + name in metadata]
        return cls(tokens, eos_token_ids=eos, special_ids=special, size=vocab_size, encode=encode)


def _rebuild(
    tokens: list[bytes], eos: tuple[int, ...], special: frozenset[int], encode: Encode | None
) -> Vocabulary:
    return Vocabulary(tokens, eos_token_ids=eos, special_ids=special, encode=encode)


class _HuggingFaceEncode:
    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, text: str) -> Sequence[int]:
        ids: Sequence[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids


class _TiktokenEncode:
    def __init__(self, encoding: Any) -> None:
        self.encoding = encoding

    def __call__(self, text: str) -> Sequence[int]:
        ids: Sequence[int] = self.encoding.encode(text, disallowed_special=())
        return ids


def _read_tokenizers(backend: Any) -> tuple[list[bytes], list[int]]:
    read, added = piece_reader(backend), backend.get_added_tokens_decoder()
    vocabulary = backend.get_vocab(with_added_tokens=False)
    tokens = [b""] * (1 + max([*vocabulary.values(), *added], default=-1))
    for piece, token in vocabulary.items():
        tokens[token] = read(piece)
    for token, piece in added.items():
        tokens[token] = piece.content.encode()
    special = [token for token, piece in added.items() if piece.special]
    unknown = getattr(backend.model, "unk_token", None)
    if unknown in vocabulary:
        special.append(vocabulary[unknown])
    return tokens, special


def _read_tiktoken(encoding: Any) -> tuple[list[bytes], list[int]]:
    tokens = [b""] * encoding.n_vocab
    for token in range(encoding.n_vocab):
        try:
            tokens[token] = encoding.decode_single_token_bytes(token)
        except KeyError:
            continue
    special = [encoding.encode_single_token(text) for text in encoding.special_tokens_set]
    return tokens, special


def _read_sentencepiece(processor: Any) -> tuple[list[bytes], list[int]]:
    size = processor.get_piece_size()
    tokens = [sentencepiece(processor.id_to_piece(i), processor.is_byte(i)) for i in range(size)]
    special = [
        i
        for i in range(size)
        if processor.is_control(i) or processor.is_unknown(i) or processor.is_unused(i)
    ]
    return tokens, special
