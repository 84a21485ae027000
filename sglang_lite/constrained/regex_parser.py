"""A parser for Python's regular expressions and for those of JSON Schema (ECMA-262).

It gives the tree of ``regex_ast`` and reports what is malformed, or not regular, with its position.
An own parser, because the one inside ``re`` is private, changes between versions and forgets where
things stood.
"""

from __future__ import annotations

from functools import lru_cache

from sglang_lite.constrained import regex_ast as ast
from sglang_lite.constrained import regex_sets as sets
from sglang_lite.constrained.charset import ANYTHING, CharSet, single
from sglang_lite.constrained.regex_ast import Node
from sglang_lite.constrained.regex_scanner import Scanner
from sglang_lite.errors import GrammarTooComplex

MAX_PATTERN = 200_000
MAX_DEPTH = 100
MAX_COUNT = 10_000_000
_QUANTIFIERS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_ANCHORS = ("^", "$", "\\A", "\\Z", "\\z", "\\b", "\\B")


def parse(pattern: str, flags: str = "", dialect: str = "python") -> Node:
    """The tree of ``pattern``; ``dialect`` is "python" or "ecma".

    Raises :class:`InvalidRegex`, and :class:`GrammarTooComplex` beyond the limits above.
    """
    return _Parser(pattern, frozenset(flags), dialect == "ecma").parse()


