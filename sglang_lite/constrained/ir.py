"""The intermediate representation: a small language of bytes that every constraint lowers to.

A :class:`Language` is a root node and named rules.  Nodes are immutable values: structural
equality, a hash computed once, picklable.  Build them with the lower-case functions
(:func:`sequence`, :func:`union`, ...): they normalise, so that equal languages are more often equal
nodes, and they remove what is empty.  The matcher interns nodes when it first visits them; nothing
here knows about tokens or states.

| node            | language                                                                    |
|-----------------|-----------------------------------------------------------------------------|
| ``EMPTY``       | the empty text only                                                         |
| ``NEVER``       | nothing                                                                     |
| Literal         | one text                                                                    |
| LiteralSet      | one of many texts (an enum); a trie in the engine                           |
| Terminal        | what a byte DFA accepts                                                     |
| Counted         | open, from ``minimum`` to ``maximum`` characters of one DFA, close          |
| Sequence        | its items, one after another                                                |
| Union           | any of its items                                                            |
| Repeat          | from ``minimum`` to ``maximum`` items with separators, counted by class     |
| Object          | a JSON object: declared members, other keys, presence clauses, a count      |
| Ref             | the rule of that name                                                       |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sglang_lite.constrained.build import (
    counted,
    literal,
    literals,
    object_,
    optional,
    repeat,
    repeat_kinds,
    sequence,
    terminal,
    union,
)
from sglang_lite.constrained.dfa import Bound, ByteDFA
from sglang_lite.constrained.nodes import (
    EMPTY,
    NEVER,
    Clause,
    Counted,
    Empty,
    Extra,
    Kind,
    Literal,
    LiteralSet,
    Member,
    Never,
    Node,
    Object,
    PropertyOrder,
    Ref,
    Repeat,
    Sequence,
    Terminal,
    Union,
)

__all__ = [
    "EMPTY",
    "NEVER",
    "Bound",
    "ByteDFA",
    "Clause",
    "Counted",
    "Empty",
    "Extra",
    "Kind",
    "Language",
    "Literal",
    "LiteralSet",
    "Member",
    "Never",
    "Node",
    "Object",
    "PropertyOrder",
    "Ref",
    "Repeat",
    "Sequence",
    "Terminal",
    "Union",
    "counted",
    "literal",
    "literals",
    "object_",
    "optional",
    "repeat",
    "repeat_kinds",
    "sequence",
    "terminal",
    "union",
]


@dataclass(frozen=True)
class Language:
    """A root node and the rules that its :class:`Ref` nodes name.

    ``warnings`` are what a front end was asked to ignore, for the caller to show.
    """

    root: Node
    rules: Mapping[str, Node] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
