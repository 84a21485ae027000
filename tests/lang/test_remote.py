"""Remote backends against servers that misbehave, and what is sent to which dialect."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import sglang_lite as sgl
from sglang_lite.constraint import Choice, Grammar, JsonSchema, Prefixed, Regex, StructuralTag
from sglang_lite.errors import BackendError
from sglang_lite.lang.backends.lowering import check_answer, openai_params, sglang_params
from sglang_lite.runtime.server.schemas.constraints import JsonStyle, native_constraint
from sglang_lite.sampling_params import SamplingParams


class Script:
    """A server that answers each path with the next of its scripted answers."""

    def __init__(self):
        self.answers = {"/get_model_info": [(200, '{"model_path": "m"}')] * 9}
        self.requests = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                size = int(self.headers.get("content-length") or 0)
                script.requests.append((self.path, self.rfile.read(size).decode()))
                status, body = script.answers[self.path].pop(0)
                if status == 0:  # hang up without an answer
                    self.close_connection = True
                    return
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

            do_GET = do_POST = answer

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def script():
    script = Script()
    yield script
    script.server.shutdown()
    script.server.server_close()


def event(text, reason=None, **meta):
    finish = None if reason is None else {"type": reason}
    return json.dumps({"text": text, "meta_info": {"id": "r", "finish_reason": finish, **meta}})


def sse(*events):
    return "".join(f"data: {e}\n\n" for e in events)


@sgl.function
def program(s, i=0):
    s += "p" + sgl.gen("x", max_tokens=9)


def endpoint(script, **options):
    return sgl.RuntimeEndpoint(script.url, **{"retries": 1, **options})


def test_line_separators_in_texts_do_not_end_an_event(script):
    text = "a\u2028b\u0085c 🙂\n"
    script.answers["/generate"] = [(200, sse(event("a"), event(text, "stop"), "[DONE]"))]
    state = program.run(backend=endpoint(script), stream=True)
    assert list(state.text_iter("x")) == ["a", text[1:]]


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (500, "<html>oops</html>", "HTTP 500.*oops"),
        (400, '{"error": {"message": "bad regex"}}', "HTTP 400.*bad regex"),
        (200, "<html>proxy</html>", r"without \[DONE\]"),
        (200, sse("not json"), "not JSON"),
        (200, sse(event("half")), r"without \[DONE\]"),
        (200, sse(event("half"), "[DONE]"), "without a finish reason"),
        (200, sse('{"error": {"message": "died"}}'), "died"),
        (0, "", "RemoteProtocolError|ReadError"),
    ],
)
def test_bad_answers_show_status_and_body(script, status, body, expected):
    script.answers["/generate"] = [(status, body)] * 3
    with pytest.raises(sgl.ProgramError, match=expected) as caught:
        program.run(backend=endpoint(script))
    assert isinstance(caught.value.__cause__, BackendError)


def test_an_overloaded_server_is_asked_again_a_bounded_number_of_times(script):
    good = (200, sse(event("fine", "stop"), "[DONE]"))
    script.answers["/generate"] = [(503, "later"), good]
    assert program.run(backend=endpoint(script))["x"] == "fine"
    script.answers["/generate"] = [(503, "later")] * 5
    with pytest.raises(sgl.ProgramError, match="HTTP 503"):
        program.run(backend=endpoint(script))
    assert len(script.answers["/generate"]) == 3


def test_one_broken_connection_fails_one_row(script):
    good = (200, sse(event("fine", "stop"), "[DONE]"))
    script.answers["/generate"] = [good, (0, ""), good]
    states = program.run_batch(
        [(i,) for i in range(3)],
        backend=endpoint(script),
        on_error="return",
        max_concurrency=1,
    )
    assert [state.error() is None for state in states] == [True, False, True]


def test_the_servers_answer_is_checked_against_the_constraint(script):
    script.answers["/generate"] = [(200, sse(event("no number", "stop"), "[DONE]"))] * 2
    with pytest.raises(sgl.ProgramError, match="ignored the constraint"):
        sgl.function(lambda s: s.__iadd__("p" + sgl.gen("x", regex="[0-9]+"))).run(
            backend=endpoint(script)
        )


def test_a_foreign_server_without_a_template_gets_chatml_text(script):
    script.answers["/generate"] = [(200, sse(event("fine", "stop"), "[DONE]"))]

    @sgl.function
    def chat(s):
        s += sgl.user("q") + sgl.assistant(sgl.gen("x"))

    chat.run(backend=endpoint(script, chat_template_name="chatml"))
    sent = json.loads(script.requests[-1][1])
    assert sent["text"] == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    assert sent["sampling_params"] == {"temperature": 1.0, "max_new_tokens": 128}


def test_sglangs_words():
    params = SamplingParams(
        max_new_tokens=5, seed=3, stop="x", logit_bias={7: 1.0}, constraint=Choice(("a.", "b"))
    )
    assert sglang_params(params) == {
        "max_new_tokens": 5,
        "temperature": 1.0,
        "sampling_seed": 3,
        "stop": ["x"],
        "logit_bias": {"7": 1.0},
        "regex": r"a\.|b",
    }
    closed = JsonSchema.of({"properties": {"a": {"properties": {}}}}, additional_properties=False)
    schema = json.loads(sglang_params(SamplingParams(constraint=closed))["json_schema"])
    assert schema["additionalProperties"] is False
    assert schema["properties"]["a"]["additionalProperties"] is False
    with pytest.raises(sgl.NotSupported, match="Lark"):
        sglang_params(SamplingParams(constraint=Grammar("start: A", "lark")))
    with pytest.raises(sgl.NotSupported, match="'root'"):
        sglang_params(SamplingParams(constraint=Grammar("root ::= 'a'", start="b")), ours=True)


CONSTRAINTS = [
    Regex("a+"),
    Choice(("a.", "b")),
    Grammar("root ::= 'a'"),
    Grammar('start: "a"', "lark"),
    JsonSchema.of({"type": "integer"}),
    JsonSchema.of(
        {"type": "object"},
        property_order="any",
        max_whitespace=2,
        additional_properties=False,
        max_digits=9,
        separators=(", ", ": "),
    ),
    Prefixed(" ", JsonSchema.of({"type": "integer"}, max_digits=3)),
    StructuralTag.of({"type": "regex", "pattern": "a"}),
]


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=repr)
def test_every_parameter_comes_through_to_a_server_of_ours(constraint):
    params = SamplingParams(
        max_new_tokens=7,
        min_new_tokens=2,
        n=2,
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        frequency_penalty=0.2,
        presence_penalty=0.3,
        repetition_penalty=1.1,
        stop=("a", "b"),
        stop_token_ids=(3,),
        stop_regex=("x+",),
        no_stop_trim=True,
        ignore_eos=True,
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        seed=11,
        logit_bias={5: 1.0},
        stop_outside=True,
        constraint=constraint,
    )
    defaults = SamplingParams()
    assert all(getattr(params, name) != getattr(defaults, name) for name in vars(defaults))
    sent = json.loads(json.dumps(sglang_params(params, ours=True)))
    style = JsonStyle(max_digits=40)
    wire = native_constraint(sent, style)
    assert SamplingParams.from_dict(sent).replace(constraint=wire.constraint) == styled(
        params, style
    )


def test_no_limit_is_no_limit_on_a_server():
    params = SamplingParams(max_new_tokens=None)
    assert sglang_params(params)["max_new_tokens"] is None
    assert sglang_params(params, ours=True)["max_new_tokens"] > 1_000_000
    assert "max_completion_tokens" not in openai_params(params, "openai", chat=True)
    with pytest.raises(sgl.NotSupported, match="max_new_tokens"):
        openai_params(params, "vllm", chat=False)


def styled(params, style):
    """With the server's cap of digits where the constraint has none."""
    constraint = params.constraint
    if isinstance(constraint, JsonSchema) and constraint.max_digits is None:
        return params.replace(constraint=replace(constraint, max_digits=style.max_digits))
    return params


