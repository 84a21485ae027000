"""Every field of every request: values that are accepted, and values that are a 400."""

from __future__ import annotations

from typing import Any

from tests.server.live import hello

Table = dict[str, tuple[list[Any], list[Any]]]

TOOL = {"type": "function", "function": {"name": "f"}}
FLAT_TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
QUESTION = {"type": "choice", "instructions": "q", "choices": [{"value": "a"}, {"value": "b"}]}
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<a>", "schema": {"enum": [1]}, "end": "</a>"}],
    "triggers": ["<a>"],
}
HUGE = 2**63

CHAT: Table = {
    "temperature": ([0, 0.5, 2], [-0.01, 2.01, "1", True, [1]]),
    "top_p": ([0.01, 1], [0, 1.01, -1, "1"]),
    "top_k": ([-1, 0, 1, 50_000], [-2, 1.5, "1"]),
    "min_p": ([0, 1], [-0.1, 1.1]),
    "frequency_penalty": ([-2, 2], [-2.1, 2.1]),
    "presence_penalty": ([-2, 2], [-2.1, 2.1]),
    "repetition_penalty": ([0.01, 2], [0, -1, 2.1]),
    "n": ([1, 64], [0, -1, 65, 1.5, "2", HUGE]),
    "seed": ([0, -HUGE, HUGE - 1], [HUGE, -HUGE - 1, 0.5, "1"]),
    "max_tokens": ([1, 10**9], [0, -1, 1.5, "9", True]),
    "max_completion_tokens": ([1, 10**9], [0, -1]),
    "min_tokens": ([0, 3], [-1, 1.5]),
    "stop": (["a", [str(i) for i in range(32)], "x" * 1024],
             ["", [""], [str(i) for i in range(33)], [1], "x" * 1025, {"a": 1}]),
    "stop_token_ids": ([[0], [257], []], [[-1], [258], [HUGE], [None], ["1"], 3]),
    "logit_bias": ([{"0": -100}, {"257": 100}, {}], [{"-1": 1}, {"a": 1}, {"1": 101}, [1]]),
    "stream": ([True, False], [1, "true"]),
    "ignore_eos": ([True, False], [1, "true"]),
    "skip_special_tokens": ([True, False], [0]),
    "priority": ([0, -(2**31), 2**31 - 1], [2**31, -(2**31) - 1, 1.5]),
    "cache_salt": (["", "x" * 128], ["x" * 129, 1]),
    "rid": (["a-1.b:c_D", "x" * 128], ["", "a b", "x" * 129, "é"]),
    "request_id": (["a-1"], ["a\n"]),
    "timeout": ([0.5, 1000], [0, -1, "1"]),
    "return_token_ids": ([True], ["yes"]),
    "logprobs": ([True, False], [5, "true"]),
    "parallel_tool_calls": ([True, False], ["no"]),
    "tool_choice": (["none", "auto"], ["required", "any", {"type": "function"}, 1]),
    "response_format": (
        [{"type": "text"}, {"type": "json_object"}],
        ["json", {"type": "xml"}, {"type": "json_schema"}, {}, {"type": "text", "schema": {}}],
    ),
    "chat_template_kwargs": (
        [{}, {"enable_thinking": False}],
        [{"tools": 1}, {"chat_template": "x"}, {"a b": 1}, {"a": "x" * 5000}, [1]],
    ),
    "stream_options": ([None], [{}, {"include_usage": True}, 1]),
    "tools": ([None, [TOOL]], [[], {}, [{}], [{"type": "function"}], [{"type": "retrieval"}]]),
    "messages": (
        [hello(), [{"role": role, "content": "a"} for role in ("system", "user", "assistant")],
         [{"role": "developer", "content": [{"type": "text", "text": "a"}]}, *hello()]],
        [[], {}, "a", [{}], [{"role": "robot", "content": "a"}], [{"role": "user"}],
         [{"content": "a"}], [{"role": "user", "content": [{"type": "image_url"}]}]],
    ),
    "model": ([None, "", "default", "toy"], ["gpt-4", 3]),
    "stop_regex": (["a+", ["a", "b"]], [1, {"a": 1}]),
    "include_stop_str_in_output": ([True, False], [1]),
    "no_stop_trim": ([True, False], ["yes"]),
    "spaces_between_special_tokens": ([True, False], [0]),
    "top_logprobs": ([0, 20], [-1, 21, True, 1.5, "1"]),
    "add_generation_prompt": ([True, False], [1]),
    "continue_final_message": ([False], [True, 1]),
    "chat_template": ([None], ["{{ messages }}", 1]),
    "regex": (["a{3}", ""], ["[", 1]),
    "ebnf": (['root ::= "a"', ""], ["root", 1]),
    "grammar": (['root ::= "a"', 'start: "a"'], ["a", 1]),
    "json_schema": ([{"type": "null"}, '{"enum": [1]}', True], [{"type": "x"}, "{", 1]),
    "structural_tag": ([TAG], [{"type": "x"}, "{", 1]),
    "structured_outputs": (
        [{"json": {"enum": [1]}}, {"regex": "a"}, {"choice": ["a"]}, {"grammar": 'root ::= "a"'},
         {"json_object": True}, {"structural_tag": TAG},
         {"json": {"type": "object"}, "disable_any_whitespace": True,
          "disable_additional_properties": True}],
        [{}, {"json": ""}, {"json_object": False}, {"regex": "a", "choice": ["a"]}, {"choice": []},
         {"regex": "a", "disable_any_whitespace": True}, {"whitespace_pattern": "x"}, "a"],
    ),
    "guided_json": ([{"enum": [1]}, '{"enum": [1]}'], [{"type": "x"}, 1]),
    "guided_regex": (["a"], ["[", 1]),
    "guided_choice": ([["a", "b"]], [[], [1], "a"]),
    "guided_grammar": (['root ::= "a"'], ["a", 1]),
    "guided_json_object": ([True, False], ["yes"]),
}  # fmt: skip
COMPLETION: Table = {
    "max_tokens": ([1, 10**9], [0, -1]),
    "logprobs": ([0, 20], [-1, 21, True, 1.5]),
    "best_of": ([1], [0, 2]),
    "suffix": ([""], ["x", 1]),
    "echo": ([True, False], [1]),
    "prompt": (["a", ["a"] * 256, [1], [[1], [2]]], ["", [], [""], [[]], None, [258], [-1], 3]),
    "add_special_tokens": ([True, False], [1]),
}  # fmt: skip
NATIVE: Table = {
    "max_new_tokens": ([0, 1, 10**9], [-1, 1.5]),
    "temperature": ([0, 100], [-1, "1"]),
    "top_k": ([-1, 0, 5], [-2]),
    "n": ([1, 64], [0, 65]),
    "sampling_seed": ([0, HUGE - 1], [HUGE]),
    "stop": (["a", ["b"]], [[""], 1]),
    "stop_token_ids": ([[0]], [[258], [-1]]),
    "min_new_tokens": ([0], [-1]),
    "ignore_eos": ([True], [1]),
    "stop_outside": ([True, False], [1, "yes"]),
    "top_p": ([0.01, 1], [0, 1.01, "1"]),
    "min_p": ([0, 1], [-0.1, 1.1]),
    "frequency_penalty": ([-2, 2], [-2.1, 2.1]),
    "presence_penalty": ([-2, 2], [-2.1, 2.1]),
    "repetition_penalty": ([0.01, 2], [0, 2.1]),
    "seed": ([0, -HUGE, HUGE - 1], [HUGE, 0.5]),
    "stop_regex": (["a"], [1]),
    "no_stop_trim": ([True], [1]),
    "skip_special_tokens": ([False], [1]),
    "spaces_between_special_tokens": ([False], [1]),
    "logit_bias": ([{"0": -100}], [{"1": 101}, {"a": 1}, 1]),
    "json_schema": (['{"enum": [1]}', {"enum": [1]}, ""], ["{", '{"type": "x"}', 1]),
    "regex": (["a", ""], ["[", 1]),
    "ebnf": (['root ::= "a"', ""], ["root", 1]),
    "lark": (['start: "a"'], ["start", 1]),
    "choices": ([["a"]], [[], [1], 3]),
    "structural_tag": ([TAG], ["{", 1]),
    "json_options": ([{"max_whitespace": 0}, {"separators": [", ", ": "]}, {"max_digits": 3}],
                     [{"max_whitespace": -1}, {"max_digits": 0}, {"nope": 1}, 3]),
    "prefix": (["a", ""], [1, ["a"]]),
}  # fmt: skip
GENERATE: Table = {
    "logprob_start_len": ([-1, 0, 1], ["0", 1.5]),
    "top_logprobs_num": ([0, 20], ["1", 1.5]),
    "token_ids_logprob": ([[0], [257]], [[258], [-1], ["a"]]),
    "return_logprob": ([True, False], [1]),
    "priority": ([0, 5], [2**31]),
    "timeout": ([1], [0]),
    "text": (["a", ["a", "b"]], ["", [], [""], 3, [3]]),
    "input_ids": ([[1], [[1], [2]]], [[], [[]], [258], [-1], ["a"], 3]),
    "sampling_params": ([{}, None, [{}]], [[{}, {}], 3, {"nope": 1}]),
    "stream": ([True, False], [1]),
    "return_text_in_logprobs": ([True, False], [1]),
    "rid": (["a", ["b"]], [["a", "b"], 1]),
    "cache_salt": (["", "x" * 128], ["x" * 129, 1]),
}
RESPONSES: Table = {
    "model": ([None, "toy"], ["gpt-4", 3]),
    "input": (
        ["a", [{"role": "user", "content": "a"}],
         [{"role": "user", "content": "a"},
          {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
          {"type": "function_call_output", "call_id": "c", "output": "1"}]],
        [None, 3, [], [{}], [{"type": "reasoning"}], [{"type": "function_call", "name": "f"}]],
    ),
    "instructions": (["a"], [3]),
    "max_output_tokens": ([1, 10**9], [0, -1, "1"]),
    "temperature": ([0, 2], [-1, 2.1]),
    "top_p": ([0.1, 1], [0, 1.1]),
    "text": (
        [{}, {"format": {"type": "text"}}, {"format": {"type": "json_object"}},
         {"format": {"type": "json_schema", "name": "a", "schema": {"enum": [1]}}}],
        [3, {"format": {"type": "xml"}}, {"format": {"type": "json_schema", "name": "a"}}],
    ),
    "tools": ([[], [FLAT_TOOL]], [[{"type": "web_search"}], [{"type": "function"}], 3]),
    "tool_choice": (["none", "auto"], ["required", {"type": "function"}, 3]),
    "parallel_tool_calls": ([True, False], [1]),
    "stream": ([True, False], [1]),
    "store": ([False], [True, 1]),
    "background": ([False], [True]),
    "truncation": (["disabled"], ["auto"]),
    "previous_response_id": ([None], ["resp_1"]),
    "metadata": ([{"a": "b"}], [{"a": 1}, 3]),
}  # fmt: skip
DECISIONS: Table = {
    "model": ([None, "toy"], ["gpt-4"]),
    "input": (["a", [{"role": "user", "content": "a"}]], [None, 3, []]),
    "questions": (
        [[QUESTION], [QUESTION] * 400,
         [{"type": "choice", "instructions": "q", "choices": [{"value": "a"}, {"value": True}]}],
         [{"type": "score", "instructions": "q", "levels": [{"label": "a"}, {"label": "b"}]}]],
        [[], [QUESTION] * 401, [{**QUESTION, "extra": 1}], [{"type": "predicate"}], 3,
         [{"type": "choice", "instructions": "q", "choices": [{"value": "a"}]}],
         [{"type": "choice", "instructions": "q", "choices": [{"value": "a"}, {"value": "a"}]}],
         [{"type": "choice", "instructions": "q",
           "choices": [{"value": str(n)} for n in range(256)]}],
         [{"type": "score", "instructions": "q", "levels": [{"label": "a"}]}],
         [{"type": "score", "instructions": "q",
           "levels": [{"label": str(n)} for n in range(11)]}]],
    ),
}  # fmt: skip
TOKENIZE: Table = {
    "model": ([None, "toy"], ["gpt-4"]),
    "prompt": (["a", ""], [3, ["a"]]),
    "add_special_tokens": ([True, False], [1]),
    "parse_special": ([True, False], [1]),
    "return_token_strs": ([True, False], [1]),
}
TOKENIZE_CHAT: Table = {
    "messages": ([hello()], [3, [{}]]),
    "tools": ([[TOOL]], [[{}], 3]),
    "add_generation_prompt": ([True, False], [1]),
    "continue_final_message": ([False], [1]),
    "chat_template_kwargs": ([{}], [{"tools": 1}, 3]),
}
DETOKENIZE: Table = {
    "model": ([None, "toy"], ["gpt-4"]),
    "tokens": ([[], [0, 257]], [None, [-1], [258], ["a"], 3]),
    "skip_special_tokens": ([True, False], [1]),
    "return_token_bytes": ([True, False], [1]),
}
ABORT: Table = {"rid": (["a"], ["", 1]), "abort_all": ([False], [True, 1])}
