"""Random programs give what a plain, sequential reading of them gives."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

import sglang_lite as sgl

NAMES = st.sampled_from("xyz")
LEAF = st.one_of(
    st.tuples(st.just("literal"), st.text("ab<|>é🙂", max_size=4)),
    st.tuples(st.just("gen"), NAMES),
    st.tuples(st.just("select"), NAMES),
    st.tuples(st.just("set"), NAMES, st.integers(0, 9)),
    st.tuples(st.just("read"), NAMES),
)


def blocks(inner):
    body = st.lists(inner, max_size=4)
    return st.one_of(
        st.tuples(st.just("scope"), NAMES, body),
        st.tuples(st.just("scratch"), body),
        st.tuples(st.just("copy"), body),
        st.tuples(st.just("gather"), st.lists(body, min_size=1, max_size=3)),
        st.tuples(st.just("append"), st.lists(body, min_size=1, max_size=3)),
    )


PROGRAMS = st.lists(st.recursive(LEAF, blocks, max_leaves=12), max_size=6)


def answer(text):
    return f"[{len(text)}]"


def chosen(text):
    return "left" if len(text) % 2 else "right"


class Model:
    """The sequential reading: a text and the list of values of each name."""

    def __init__(self, text="", values=None):
        self.text = text
        self.values = {name: list(v) for name, v in (values or {}).items()}

    def put(self, name, value):
        self.values.setdefault(name, []).append(value)

    def run(self, steps):
        for kind, *rest in steps:
            getattr(self, kind)(*rest)

    def literal(self, text):
        self.text += text

    def gen(self, name):
        self.put(name, answer(self.text))
        self.text += answer(self.text)

    def select(self, name):
        self.put(name, chosen(self.text))
        self.text += chosen(self.text)

    def set(self, name, value):
        self.put(name, value)

    def read(self, name):
        value = self.values[name][-1] if name in self.values else None
        self.text += f"({value})"

    def scope(self, name, steps):
        # Submitted first, so what is put inside under the same name comes later.
        place = len(self.values.setdefault(name, []))
        self.values[name].append(None)
        before = len(self.text)
        self.run(steps)
        self.values[name][place] = self.text[before:]

    def scratch(self, steps):
        before = self.text
        self.run(steps)
        self.text = before

    def copy(self, steps):
        child = Model(self.text, self.values)
        child.run(steps)
        self.values = child.values

    def fork(self, bodies):
        children = [Model(self.text, self.values) for _ in bodies]
        for child, steps in zip(children, bodies, strict=True):
            child.run(steps)
        return children

    def gather(self, bodies):
        children = self.fork(bodies)
        before = {name: len(values) for name, values in self.values.items()}

        def made(child, name):
            values = child.values.get(name, [])
            return values[-1] if len(values) > before.get(name, 0) else sgl.MISSING

        for name in "xyz":
            parts = [made(child, name) for child in children]
            if any(part is not sgl.MISSING for part in parts):
                self.put(name, parts)

    def append(self, bodies):
        text = self.text
        for child in self.fork(bodies):
            self.text += child.text[len(text) :]


def text_step(s, kind, rest):
    if kind == "literal":
        s += rest[0]
    elif kind == "gen":
        s += sgl.gen(rest[0])
    elif kind == "select":
        s += sgl.select(rest[0], ["left", "right"])


def execute(s, steps):
    for kind, *rest in steps:
        if kind in ("literal", "gen", "select"):
            text_step(s, kind, rest)
        elif kind == "set":
            s[rest[0]] = rest[1]
        elif kind == "read":
            s += f"({s[rest[0]] if rest[0] in s else None})"  # noqa: SIM401
        elif kind == "scope":
            with s.var_scope(rest[0]):
                execute(s, rest[1])
        elif kind == "scratch":
            with s.scratch():
                execute(s, rest[0])
        elif kind == "copy":
            with s.copy() as child:
                execute(child, rest[0])
        else:
            forks = s.fork(len(rest[0]))
            for child, body in zip(forks, rest[0], strict=True):
                execute(child, body)
            forks.join("gather_variable" if kind == "gather" else "concate_and_append")


def usable(steps, open_scopes=()):
    """A scope's value is not there before its end, so reading it inside would wait for itself."""
    for kind, *rest in steps:
        if kind == "read" and rest[0] in open_scopes:
            return False
        scopes = (*open_scopes, rest[0]) if kind == "scope" else open_scopes
        if kind in ("scope", "scratch", "copy") and not usable(rest[-1], scopes):
            return False
        if kind in ("gather", "append") and not all(usable(b, scopes) for b in rest[0]):
            return False
    return True


def backend():
    def scores(prompt, choices):
        return [0.0 if choice == chosen(prompt) else -9.0 for choice in choices]

    return sgl.Mock(lambda prompt, params: answer(prompt), choose=scores)


@settings(max_examples=150, deadline=None)
@given(PROGRAMS.filter(usable), st.booleans())
def test_concurrent_execution_equals_the_sequential_reading(steps, stream):
    model = Model()
    model.run(steps)
    program = sgl.function(execute)
    state = program.run(steps, backend=backend(), stream=stream)
    assert state.text() == model.text
    for name, values in model.values.items():
        assert state.all(name) == values
    if "scratch" not in str(steps):  # what it retracts was streamed
        assert "".join(state.text_iter()) == model.text