class _Parser(Scanner):
    def __init__(self, pattern: str, flags: frozenset[str], ecma: bool) -> None:
        super().__init__(pattern, flags, ecma)
        self.depth = 0
        self.names: set[str] = set()

    def parse(self) -> Node:
        if len(self.pattern) > MAX_PATTERN:
            raise GrammarTooComplex(
                f"a regex of {len(self.pattern)} characters; the limit is {MAX_PATTERN}"
            )
        unknown = self.flags - set("aimsux")
        if unknown:
            raise self.error(f"unknown flag {min(unknown)!r}", None)
        self.leading_flags()
        node = self.alternatives()
        if self.at < len(self.pattern):
            raise self.error("unbalanced parenthesis")
        return node

    # -- alternatives, sequences, quantifiers ----------------------------------------------------

    def alternatives(self) -> Node:
        if self.depth > MAX_DEPTH:
            raise GrammarTooComplex(f"a regex with groups nested more than {MAX_DEPTH} deep")
        flags = self.flags
        branches = [self.sequence()]
        while self.take("|"):
            branches.append(self.sequence())
        self.flags = flags
        return ast.alt(branches)

    def sequence(self) -> Node:
        items: list[Node] = []
        pattern = self.pattern
        while True:
            self.skip_ignored()
            start = self.at
            if start >= len(pattern) or pattern[start] in "|)":
                return ast.seq(items)
            atom = self.atom()
            self.skip_ignored()
            if self.at < len(pattern) and pattern[self.at] in "*+?{":
                atom = self.quantified(atom, start)
            items.append(atom)

    def quantified(self, atom: Node, start: int) -> Node:
        here = self.at
        counts = self.quantifier()
        if counts is None:
            return atom
        if self.pattern.startswith(_ANCHORS, start):
            raise self.error("nothing to repeat", here)
        minimum, maximum = counts
        if self.take("?"):
            pass  # lazy: the same language
        elif not self.ecma and self.take("+"):
            return self.possessive(ast.repeat(atom, minimum, maximum), start)
        after = self.at
        if self.quantifier() is not None:
            raise self.error("multiple repeat", after)
        return ast.repeat(atom, minimum, maximum)

    def quantifier(self) -> tuple[int, int | None] | None:
        sign = self.pattern[self.at : self.at + 1]
        if sign == "{":
            return self.braces()
        counts = _QUANTIFIERS.get(sign)
        self.at += counts is not None
        return counts

    def braces(self) -> tuple[int, int | None] | None:
        """``{m}``, ``{m,}``, ``{,n}`` or ``{m,n}``; None where the brace is a literal."""
        end = self.pattern.find("}", self.at)
        text = self.pattern[self.at + 1 : end] if end > 0 else ""
        low, comma, high = text.partition(",")
        digits = low + high
        if not (digits.isascii() and digits.isdigit()) and text != ",":
            return None
        if text == "," and self.ecma:
            return None
        if self.ecma and not low:
            raise self.error("'{,n}' means different things in different engines; write '{0,n}'")
        minimum = int(low or "0")
        maximum = int(high) if high else None if comma else minimum
        if max(minimum, maximum or 0) > MAX_COUNT:
            raise GrammarTooComplex(
                f"a repeat count of {max(minimum, maximum or 0)}; the limit is {MAX_COUNT}"
            )
        if maximum is not None and maximum < minimum:
            raise self.error("min repeat greater than max repeat")
        self.at = end + 1
        return minimum, maximum

    def possessive(self, node: Node, start: int) -> Node:
        """A repeat or group that never gives back, where that is the same as a look-ahead."""
        if isinstance(node, ast.Repeat) and isinstance(node.item, ast.Chars):
            stop = ast.Look(node.item, ahead=True, negative=True)
            unbounded = ast.seq((node, stop))
            if node.maximum is None:
                return unbounded
            if node.minimum == node.maximum:
                return node
            shorter = ast.repeat(node.item, node.minimum, node.maximum - 1)
            full = ast.repeat(node.item, node.maximum, node.maximum)
            return ast.alt((ast.seq((shorter, stop)), full))
        if _has_one_way(node):
            return node
        raise self.error(
            "a possessive or atomic group is refused unless it repeats one character", start
        )

    # -- atoms -----------------------------------------------------------------------------------

    def atom(self) -> Node:
        start = self.at
        c = self.next("an atom")
        if c == "(":
            return self.group(start)
        if c == "[":
            return self.members(self.bracket(start))
        if c == ".":
            newline = sets.NEWLINE_ECMA if self.ecma else sets.NEWLINE
            return ast.Chars(ANYTHING if "s" in self.flags else ~newline)
        if c == "^":
            return ast.AT_LINE_START if "m" in self.flags else ast.AT_START
        if c == "$":
            if "m" in self.flags:
                return ast.AT_LINE_END
            return ast.AT_END if self.ecma else ast.AT_LAST_LINE_END
        if c == "\\":
            return self.escape(start)
        if c in "*+?":
            raise self.error("nothing to repeat", start)
        if c == "{":
            self.at = start
            if self.braces() is not None:
                raise self.error("nothing to repeat", start)
            self.at = start + 1
        return self.members(single(ord(c)))

    def members(self, members: CharSet) -> Node:
        if "i" in self.flags:
            members = sets.ignore_case(members, "a" in self.flags)
        return _chars(members)

    def escape(self, start: int) -> Node:
        c = self.next("an escape")
        if c in "bB":
            return self.word_boundary(c == "B")
        if c in "AZz":
            return ast.AT_START if c == "A" else ast.AT_END
        if c in "123456789":
            return self.members(self.octal_or_reference(start, c))
        if c in "kgGK" and not (c in "GK" and self.ecma):
            raise self.error("back-references are not regular", start)
        return self.members(self.class_escape(start, c, in_class=False))

    def octal_or_reference(self, start: int, c: str) -> CharSet:
        three = self.pattern[start + 1 : start + 4]
        if not self.ecma and len(three) == 3 and all(d in "01234567" for d in three):
            if int(three, 8) > 0o377:
                raise self.error(f"octal escape value \\{three} outside of range 0-0o377", start)
            self.at = start + 4
            return single(int(three, 8))
        raise self.error("back-references are not regular", start)

    def word_boundary(self, negative: bool) -> Node:
        word = ast.Chars(
            sets.WORD_ASCII if self.ecma else sets.python_class("w", "a" in self.flags)
        )
        ways = []
        for before in (False, True):
            after = before if negative else not before
            behind = ast.Look(word, ahead=False, negative=not before)
            ways.append(ast.seq((behind, ast.Look(word, ahead=True, negative=not after))))
        if negative and not self.ecma:  # an empty text has no \\B before Python 3.14
            beside = (ast.Look(ast.ANY, ahead, negative=False) for ahead in (False, True))
            ways[0] = ast.seq((ways[0], ast.alt(beside)))
        return ast.alt(ways)

    # -- groups ----------------------------------------------------------------------------------

    def group(self, start: int) -> Node:
        if not self.take("?"):
            return self.body(start)
        if self.take(":"):
            return self.body(start)
        for sign, ahead, negative in (
            ("=", True, False),
            ("!", True, True),
            ("<=", False, False),
            ("<!", False, True),
        ):
            if self.take(sign):
                return _look(self.body(start), ahead, negative)
        if self.take(">"):
            return self.possessive(self.body(start), start)
        if self.peek("<") or self.peek("P"):
            return self.named_group(start)
        if self.peek("("):
            raise self.error("conditional groups are not regular", start)
        return self.flag_group(start)

    def body(self, start: int) -> Node:
        self.depth += 1
        node = self.alternatives()
        self.depth -= 1
        if not self.take(")"):
            raise self.error("missing ), unterminated subpattern", start)
        return node

    def named_group(self, start: int) -> Node:
        if self.take("P="):
            raise self.error("back-references are not regular", start)
        if not self.take("P<") and not (self.ecma and self.take("<")):
            raise self.error("unknown extension", start)
        name = self.until(">", "a group name")
        if not name.isidentifier():
            raise self.error(f"bad group name {name!r}", start)
        if name in self.names:
            raise self.error(f"redefinition of group name {name!r}", start)
        self.names.add(name)
        return self.body(start)

    def flag_group(self, start: int) -> Node:
        """``(?i:...)`` and ``(?-i:...)``; ``(?i)`` only at the very beginning."""
        flags = self.read_flags(start)
        if flags is None:
            raise self.error("global flags not at the start of the expression", start)
        outer, self.flags = self.flags, flags
        node = self.body(start)
        self.flags = outer
        return node

    def leading_flags(self) -> None:
        self.skip_ignored()
        while self.peek("(?") and self.pattern[self.at + 2 : self.at + 3] in tuple("aiLmsux"):
            start = self.at
            self.at += 2
            flags = self.read_flags(start, leading=True)
            if flags is None:
                self.at = start
                return
            self.flags = flags
            self.skip_ignored()


@lru_cache(maxsize=2048)
def _chars(members: CharSet) -> Node:
    """One node for each set: nodes do not change."""
    return ast.chars(members)


def _look(item: Node, ahead: bool, negative: bool) -> Node:
    if item is ast.NEVER:
        return ast.EMPTY if negative else ast.NEVER
    if item.facts.nullable:
        return ast.NEVER if negative else ast.EMPTY
    return ast.Look(item, ahead, negative)


def _has_one_way(node: Node) -> bool:
    """True where there is nothing to give back: a fixed sequence of single characters."""
    if isinstance(node, ast.Seq):
        return all(map(_has_one_way, node.items))
    if isinstance(node, ast.Repeat):
        return node.minimum == node.maximum and _has_one_way(node.item)
    return isinstance(node, ast.Chars)
