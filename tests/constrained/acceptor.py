"""Does an IR language accept a text?  Recursive and slow, written from the node table of ir.py.

It shares nothing with the engine: for a node and a place in the text it returns every place where
the node may end, so that a text is accepted if the root may end at its end.
"""

from __future__ import annotations

from sglang_lite.constrained import ir

Ends = frozenset[int]
NOWHERE: Ends = frozenset()


class Acceptor:
    """One text against one language."""

    def __init__(self, language: ir.Language, text: bytes) -> None:
        self.language = language
        self.text = text
        self.known: dict[tuple[int, int], Ends] = {}
        self.kept: list[ir.Node] = []

    def accepts(self) -> bool:
        return len(self.text) in self.ends(self.language.root, 0)

    def ends(self, node: ir.Node, at: int) -> Ends:
        key = (id(node), at)
        if key not in self.known:
            self.kept.append(node)
            self.known[key] = NOWHERE
            self.known[key] = self._ends(node, at)
        return self.known[key]

    def _ends(self, node: ir.Node, at: int) -> Ends:
        if isinstance(node, ir.Empty):
            return frozenset((at,))
        if isinstance(node, ir.Never):
            return NOWHERE
        if isinstance(node, ir.Literal):
            return self._literal(node.text, at)
        if isinstance(node, ir.LiteralSet):
            return frozenset().union(*(self._literal(text, at) for text in node.texts))
        if isinstance(node, ir.Terminal):
            return frozenset(self._run(node.dfa, at))
        if isinstance(node, ir.Counted):
            return self._counted(node, at)
        if isinstance(node, ir.Sequence):
            places = {at}
            for item in node.items:
                places = {end for place in places for end in self.ends(item, place)}
            return frozenset(places)
        if isinstance(node, ir.Union):
            return frozenset().union(*(self.ends(item, at) for item in node.items))
        if isinstance(node, ir.Ref):
            return self.ends(self.language.rules[node.name], at)
        if isinstance(node, ir.Repeat):
            return self._repeat(node, at)
        assert isinstance(node, ir.Object), node
        return self._object(node, at)

    def _literal(self, text: bytes, at: int) -> Ends:
        return frozenset((at + len(text),)) if self.text.startswith(text, at) else NOWHERE

    def _run(self, dfa: ir.ByteDFA, at: int) -> list[int]:
        state, found = dfa.start, []
        while state >= 0:
            if dfa.accepts(state):
                found.append(at)
            if at == len(self.text):
                break
            state = dfa.step(state, self.text[at])
            at += 1
        return found

    def _counted(self, node: ir.Counted, at: int) -> Ends:
        places, found, count = set(self._literal(node.open, at)), set(), 0
        while places:
            if count >= node.minimum:
                found |= {end for place in places for end in self._literal(node.close, place)}
            if count == node.maximum:
                break
            places = {end for place in places for end in self._run(node.char, place)}
            count += 1
        return frozenset(found)

    def _repeat(self, node: ir.Repeat, at: int) -> Ends:
        found: set[int] = set()
        states = {(at, (0,) * len(node.kinds))}
        count = 0
        while states:
            for place, counts in states:
                if count >= node.minimum and all(
                    n >= kind.minimum for n, kind in zip(counts, node.kinds, strict=True)
                ):
                    found.add(place)
            if count == node.maximum:
                break
            following = set()
            for place, counts in states:
                starts = self.ends(node.separator, place) if count else {place}
                for start in starts:
                    for which, kind in enumerate(node.kinds):
                        if kind.maximum is not None and counts[which] >= kind.maximum:
                            continue
                        item = node.head[count][which] if count < len(node.head) else kind.item
                        more = (*counts[:which], counts[which] + 1, *counts[which + 1 :])
                        following |= {(end, more) for end in self.ends(item, start)}
            states = following
            count += 1
        return frozenset(found)

    def _object(self, node: ir.Object, at: int) -> Ends:
        found: set[int] = set()
        declared = {member.key: index for index, member in enumerate(node.members)}
        empty = frozenset()
        owed = frozenset(kind for kind, extra in enumerate(node.extras) if extra.needed)
        states = {(end, empty, -1, owed, empty) for end in self.ends(node.open, at)}
        done = set(states)
        while states:
            following = set()
            for place, keys, last, owed, needed in states:
                if not owed and self._complete(node, keys, declared):
                    found |= self.ends(node.close, place)
                starts = self.ends(node.comma, place) if keys else {place}
                for start in starts:
                    for key, end, value, position, kind in self._keys(node, start, declared):
                        if key in keys and (key in declared or node.distinct or owed):
                            continue
                        is_needed = kind >= 0 and node.extras[kind].needed
                        if key in needed or (is_needed and kind not in owed):
                            continue
                        if node.order == "schema" and position < last:
                            continue
                        for colon in self.ends(node.colon, end):
                            for after in self.ends(value, colon):
                                more = needed | {key} if is_needed else needed
                                far, left = max(last, position), owed - {kind}
                                following.add((after, keys | {key}, far, left, more))
            states = following - done
            done |= states
        return frozenset(found)

    def _keys(self, node: ir.Object, at: int, declared: dict[bytes, int]):
        for key, index in declared.items():
            for end in self._literal(key, at):
                yield key, end, node.members[index].value, index, -1
        for kind, extra in enumerate(node.extras):
            for end in self._run(extra.key, at):
                if self.text[at:end] not in declared:
                    yield self.text[at:end], end, extra.value, len(node.members), kind

    def _complete(
        self, node: ir.Object, keys: frozenset[bytes], declared: dict[bytes, int]
    ) -> bool:
        present = {declared[key] for key in keys if key in declared}
        if any(member.required and i not in present for i, member in enumerate(node.members)):
            return False
        if len(keys) < node.minimum or (node.maximum is not None and len(keys) > node.maximum):
            return False
        return all(
            any(i in present for i in clause.present)
            or any(i not in present for i in clause.absent)
            for clause in node.clauses
        )


def accepts(language: ir.Language, text: str | bytes) -> bool:
    """True if ``text`` is in the language."""
    return Acceptor(language, text.encode() if isinstance(text, str) else text).accepts()
