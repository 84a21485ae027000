"""Random texts of an IR language, and mutations of them, for the grammar tests."""

from __future__ import annotations

import random
from collections import deque

from sglang_lite.constrained import ir

FAR = 10**9


class Sampler:
    """Draws texts; rules beyond ``depth`` take their shortest way out."""

    def __init__(self, language: ir.Language, seed: int = 0) -> None:
        self.rules = language.rules
        self.root = language.root
        self.random = random.Random(seed)
        self.height = dict.fromkeys(self.rules, FAR)
        while True:
            new = {name: self._height(node) + 1 for name, node in self.rules.items()}
            if new == self.height:
                break
            self.height = {name: min(FAR, height) for name, height in new.items()}

    def sample(self, depth: int = 8) -> bytes:
        return self._draw(self.root, depth)

    def _height(self, node: ir.Node) -> int:
        if isinstance(node, ir.Ref):
            return self.height[node.name]
        if isinstance(node, ir.Sequence):
            return max(map(self._height, node.items))
        if isinstance(node, ir.Union):
            return min(map(self._height, node.items))
        if isinstance(node, ir.Repeat):
            return self._height(node.kinds[0].item) if node.minimum else 0
        return 0

    def _draw(self, node: ir.Node, depth: int) -> bytes:
        if isinstance(node, ir.Literal):
            return node.text
        if isinstance(node, ir.LiteralSet):
            return self.random.choice(node.texts)
        if isinstance(node, ir.Terminal):
            return self._walk(node.dfa)
        if isinstance(node, ir.Ref):
            return self._draw(self.rules[node.name], depth - 1)
        if isinstance(node, ir.Sequence):
            return b"".join(self._draw(item, depth) for item in node.items)
        if isinstance(node, ir.Union):
            heights = [self._height(item) for item in node.items]
            fit = [i for i, height in zip(node.items, heights, strict=True) if height <= depth]
            best = node.items[heights.index(min(heights))]
            return self._draw(self.random.choice(fit) if fit else best, depth)
        if isinstance(node, ir.Repeat):
            item = node.kinds[0].item
            most = node.minimum + 2 if node.maximum is None else min(node.maximum, node.minimum + 2)
            count = self.random.randint(node.minimum, most)
            if self._height(item) > depth:
                count = node.minimum
            separator = self._draw(node.separator, depth)
            return separator.join(self._draw(item, depth - 1) for _ in range(count))
        assert isinstance(node, ir.Empty), node
        return b""

    def _walk(self, dfa: ir.ByteDFA) -> bytes:
        state, text = dfa.start, bytearray()
        for _ in range(self.random.randint(0, 6)):
            ways = [(byte, to) for byte, to in enumerate(dfa.row(state)) if to >= 0]
            plain = [way for way in ways if 32 <= way[0] < 127]
            if not ways:
                break
            byte, state = self.random.choice(plain or ways)
            text.append(byte)
        return bytes(text) + shortest_end(dfa, state)


def shortest_end(dfa: ir.ByteDFA, state: int) -> bytes:
    """The shortest text that leads from ``state`` to acceptance."""
    queue = deque([(state, b"")])
    seen = {state}
    while queue:
        state, text = queue.popleft()
        if dfa.accepts(state):
            return text
        for byte, to in enumerate(dfa.row(state)):
            if to >= 0 and to not in seen:
                seen.add(to)
                queue.append((to, text + bytes([byte])))
    raise AssertionError("a state from which nothing is accepted")


def mutations(text: str, alphabet: str, rng: random.Random, count: int = 4) -> list[str]:
    """``text`` with one character dropped, doubled, swapped or replaced."""
    out = []
    for _ in range(count):
        place = rng.randrange(len(text) + 1)
        kind = rng.randrange(3)
        new = rng.choice(alphabet)
        out.append(text[:place] + (new if kind else "") + text[place + (kind != 1) :])
    return out
