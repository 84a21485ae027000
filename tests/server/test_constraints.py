"""Every dialect of constraints on the wire: the same constraint, or a 400 that says why."""

from __future__ import annotations

import json

import pytest

from sglang_lite.constraint import Choice, Grammar, JsonSchema, Regex, StructuralTag
from tests.server.live import Live, error_of, serving

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def schema_of(schema: dict, **options: object) -> JsonSchema:
    """The constraint with the server's bounds and layout."""
    layout = {} if options else {"separators": (", ", ": ")}
    return JsonSchema.of(schema, max_digits=40, **layout, **options)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, schema_of({"type": "object"})),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, schema_of(SCHEMA)),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, schema_of(SCHEMA)),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA, "strict": "true"},
                }
            },
            schema_of(SCHEMA),
        ),
        ({"json_schema": SCHEMA}, schema_of(SCHEMA)),
        ({"json_schema": json.dumps(SCHEMA)}, schema_of(SCHEMA)),
        ({"guided_json": SCHEMA}, schema_of(SCHEMA)),
        ({"structured_outputs": {"json": SCHEMA}}, schema_of(SCHEMA)),
        ({"structured_outputs": {"json_object": True}}, schema_of({"type": "object"})),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            schema_of(SCHEMA, max_whitespace=0),
        ),
        ({"regex": "a+"}, Regex("a+")),
        ({"guided_regex": "a+"}, Regex("a+")),
        ({"structured_outputs": {"regex": "a+"}}, Regex("a+")),
        ({"guided_choice": ["x", "y"]}, Choice(("x", "y"))),
        ({"structured_outputs": {"choice": ["x", "y"]}}, Choice(("x", "y"))),
        ({"ebnf": 'root ::= "a"'}, Grammar('root ::= "a"', "ebnf")),
        ({"grammar": 'root ::= "a"'}, Grammar('root ::= "a"', "ebnf")),
        ({"guided_grammar": 'start: "a"'}, Grammar('start: "a"', "lark")),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, Grammar('start: "a"', "lark")),
        ({"structural_tag": '{"type": "any_text"}'}, StructuralTag('{"type": "any_text"}')),
        ({"regex": "", "ebnf": "", "guided_json_object": False}, None),
    ],
)
def test_every_dialect_is_the_same_constraint(live: Live, fields: dict, expected: object) -> None:
    assert live.chat(**fields).status_code == 200
    assert live.engine.requests[0].sampling_params.constraint == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"separators": (", ", ": "), "max_digits": 40}),
        ({"constrained_json_max_whitespace_cnt": 3}, {"max_whitespace": 3, "max_digits": 40}),
        ({"constrained_json_max_whitespace_cnt": 16}, {"max_digits": 40}),
        (
            {"constrained_json_disable_any_whitespace": True},
            {"max_whitespace": 0, "max_digits": 40},
        ),
        ({"constrained_json_max_digits": 0}, {"separators": (", ", ": ")}),
    ],
)
def test_the_servers_layout_of_json(options: dict, expected: dict) -> None:
    with serving(**options) as live:
        live.chat(json_schema=SCHEMA)
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5}
        form = {"type": "json_schema", "schema": SCHEMA}
        live.post("/v1/messages", **body, output_config={"format": form})
        made = [request.sampling_params.constraint for request in live.engine.requests]
        assert made == [JsonSchema.of(SCHEMA, **expected)] * 2


@pytest.mark.parametrize("given", [{"max_whitespace": 2}, {"separators": (",", ":")}, {}])
def test_generate_lays_json_out_as_its_options_say(live: Live, given: dict) -> None:
    params = {"json_schema": json.dumps(SCHEMA), "json_options": given}
    assert live.post("/generate", text="a", sampling_params=params).status_code == 200
    made = live.engine.requests[0].sampling_params.constraint
    assert made == JsonSchema.of(SCHEMA, max_digits=40, **given)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"regex": "a", "guided_json": SCHEMA}, "regex"),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"json": ""}}, "structured_outputs.json"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"guided_choice": []}, "guided_choice"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"guided_decoding_backend": "xgrammar"}, "guided_decoding_backend"),
        ({"my_schema": False}, "my_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "text", "schema": SCHEMA}}, "response_format.schema"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a b", "schema": {}},
                }
            },
            "response_format.json_schema.name",
        ),
    ],
)
def test_constraints_that_are_refused(live: Live, fields: dict, param: str) -> None:
    assert error_of(live.chat(**fields))["param"] == param
    assert not live.engine.requests


def test_unsupported_keyword_names_pointer_and_field(live: Live) -> None:
    schema = {"properties": {"a": {"$ref": "http://elsewhere/schema"}}}
    fields = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for stream in (False, True):
        error = error_of(live.chat(response_format=fields, stream=stream))
        assert error["code"] == "unsupported_schema_keyword"
        assert error["param"] == "response_format.json_schema.schema"
        assert "'$ref'" in error["message"]
        assert "properties/a" in error["message"]
    assert live.chat().status_code == 200


def test_invalid_regex(live: Live) -> None:
    error = error_of(live.chat(regex="["))
    assert (error["code"], error["param"]) == ("invalid_regex", "regex")
