"""Where text and tokens meet: healing before a gen, kept ids after it."""

from __future__ import annotations

import asyncio

import pytest

import sglang_lite as sgl
from sglang_lite.constrained import GrammarCompiler, GrammarMatcher, Vocabulary
from sglang_lite.constraint import Choice, Grammar, JsonSchema, Prefixed, Regex, StructuralTag
from sglang_lite.lang.backends.engine import EngineBackend
from sglang_lite.lang.seams import align
from tests.runtime.toy import toy_engine
from tests.server.live import serving

PIECES = [b"a", b"bc", " é".encode(), "é".encode()[:1], "é".encode()[1:], b""]
END = 5


class Tokens(sgl.Mock):
    """Ids are places in PIECES; the last one ends a text."""

    async def pieces(self, token_ids):
        return [PIECES[token] for token in token_ids]

    def control_ids(self):
        return frozenset({END})


@pytest.mark.parametrize(
    ("ids", "text", "kept", "rest"),
    [
        ([0, 1], "abc", (0, 1), ""),
        ([0, 1, END], "abc", (0, 1), ""),
        ([0, END, 1], "abc", (0, END, 1), ""),  # went on after the end
        ([0, 1], "ab", (0,), "b"),  # a stop text ends inside a token
        ([0, 2], "a é", (0, 2), ""),
        ([3, 4, 3], "é", (3, 4), ""),  # half a character is no text
        ([0, 1], "xyz", (), "xyz"),
        ([], "", (), ""),
    ],
)
def test_the_ids_whose_text_came_out_are_kept(ids, text, kept, rest):
    assert asyncio.run(align(Tokens(), ids, text)) == (kept, rest)


def test_nothing_is_kept_without_a_tokenizer():
    assert asyncio.run(align(sgl.Fuzz(), [0], "a")) == ((), "a")


@pytest.fixture(scope="module")
def live():
    with toy_engine() as engine, serving(engine) as live:
        yield live


class Recording(EngineBackend):
    """Remembers the prompts and parameters it was given; ``inner`` answers, if there is one."""

    def __init__(self, engine, inner=None):
        super().__init__(engine)
        self.seen, self.source = [], super().stream if inner is None else inner.stream
        if inner is not None:
            self.encode, self.pieces = inner.encode, inner.pieces
            self.control_ids = inner.control_ids

    async def stream(self, prompt, params, logprobs):
        self.seen.append((prompt, params))
        async for output in self.source(prompt, params, logprobs):
            yield output


@pytest.fixture(params=["engine", "endpoint"])
def backend(request, live):
    inner = sgl.RuntimeEndpoint(live.url) if request.param == "endpoint" else None
    return Recording(live.engine, inner)


def test_generated_ids_stay_as_they_came_in_process_and_over_http(backend):
    @sgl.function
    def program(s):
        s += sgl.user("q") + sgl.assistant(sgl.gen("x", max_tokens=6, ignore_eos=True))
        s += sgl.user("more") + sgl.assistant(sgl.gen("y", regex="[a-z]{3}"))

    state = program.run(backend=backend, seed=1, temperature=0.5)
    pieces = state._executor.transcript.pieces
    said = [piece for piece in pieces if piece.token_ids is not None]
    assert [piece.text for piece in said] == [state["x"], state["y"]]
    first, second = (prompt for prompt, _ in backend.seen)
    sealed = (*first.input_ids, *said[0].token_ids)
    assert second.input_ids[: len(sealed)] == sealed
    assert second.sealed == len(sealed)


@pytest.mark.parametrize(
    ("expression", "inner"),
    [
        (sgl.gen("x", regex="[0-9]{2}"), Regex("[0-9]{2}")),
        (sgl.gen("x", type=bool), Choice(("True", "False"))),
        (
            sgl.gen("x", json_schema={"enum": [1, {}]}),
            JsonSchema.of({"enum": [1, {}]}, separators=(", ", ": ")),
        ),
        (sgl.gen("x", ebnf='root ::= "a" | "b"'), Grammar('root ::= "a" | "b"')),
    ],
)
def test_a_blank_before_any_constraint_is_healed(backend, expression, inner):
    @sgl.function
    def program(s):
        s += "p " + expression

    state = program.run(backend=backend, seed=1)
    ((prompt, params),) = backend.seen
    assert params.constraint == Prefixed(" ", inner)
    assert backend.tokenizer.decode(prompt.input_ids) == "p"
    assert state.text() == "p " + state.raw("x")
    assert state.raw("x").strip() == state.raw("x") != ""


@pytest.mark.parametrize(
    ("options", "healed"),
    [
        ({"stop": "\n"}, True),
        ({"stop": " 4"}, False),
        ({"stop": " "}, False),
        ({"stop_regex": "x"}, False),
        ({"heal": False}, False),
        ({"heal": True, "regex": None}, True),
        ({"regex": None}, False),
    ],
)
def test_when_a_literal_is_healed(live, options, healed):
    backend = Recording(live.engine)
    expression = sgl.gen("x", **{"regex": "[0-9]{3}", "max_tokens": 8, **options})
    sgl.function(lambda s: s.__iadd__("p " + expression)).run(backend=backend)
    assert [isinstance(params.constraint, Prefixed) for _, params in backend.seen] == [healed]


TAGS = {"type": "structural_tag", "format": {"type": "any_text"}}


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"constraint": Regex("[0-9]+")}, True),
        ({"constraint": Regex("[0-9]+"), "stop_outside": False}, False),
        ({"constraint": StructuralTag.of(TAGS)}, None),
        ({"constraint": StructuralTag.of(TAGS), "stop_outside": True}, True),
        ({}, None),
    ],
)
def test_which_gens_end_outside_their_constraint_by_themselves(live, options, sent):
    backend = Recording(live.engine)
    sampling = sgl.SamplingParams(max_new_tokens=3, **options)
    program = sgl.function(lambda s: s.__iadd__("p" + sgl.gen("x")))
    program.run(backend=backend, sampling=sampling)
    own = sgl.function(lambda s: s.__iadd__("p" + sgl.gen("x", stop_outside=False)))
    own.run(backend=backend, sampling=sampling)
    assert backend.seen[0][1].stop_outside == sent
    assert backend.seen[1][1].stop_outside is False


def test_a_prefix_stands_before_each_text_of_a_constraint():
    tokens = [bytes([byte]) for byte in range(256)]
    compiler = GrammarCompiler(Vocabulary([*tokens, b""], eos_token_ids=[256]))
    for constraint, text in [
        (Regex("[0-9]+"), "42"),
        (JsonSchema.of({"type": "object"}, max_whitespace=0), '{"a":1}'),
        (Grammar('start: "a" start?', "lark"), "aaa"),
    ]:
        compiled = compiler.compile(Prefixed(" é", constraint))
        assert GrammarMatcher(compiled).accept_string(" é" + text)
        assert not GrammarMatcher(compiled).accept_string(text)
