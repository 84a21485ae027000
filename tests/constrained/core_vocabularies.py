"""Small vocabularies with awkward tokens, for the core's tests."""

from __future__ import annotations

from sglang_lite.constrained import Vocabulary

WORDS = [
    '"', '":', '": ', '":"', '","', '", "', '"}', '"}]', '"],', '{"', '{"a', '[{"', '[]', "{}",
    "}}", "},", "]]", ', "', ":", ": ", ",", ", ", "  ", "\n", "\n  ", " {", " [", ' "', " true",
    "true", "tru", "e,", "false", "null", "nul", "ll}", "12", "1,", "2]", "0.", ".5", "e1", "-1",
    "10}", '\\"', "\\u00", "\\n", 'a"', 'ab":', 'name":', "name", "na", "me", 'me"', "age", 'e":',
    "id", 'x","y', "abc", "bc", "ca", "aa", "aaa", "aaaa", "zz", 'b"]', "é", "éé", 'é"', "日",
    "日本", '本"', "😀", "aé", "\x00", "\x7f", "foo", "bar", "oba", 'o"}', "2024", "-02", "-3",
    "1-", "T1",
]  # fmt: skip
"""Tokens that run over the borders of JSON's tokens, of keys, and of UTF-8 characters."""

HALVES = [
    b"\xe6\x97",
    b"\xa5",
    b'\xa5"',
    b"\xe6",
    b"\xc3",
    b'\xa9"',
    b"\xf0\x9f",
    b"\x98\x80",
    b"a\xc3",
]


def byte_level() -> Vocabulary:
    """All single bytes and the awkward tokens, padded, with specials and empty tokens."""
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [word.encode() for word in WORDS] + HALVES
    tokens += [b"", b'"', b"<|end|>", b"<|tool|>", b"{"]
    end = tokens.index(b"<|end|>")
    return Vocabulary(tokens, eos_token_ids=[end], special_ids=[end + 1], size=len(tokens) + 45)


def byte_fallback() -> Vocabulary:
    """SentencePiece's way: byte tokens besides characters, two ends of text."""
    tokens = [b"<unk>", b"<s>", b"</s>"] + [bytes([byte]) for byte in range(256)]
    tokens += [chr(code).encode() for code in range(0x20, 0x7F)]
    tokens += [word.encode() for word in WORDS if word[0] not in "\\\n"]
    return Vocabulary(tokens, eos_token_ids=[2, 1], special_ids=[0])


def without_some_bytes() -> Vocabulary:
    """No token for several bytes alone, so bytes may lead where tokens cannot go on."""
    tokens = [bytes([byte]) for byte in b'"{}[]:, abcmnetruflsxyz0123456789-.\\']
    tokens += [word.encode() for word in WORDS] + [b"<|end|>"]
    return Vocabulary(tokens, eos_token_ids=[len(tokens) - 1])


ALL = {"byte_level": byte_level, "byte_fallback": byte_fallback}
