"""Tokens as bytes for each family of tokenizers, and the trie made of them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from sglang_lite.constrained import Vocabulary
from sglang_lite.constrained.levels import ClassTrie, json_classes
from sglang_lite.constrained.trie import Trie
from sglang_lite.errors import InvalidRequest, UnsupportedModel
from sglang_lite.token_pieces import token_reader
from tests.constrained.core_vocabularies import byte_level


def bpe(pieces: list[str], **options: Any) -> Tokenizer:
    return Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], **options))


def test_byte_level_bpe() -> None:
    tokenizer = bpe(["a", "Ġa", "Ã©", "æĹ", "Ċ", "<0x41>", "Ń"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens([AddedToken("Ġé x", normalized=False)])
    vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size=16, eos_token_ids=7)
    assert vocabulary.token_bytes[:7] == [
        b"a", b" a", "é".encode(), b"\xe6\x97", b"\n", b"<0x41>", b"\xad",
    ]  # fmt: skip
    # A special token is never text; an added one is literal text, not bytes as characters.
    assert vocabulary.token_bytes[7:9] == [b"", "Ġé x".encode()]
    assert vocabulary.token_bytes[9:] == [b""] * 7
    assert vocabulary.size == 16
    assert vocabulary.eos_token_ids == (7,)
    assert vocabulary.special_ids == {7}


def test_sentencepiece_with_byte_fallback() -> None:
    tokenizer = bpe(
        ["<unk>", "<0x41>", "▁the", "▁", "a▁b", "<0xE6>", "é"],
        unk_token="<unk>",
        byte_fallback=True,
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    vocabulary = Vocabulary.from_tokenizer(tokenizer, eos_token_ids=[0])
    assert vocabulary.token_bytes == [b"", b"A", b" the", b" ", b"a b", b"\xe6", "é".encode()]


def test_without_byte_fallback_a_piece_spelled_so_is_text() -> None:
    tokenizer = bpe(["<unk>", "<0x41>", "▁x"], unk_token="<unk>")
    tokenizer.decoder = decoders.Metaspace()
    assert Vocabulary.from_tokenizer(tokenizer, eos_token_ids=[0]).token_bytes[1] == b"<0x41>"


@pytest.mark.parametrize("decoder", [decoders.ByteLevel(), decoders.Metaspace()])
def test_one_token_reads_like_the_whole_vocabulary(decoder: Any) -> None:
    pieces = ["<unk>", "<0x41>", "▁x", "Ġa", "Ã©", "中"]
    tokenizer = bpe(pieces, unk_token="<unk>", byte_fallback=True)
    tokenizer.decoder = decoder
    tokenizer.add_tokens([AddedToken("Ġé ▁", normalized=False)])
    vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size=9, eos_token_ids=[5])
    read = token_reader(tokenizer)
    assert [b"" if id == 5 else read(id) for id in range(9)] == vocabulary.token_bytes


def test_wordpiece_is_refused() -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "##a": 1}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModel, match="WordPiece"):
        Vocabulary.from_tokenizer(tokenizer, eos_token_ids=[0])
    with pytest.raises(UnsupportedModel, match="list"):
        Vocabulary.from_tokenizer([])


class Tiktoken:
    """What ``tiktoken.Encoding`` offers."""

    n_vocab = 5
    eot_token = 4
    special_tokens_set = {"<|end|>"}

    def token_byte_values(self) -> list[bytes]:
        return []

    def decode_single_token_bytes(self, token: int) -> bytes:
        if token == 2:
            raise KeyError(token)
        return [b"a", b"\xff", b"", b"bc", b"<|end|>"][token]

    def encode_single_token(self, text: str) -> int:
        assert text == "<|end|>"
        return 4

    def encode(self, text: str, disallowed_special: tuple[()]) -> list[int]:
        return [0]


def test_tiktoken_with_a_hole() -> None:
    vocabulary = Vocabulary.from_tokenizer(Tiktoken())
    assert vocabulary.token_bytes == [b"a", b"\xff", b"", b"bc", b""]
    assert vocabulary.eos_token_ids == (4,)
    assert vocabulary.encode is not None
    assert vocabulary.encode("a") == [0]


class Processor:
    """What ``sentencepiece.SentencePieceProcessor`` offers."""

    pieces = ["<unk>", "</s>", "<0x0A>", "▁hi", "<pad>"]

    def get_piece_size(self) -> int:
        return len(self.pieces)

    def id_to_piece(self, token: int) -> str:
        return self.pieces[token]

    def is_byte(self, token: int) -> bool:
        return token == 2

    def is_control(self, token: int) -> bool:
        return token == 1

    def is_unknown(self, token: int) -> bool:
        return token == 0

    def is_unused(self, token: int) -> bool:
        return token == 4

    def eos_id(self) -> int:
        return 1


def test_sentencepiece_processor() -> None:
    vocabulary = Vocabulary.from_tokenizer(Processor())
    assert vocabulary.token_bytes == [b"", b"", b"\n", b" hi", b""]
    assert vocabulary.eos_token_ids == (1,)


def test_gguf_metadata() -> None:
    def metadata(model: str, pieces: list[str], types: list[int]) -> dict[str, Any]:
        prefix = "tokenizer.ggml."
        return {
            prefix + "model": model,
            prefix + "tokens": pieces,
            prefix + "token_type": types,
            prefix + "eos_token_id": 0,
            prefix + "eot_token_id": 1,
        }

    llama = metadata("llama", ["</s>", "<e>", "<0x0D>", "▁a", "<0x0D>"], [3, 3, 6, 1, 1])
    vocabulary = Vocabulary.from_gguf(llama, vocab_size=6)
    assert vocabulary.token_bytes == [b"", b"", b"\r", b" a", b"<0x0D>", b""]
    assert vocabulary.eos_token_ids == (0, 1)
    gpt2 = metadata("gpt2", ["<e>", "<f>", "Ġa", "Ġ", "x"], [3, 3, 1, 4, 5])
    tokens = Vocabulary.from_gguf(gpt2).token_bytes
    assert tokens == [b"", b"", b" a", "Ġ".encode(), b""]
    with pytest.raises(UnsupportedModel, match="bert"):
        Vocabulary.from_gguf(metadata("bert", [], []))


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(InvalidRequest, match="eos_token_ids"):
        Vocabulary([b"a"], eos_token_ids=[])
    with pytest.raises(InvalidRequest, match="eos_token_ids=1"):
        Vocabulary([b"a"], eos_token_ids=[1])
    with pytest.raises(InvalidRequest, match="vocab_size=1"):
        Vocabulary([b"a", b"b"], eos_token_ids=[0], size=1)
    # Ids beyond the logits that are no text may be cut off.
    assert Vocabulary([b"a", b""], eos_token_ids=[0], size=1).size == 1


def test_vocabularies_pickle() -> None:
    vocabulary = byte_level()
    copy = pickle.loads(pickle.dumps(vocabulary))
    assert copy.token_bytes == vocabulary.token_bytes
    assert (copy.size, copy.eos_token_ids) == (vocabulary.size, vocabulary.eos_token_ids)


def test_the_trie_finds_every_token_and_nothing_else() -> None:
    vocabulary = byte_level()
    trie = vocabulary.trie
    for token, text in enumerate(vocabulary.token_bytes):
        if not text:
            continue
        above = trie.walk(text[:-1])
        assert above is not None
        hop = above.get(text[-1])
        assert hop is not None
        assert token in hop.tokens
        assert {vocabulary.token_bytes[t] for t in hop.tokens} == {text}
    assert trie.walk(b"name!") is None
    assert trie.longest == max(map(len, vocabulary.token_bytes))
    assert len(trie.tokens) == sum(map(bool, vocabulary.token_bytes))
    # Breadth first: children are neighbours and in order of their bytes.
    for node in range(len(trie.byte)):
        children = range(trie.child_start[node], trie.child_end[node])
        assert all(trie.parent[child] == node for child in children)
        assert list(trie.byte[children]) == sorted(set(trie.byte[children]))


def test_longest_match_and_merged_places() -> None:
    trie = Trie([b"ab", b"abc", b"xbc", b"xbd", b"b"], range(5))
    assert trie.longest_match(b"zabcd", 1) == (1, 3)
    assert trie.longest_match(b"zz", 0) == (-1, 0)
    first, second = trie.walk(b"a"), trie.walk(b"x")
    assert first is not None
    assert second is not None
    both = trie.place(np.array(sorted([*first.nodes, *second.nodes]), np.int32))
    assert both is not None
    hop = both.get(ord("b"))
    assert hop is not None
    assert hop.tokens == (0,)
    assert hop.place is not None
    after = hop.place.get(ord("c"))
    assert after is not None
    assert sorted(after.tokens) == [1, 2]
    assert after.place is None
    assert both.get(ord("c")) is None
    wide = Trie([bytes([i, j]) for i in range(20) for j in range(3)], range(60))
    nodes = wide.children(np.zeros(1, np.int32))
    place = wide.place(nodes)
    assert place is not None
    assert place is wide.place(nodes), "places are interned"
    column = place.get(2)
    assert column is not None
    assert sorted(column.tokens) == list(range(2, 60, 3))
    assert place.get(3) is None


def test_the_class_trie_is_the_trie_modulo_classes() -> None:
    vocabulary = byte_level()
    trie, classes = vocabulary.trie, json_classes()
    quotient = ClassTrie(trie, vocabulary.size, classes)
    assert quotient.count < len(trie.byte)
    nodes, _ = quotient.members(np.arange(quotient.count, dtype=np.int32))
    assert sorted(nodes.tolist()) == list(range(len(trie.byte)))
    texts = vocabulary.token_bytes
    by_node: dict[int, set[tuple[int, ...]]] = {}
    for token, text in enumerate(texts):
        if text and b"\\" not in text and text.isascii():
            by_node.setdefault(int(quotient.node_of_id[token]), set()).add(
                tuple(classes[list(text)])
            )
    assert all(len(spellings) == 1 for spellings in by_node.values())
    assert len(by_node) == len({s for spellings in by_node.values() for s in spellings})
    empty = [token for token, text in enumerate(texts) if not text]
    assert (quotient.node_of_id[empty] == quotient.count).all()