def test_dialects_of_openais_api():
    regex = SamplingParams(constraint=Regex("a+"), top_k=4, min_new_tokens=1)
    assert openai_params(regex, "vllm", chat=True) == {
        "temperature": 1.0,
        "max_tokens": 128,
        "top_k": 4,
        "min_tokens": 1,
        "structured_outputs": {"regex": "a+"},
    }
    assert openai_params(regex, "sglang", chat=True)["regex"] == "a+"
    whole = SamplingParams(no_stop_trim=True)
    assert openai_params(whole, "vllm", chat=True)["include_stop_str_in_output"] is True
    assert openai_params(whole, "sglang", chat=True)["no_stop_trim"] is True
    spaces = SamplingParams(spaces_between_special_tokens=False)
    with pytest.raises(sgl.NotSupported, match="spaces_between"):  # its chat API has no such field
        openai_params(spaces, "sglang", chat=True)
    spec = {"type": "structural_tag", "structures": [], "triggers": []}
    tag = SamplingParams(constraint=StructuralTag.of(spec))
    assert openai_params(tag, "sglang", chat=True)["response_format"] == spec
    assert openai_params(tag, "vllm", chat=True)["structured_outputs"]["structural_tag"]
    with pytest.raises(sgl.NotSupported, match="min_new_tokens"):
        openai_params(regex, "openai", chat=True)
    schema = SamplingParams(constraint=JsonSchema.of({"type": "object"}))
    answer = openai_params(schema, "openai", chat=True)
    assert answer["max_completion_tokens"] == 128
    assert answer["response_format"]["json_schema"]["schema"] == {"type": "object"}
    for constraint in (Choice(("a",)), Grammar("root ::= 'a'"), Regex("a")):
        with pytest.raises(sgl.NotSupported, match=type(constraint).__name__):
            openai_params(SamplingParams(constraint=constraint), "openai", chat=True)


def test_checking_answers():
    schema = JsonSchema.of({"type": "object", "required": ["a"]})
    for constraint, good, bad in [
        (Regex("[一-龥]{2}"), "你好", "你"),
        (Choice(("a", "b")), "a", "c"),
        (schema, '{"a": 1}', '{"b": 1}'),
        (schema, '{"a": 1}', '{"a": 1'),
    ]:
        check_answer(constraint, good)
        with pytest.raises(BackendError):
            check_answer(constraint, bad)
    check_answer(None, "anything")
