"""Speed of token masks under grammars and structural tags, against llguidance and xgrammar.

    python benchmarks/grammars.py --tokenizer FOLDER [--rounds 3]

Each grammar is compiled cold in every engine in turn, in one process with the garbage collector
frozen, and a text of its language is walked token by token: fill the mask, test the token's bit,
commit.  "cold" is the first round: sglang_lite keeps what it learns about a terminal for the
vocabulary, so later grammars with the same terminals are faster.  The other columns take the
smallest time of each token over the rounds.  The grammars are in GBNF, which xgrammar reads as it
is and llguidance through its own converter.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mask_engines import LLGuidance, Ours, XGrammar
from tokenizers import Tokenizer

JSON = r"""
root ::= value
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (pair ("," ws pair)*)? "}" ws
pair ::= string ":" ws value
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= [ \t\n]*
"""
SQL = r"""
root ::= select ";"
select ::= "SELECT " columns " FROM " name (" WHERE " condition)? (" ORDER BY " columns)?
columns ::= "*" | column (", " column)*
column ::= name ("." name)?
condition ::= test ((" AND " | " OR ") test)*
test ::= column " " ("=" | "<>" | "<" | ">" | "<=" | ">=") " " value | "(" condition ")"
value ::= column | [0-9]+ | "'" [^'\n]* "'"
name ::= [a-z_] [a-z0-9_]*
"""
PROGRAM = r"""
root ::= function+
function ::= type " " name "(" (parameter (", " parameter)*)? ") " block "\n"
type ::= "int" | "char" | "void"
parameter ::= type " " name
block ::= "{\n" statement* " "* "}"
statement ::= " "+ (type " " name " = " expr ";" | "return " expr ";" | expr ";" |
              "while (" expr ") " block) "\n"
expr ::= term ((" + " | " * " | " < " | " = ") term)*
term ::= name ("(" (expr (", " expr)*)? ")")? | [0-9]+ | "(" expr ")"
name ::= [a-z_] [a-zA-Z0-9_]*
"""
GRAMMARS = {
    "json": (JSON, json.dumps({"name": "Zürich", "tags": ["a", {"b": [1, -2.5e3]}], "ok": True})),
    "sql": (SQL, "SELECT a.name, total FROM orders WHERE total > 100 AND name <> 'x' ORDER BY a;"),
    "program": (
        PROGRAM,
        "int main(int argc, char argv) {\n  int result = add(argc, 2) + 40;\n"
        "  while (result < 100) {\n    result = result * 2;\n  }\n  return result;\n}\n",
    ),
}


def tools(count: int) -> dict[str, Any]:
    """A structural tag with ``count`` tools of eight parameters."""
    tags = []
    for number in range(count):
        kinds = ["string", "integer"]
        properties = {f"p{i}_{number}": {"type": kinds[i % 2]} for i in range(8)}
        schema = {"type": "object", "properties": properties, "required": [f"p0_{number}"]}
        content = {"type": "json_schema", "json_schema": schema}
        begin = f"<function=tool_{number}>"
        tags.append({"type": "tag", "begin": begin, "content": content, "end": "</function>"})
    text = {"type": "triggered_tags", "triggers": ["<function="], "tags": tags}
    return {"type": "structural_tag", "format": text}


CALL = 'Sure. <function=tool_7>{"p0_7": "hello world", "p1_7": 12}</function> That was all.'


def compilers(folder: Path) -> dict[str, tuple[Any, Callable[[str], Any], Callable[[Any], Any]]]:
    """Name to (engine, compile a GBNF text, compile a structural tag)."""
    from llguidance import gbnf_to_lark

    from sglang_lite.constrained import GrammarCompiler

    ours, guidance, xgrammar = (make(folder, "schema") for make in (Ours, LLGuidance, XGrammar))
    # lark makes the parser of the notation on first use; that is no part of any grammar's time.
    GrammarCompiler(ours.vocabulary).compile_grammar('root ::= "a"')

    def lark(text: str) -> Any:
        grammar = guidance._matcher.grammar_from_lark(gbnf_to_lark.gbnf_to_lark(text))
        return guidance._matcher(guidance.tokenizer, grammar, log_level=0)

    def tags(spec: Any) -> Any:
        raise ValueError("has no such form")

    return {
        "sglang_lite": (
            ours,
            lambda text: GrammarCompiler(ours.vocabulary).compile_grammar(text),
            lambda spec: GrammarCompiler(ours.vocabulary).compile_structural_tag(spec),
        ),
        "llguidance": (guidance, lark, tags),
        "xgrammar": (
            xgrammar,
            xgrammar.compiler.compile_grammar,
            lambda spec: xgrammar.compiler.compile_structural_tag(json.dumps(spec)),
        ),
    }


def walk(engine: Any, compile: Callable[[], Any], tokens: list[int]) -> tuple[int, list[int]]:
    """(ns to the first mask, ns of each token)."""
    started = time.perf_counter_ns()
    matcher = engine.matcher(compile())
    times = []
    for token in tokens:
        before = time.perf_counter_ns() if times else started
        row = engine.fill(matcher)
        first = time.perf_counter_ns() - started
        if not row[token >> 5] >> (token & 31) & 1:
            raise ValueError(f"token {token} is refused")
        engine.accept(matcher, token)
        times.append(time.perf_counter_ns() - before)
        if len(times) == 1:
            times[0], to_first_mask = 0, first
    return to_first_mask, times[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer / "tokenizer.json"))
    engines = compilers(arguments.tokenizer)
    gc.collect()
    gc.freeze()
    columns = ("cold first", "cold max", "first ms", "p50 µs", "p90 µs", "max ms")
    print(f"{'grammar':12}{'engine':14}" + "".join(f"{column:>11}" for column in columns))
    cases = [(name, *case, 0) for name, case in GRAMMARS.items()]
    cases += [(f"{count} tools", tools(count), CALL, 1) for count in (8, 128)]
    for name, source, text, form in cases:
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        for engine_name, (engine, *forms) in engines.items():
            compile = forms[form]
            try:
                rounds = [
                    walk(engine, lambda: compile(source), tokens)  # noqa: B023
                    for _ in range(arguments.rounds)
                ]
            except (ValueError, RuntimeError) as error:
                print(f"{name:12}{engine_name:14}{str(error)[:60]}")
                continue
            first = min(ns for ns, _ in rounds) / 1e6
            times = sorted(map(min, zip(*(times for _, times in rounds), strict=True)))
            middle, high = times[len(times) // 2] / 1e3, times[len(times) * 9 // 10] / 1e3
            cold = rounds[0][0] / 1e6, max(rounds[0][1]) / 1e6
            figures = (*cold, first, middle, high, times[-1] / 1e6)
            print(f"{name:12}{engine_name:14}" + "".join(f"{figure:11.2f}" for figure in figures))


if __name__ == "__main__":
    main()
