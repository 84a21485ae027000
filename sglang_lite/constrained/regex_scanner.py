"""Reading a regular expression: the text and a position in it, escapes and brackets."""

from __future__ import annotations

import unicodedata

from sglang_lite.constrained import regex_sets as sets
from sglang_lite.constrained.charset import END, CharSet, char_set, characters, single
from sglang_lite.errors import InvalidRegex

_SIMPLE_ESCAPES = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_ECMA_ESCAPES = {"f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_BLANKS = " \t\n\r\v\f"
_HEX_LENGTHS = {"x": 2, "u": 4, "U": 8}
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")


class Scanner:
    """What is shared by all levels of the parser; ``flags`` are those at the current place."""

    def __init__(self, pattern: str, flags: frozenset[str], ecma: bool) -> None:
        self.pattern = pattern
        self.flags = flags
        self.ecma = ecma
        self.at = 0

    def error(self, reason: str, position: int | None = -1) -> InvalidRegex:
        return InvalidRegex(self.pattern, reason, self.at if position == -1 else position)

    def peek(self, text: str) -> bool:
        return self.pattern.startswith(text, self.at)

    def take(self, text: str) -> bool:
        if self.pattern.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def next(self, what: str) -> str:
        if self.at >= len(self.pattern):
            raise self.error(f"the pattern ends where {what} is expected")
        self.at += 1
        return self.pattern[self.at - 1]

    def until(self, stop: str, what: str) -> str:
        end = self.pattern.find(stop, self.at)
        if end < 0:
            raise self.error(f"missing {stop!r} after {what}")
        text = self.pattern[self.at : end]
        self.at = end + len(stop)
        return text

    def skip_ignored(self) -> None:
        """Comments ``(?#...)``, and under ``(?x)`` blanks and comments from # to the line's end."""
        verbose = "x" in self.flags
        while self.at < len(self.pattern):
            c = self.pattern[self.at]
            if c == "(" and not self.ecma and self.peek("(?#"):
                self.skip_comment()
            elif verbose and c in _BLANKS:
                self.at += 1
            elif verbose and c == "#":
                end = self.pattern.find("\n", self.at)
                self.at = len(self.pattern) if end < 0 else end + 1
            else:
                return

    def skip_comment(self) -> None:
        start = self.at
        while self.at < len(self.pattern):
            c = self.pattern[self.at]
            self.at += 2 if c == "\\" else 1
            if c == ")":
                return
        raise self.error("missing ), unterminated comment", start)

    # -- flags -----------------------------------------------------------------------------------

    def read_flags(self, start: int, leading: bool = False) -> frozenset[str] | None:
        """The flags inside ``(?aims-x:``, or of ``(?aims)`` if ``leading``; else None."""
        end = self.at
        while end < len(self.pattern) and self.pattern[end] not in ":)":
            end += 1
        text = self.pattern[self.at : end]
        stop = self.pattern[end : end + 1]
        on, minus, off = text.partition("-")
        if not stop or not on + off or set(on + off) - set("aiLmsux") or (minus and not off):
            raise self.error("unknown extension", start)
        if "L" in on + off or set(off) & set("au"):
            raise self.error("flag L is refused, and a and u cannot be turned off", start)
        if {"a", "u"} <= set(on):
            raise self.error("flags a and u are incompatible", start)
        if self.ecma and set(on + off) - set("is"):
            raise self.error("only the flags i and s can be set in this dialect", start)
        if (stop == ":") == leading or (stop == ")" and minus):
            return None
        self.at = end + 1
        flags = self.flags | set(on)
        return (flags - {"a"} if "u" in on else flags) - set(off)

    # -- escapes ---------------------------------------------------------------------------------

    def class_escape(self, start: int, c: str, in_class: bool) -> CharSet:
        """The set that an escape stands for, inside or outside of brackets; ``c`` is read."""
        if c in "dDwWsS":
            return self.named_class(c)
        if c in "pP":
            return self.property(start, c == "P")
        if c == "0" or (in_class and c in "1234567" and not self.ecma):
            return self.octal(start)
        if c in ("xu" if self.ecma else "xuU"):
            return self.hexadecimal(start, c)
        if c == "N" and not self.ecma:
            return self.named_character(start)
        if c == "c" and self.ecma:
            letter = self.next("a control letter")
            if not (letter.isascii() and letter.isalpha()):
                raise self.error("\\c needs a letter", start)
            return single(ord(letter) % 32)
        simple = _ECMA_ESCAPES if self.ecma else _SIMPLE_ESCAPES
        if c in simple or (c == "b" and in_class):
            return single(_SIMPLE_ESCAPES[c])
        if c.isascii() and c.isalnum():
            raise self.error(f"bad escape \\{c}", start)
        return characters(c)

    def named_class(self, c: str) -> CharSet:
        letter = c.lower()
        if self.ecma:
            members = {"d": sets.DIGIT_ASCII, "w": sets.WORD_ASCII, "s": sets.SPACE_ECMA}[letter]
        else:
            members = sets.python_class(letter, "a" in self.flags)
        return members if c == letter else ~members

    def property(self, start: int, negative: bool) -> CharSet:
        if self.take("{"):
            name = self.until("}", "the name of a property")
        else:
            name = self.next("the name of a property")
        inverted = name.startswith("^")
        plain = name.removeprefix("^")
        usable = plain.replace("_", "").replace("=", "").replace(" ", "").replace("-", "")
        members = sets.unicode_property(plain) if usable.isalnum() else None
        if members is None:
            raise self.error(f"unknown property {name!r}", start)
        return ~members if negative != inverted else members

    def octal(self, start: int) -> CharSet:
        if self.ecma:
            if self.pattern[self.at : self.at + 1].isdigit():
                raise self.error("octal escapes are not in this dialect", start)
            return single(0)
        digits = ""
        for digit in self.pattern[start + 1 : start + 4]:
            if digit not in "01234567":
                break
            digits += digit
        if int(digits, 8) > 0o377:
            raise self.error(f"octal escape value \\{digits} outside of range 0-0o377", start)
        self.at = start + 1 + len(digits)
        return single(int(digits, 8))

    def hexadecimal(self, start: int, c: str) -> CharSet:
        if self.ecma and c == "u" and self.take("{"):
            digits = self.until("}", "\\u{")
        else:
            digits = self.pattern[self.at : self.at + _HEX_LENGTHS[c]]
            self.at += len(digits)
            if len(digits) < _HEX_LENGTHS[c]:
                raise self.error(f"incomplete escape \\{c}{digits}", start)
        if not digits or not _HEX_DIGITS.issuperset(digits):
            raise self.error(f"incomplete escape \\{c}{digits}", start)
        value = int(digits, 16)
        if value >= END:
            raise self.error(f"there is no character U+{digits}", start)
        if self.ecma and 0xD800 <= value < 0xDC00 and self.take("\\u"):
            low = self.pattern[self.at : self.at + 4]
            self.at += 4
            if len(low) == 4 and low[0] in "dD" and low[1] in "cdefCDEF":
                return single(0x10000 + (value - 0xD800) * 0x400 + int(low, 16) - 0xDC00)
            raise self.error("a high surrogate needs a low one", start)
        return single(value)

    def named_character(self, start: int) -> CharSet:
        if not self.take("{"):
            raise self.error("missing '{' after \\N", start)
        name = self.until("}", "a character's name")
        try:
            return characters(unicodedata.lookup(name))
        except KeyError:
            raise self.error(f"undefined character name {name!r}", start) from None

    # -- brackets --------------------------------------------------------------------------------

    def bracket(self, start: int) -> CharSet:
        negative = self.take("^")
        first = self.at
        ranges: list[tuple[int, int]] = []
        whole: list[CharSet] = []
        while True:
            if self.at >= len(self.pattern):
                raise self.error("unterminated character set", start)
            here = self.at
            if self.peek("]") and (self.ecma or here > first):
                self.at += 1
                break
            low = self.bracket_item()
            if self.peek("-") and not self.pattern.startswith("-]", self.at):
                self.at += 1
                if self.at >= len(self.pattern):
                    raise self.error("unterminated character set", start)
                high = self.bracket_item()
                if isinstance(low, int) and isinstance(high, int):
                    if low > high:
                        raise self.error(
                            f"bad character range {self.pattern[here : self.at]}", here
                        )
                    ranges.append((low, high))
                    continue
                if not self.ecma:
                    raise self.error(f"bad character range {self.pattern[here : self.at]}", here)
                items: tuple[int | CharSet, ...] = (low, 0x2D, high)  # ``[\w-x]``
            else:
                items = (low,)
            ranges += [(item, item) for item in items if isinstance(item, int)]
            whole += [item for item in items if not isinstance(item, int)]
        members = char_set(ranges)
        for other in whole:
            members = members | other
        if negative and "i" in self.flags:
            members = sets.ignore_case(members, "a" in self.flags)
        return ~members if negative else members

    def bracket_item(self) -> int | CharSet:
        start = self.at
        c = self.next("a member of the set")
        if c != "\\":
            return ord(c)
        members = self.class_escape(start, self.next("an escape"), in_class=True)
        if not members:
            return 0xD800 if self.pattern[start + 1] in "uU" else members
        ranges = members.ranges()
        single = len(ranges) == 1 and members.size() == 1
        named = self.pattern[start + 1] in "dDwWsSpP"
        return ranges[0][0] if single and not named else members
