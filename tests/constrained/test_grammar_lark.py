"""Lark grammars: the same texts as lark's own Earley parser, and clear refusals."""

from __future__ import annotations

import itertools
import random

import pytest
from lark import Lark
from lark.exceptions import LarkError

from sglang_lite.constrained.grammar import lower_grammar
from sglang_lite.errors import ConstraintError, GrammarTooComplex, InvalidGrammar
from tests.constrained.acceptor import accepts
from tests.constrained.grammar_samples import Sampler, mutations

ARITHMETIC = r"""
start: sum
?sum: product | sum "+" product -> add | sum "-" product -> sub
?product: atom | product "*" atom | product "/" atom
?atom: NUMBER | "-" atom | NAME | "(" sum ")"
%import common.CNAME -> NAME
%import common.NUMBER
%import common.WS_INLINE
%ignore WS_INLINE
"""

JSON = r"""
?start: value
?value: object | array | string | SIGNED_NUMBER -> number | "true" | "false" | "null"
array: "[" [value ("," value)*] "]"
object: "{" [pair ("," pair)*] "}"
pair: string ":" value
string: ESCAPED_STRING
%import common.ESCAPED_STRING
%import common.SIGNED_NUMBER
%import common.WS
%ignore WS
"""

SQL = r"""
start: select ";"?
select: "select"i columns "from"i table [where] [order]
columns: "*" | _list{column}
column: NAME ["." NAME]
table: NAME | "(" select ")"
where: "where"i condition
condition: condition ("and"i | "or"i) condition | column OP value | "(" condition ")"
order: "order by"i _list{order_key}
order_key: column ["asc"i | "desc"i]
value: column | INT | /'[^']*'/
_list{item}: item ("," item)*
OP: "=" | "<>" | "<" | ">" | "<=" | ">="
NAME: /[a-z_]+/
%import common.INT
%ignore / +/
"""

PYTHON_LIKE = r"""
start: statement+
statement: NAME "=" expr _NL | "if" expr ":" _NL block | "return" [expr] _NL | expr _NL
block: (_INDENT statement)+
expr: expr OPERATOR expr | atom trailer*
trailer: "(" [expr ("," expr)*] ")" | "." NAME | "[" expr "]"
atom: NAME | INT | STRING | "(" expr ")" | "[" [expr ("," expr)* ","?] "]"
OPERATOR: "+" | "-" | "==" | "and" | "or"
STRING: /"(?!"").*?(?<!\\)(\\\\)*?"/
NAME: /[a-z_]\w*/
_INDENT: "    "
_NL: "\n"
%import common.INT
%ignore " "
"""

C_LIKE = r"""
start: function+
function: type NAME "(" [parameter ("," parameter)*] ")" block
parameter: type NAME
type: ("int" | "char" | "void") "*"*
block: "{" statement* "}"
statement: block | "while" "(" expr ")" statement | "return" expr? ";" | expr ";"
         | type NAME ["=" expr] ";"
?expr: NAME "=" expr | compare
?compare: compare ("<" | "==") term | term
?term: term ("+" | "*") unary | unary
?unary: "*" unary | "&" NAME | call
?call: call "(" [expr ("," expr)*] ")" | NAME | INT | "(" expr ")"
NAME: /[a-z][a-z0-9]*/
INT: /0|[1-9][0-9]{0,4}/
COMMENT: "/*" /(.|\n)*?/ "*/"
%ignore /[ \n]+/
%ignore COMMENT
"""

TEXTS = {
    "arithmetic": (
        ARITHMETIC,
        ["1", " 1 + 2*(a-b) ", "-x/ 2.5e3", "((1))"],
        ["", "1 +", "(1", "+1"],
    ),
    "json": (
        JSON,
        ['{"a" : [1, -2.5e+3, "x\\"y", null]}', "[]", '"\\\\"', " true "],
        ['{"a" 1}', "[1,]", '"a"b"', "{,}", '"\\"'],
    ),
    "sql": (
        SQL,
        ["select * from t", "SELECT a.b, c FROM t Where a=1 and b<>'x y' order by a desc, b;"],
        ["select from", "select * from t where", "select a, from t"],
    ),
    "python": (
        PYTHON_LIKE,
        ['x = f(1, "a\\"b").y[0] + 2\n', "if x:\n    return\n    y = [1,2,]\n", 'print("é")\n'],
        ["x = \n", "if x\n", 'x = "a"b"\n'],
    ),
    "c": (
        C_LIKE,
        ["int main(){return f(x)+1;}", "void f(int a, char *b) { /* x; */ while(a<1) a=a+b; }"],
        ["int main(){", "int main(){return 1}", "int f(){ /* x */ */ }"],
    ),
}


def lark_parser(text: str) -> Lark:
    return Lark(text, parser="earley", lexer="dynamic_complete", ambiguity="resolve")


def lark_accepts(parser: Lark, text: str) -> bool:
    try:
        parser.parse(text)
    except LarkError:
        return False
    return True


@pytest.mark.parametrize("name", TEXTS)
def test_accepts_what_the_grammar_says(name: str) -> None:
    grammar, good, bad = TEXTS[name]
    language = lower_grammar(grammar, "lark")
    for text in good:
        assert accepts(language, text), text
    for text in bad:
        assert not accepts(language, text), text


@pytest.mark.parametrize("name", TEXTS)
def test_random_derivations_and_mutations_agree_with_lark(name: str) -> None:
    grammar, good, bad = TEXTS[name]
    language = lower_grammar(grammar, "lark")
    parser = lark_parser(grammar)
    sampler = Sampler(language, seed=7)
    rng = random.Random(11)
    texts = [*good, *bad]
    for _ in range(25):
        text = sampler.sample(depth=6).decode()
        if len(text) <= 60:
            texts.append(text)
    alphabet = "".join(sorted(set("".join(texts))))
    texts += [m for text in texts[:20] for m in mutations(text, alphabet, rng)]
    verdicts = set()
    for text in texts:
        expected = lark_accepts(parser, text)
        verdicts.add(expected)
        assert accepts(language, text) == expected, text
    assert verdicts == {True, False}


SMALL = {
    "indirect left recursion": ('start: a "x" | "y"\na: start "z" | "w"', "xyzw", 6),
    "hidden left recursion": ('start: n start "x" | "y"\nn: "n"?', "nxy", 6),
    "unit cycle": ('start: a | "x"\na: start | start "y" a', "xyz", 6),
    "nullable left recursion": ('start: start a start | a\na: "a" | b?\nb: "b" start', "abc", 5),
    "three rules": ('start: a "1" | "x"\na: b "2" | start\nb: start "3" | a | "y"', "123xy", 5),
    "nullable loop": ('start: ("a"? "b"?)* "c"', "abc", 6),
    "counted nullable": ('start: ("a"?)~2..3 "b"~2', "abc", 6),
    "optionals": ('start: ["a"] ["b"] ["a"] ["c"]', "abc", 5),
    "ignore": ('start: "a" b+\nb: "b"\n%ignore " "\n%ignore "-"', "ab -", 5),
    "keyword and name": ('start: "if" NAME\nNAME: /[if]+/', "ifx", 6),
    "terminals in terminals": ('start: A\nA: B~2 "y" | C? "x"\nB: "a" | C\nC: /b+/', "abxy", 5),
    "case": ('start: "ab"i /c/i "D"', "abcdABCD", 4),
    "range": ('start: "b".."d"+ | "é".."ë"', "abcdéê", 4),
    "lazy": ("start: STRING+\nSTRING: /'.*?'/", "'ab", 6),
    "templates": (
        'start: list{pair{"a", "b"}} | list{"c"}\nlist{x}: "[" x ("," x)* "]"\npair{x, y}: x y',
        "[,]abc",
        5,
    ),
    "higher-order template": (
        'start: twice{plus, "a"}\ntwice{f, x}: f{x} f{x}\nplus{x}: x "+"?',
        "a+b",
        6,
    ),
    "extend and override": (
        'start: a b\na: "x"\nb: "y"\n%extend a: "z"\n%override b: "w"',
        "xyzw",
        4,
    ),
    "modifiers and aliases": ('!start: a -> b\n | "y"\n?a: "x" | _c\n_c: "c"', "xyc", 3),
}


@pytest.mark.parametrize("name", SMALL)
def test_every_short_text_agrees_with_lark(name: str) -> None:
    grammar, alphabet, longest = SMALL[name]
    language = lower_grammar(grammar, "lark")
    parser = lark_parser(grammar)
    accepted = 0
    for length in range(1, longest + 1):
        for letters in itertools.product(alphabet, repeat=length):
            text = "".join(letters)
            expected = lark_accepts(parser, text)
            accepted += expected
            assert accepts(language, text) == expected, text
    assert accepted


def test_fourteen_optionals_stay_small() -> None:
    """lark#506: an expansion of optionals into alternatives is exponential."""
    names = [f"p{chr(97 + i)}" for i in range(14)]
    rules = "\n".join(f'{name}: "{name}"' for name in names)
    language = lower_grammar(f"start: {' '.join(f'[{name}]' for name in names)}\n{rules}", "lark")
    assert len(language.rules) == 15
    assert accepts(language, "".join(names))
    assert accepts(language, "papcpn")
    assert not accepts(language, "pcpa")


def test_json_and_regex_can_be_embedded() -> None:
    grammar = """
    start: "call" args | QUOTE
    args: %json {"type": "object", "properties": {"a": {"type": "integer"}},
                 "required": ["a"], "additionalProperties": false}
    QUOTE: "'" %regex {"substring_words": "the quick brown fox"} "'"
    %ignore " "
    """
    language = lower_grammar(grammar, "lark")
    for text in ('call {"a": 1}', "'quick brown'", "''", "'the quick brown fox'"):
        assert accepts(language, text), text
    for text in ('call {"a": "x"}', "'brown quick'", "'uick'", "call"):
        assert not accepts(language, text), text


def test_recursive_schemas_can_be_embedded_twice() -> None:
    schema = (
        '{"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}'
    )
    language = lower_grammar(f'start: %json {schema} "|" %json {schema}', "lark")
    assert accepts(language, "[[],[[]]]|[]")
    assert not accepts(language, "[[]|[]")


def test_names_of_a_library_do_not_clash_with_own_ones() -> None:
    grammar = """
    start: own | item
    %import lark.name -> item
    own: "<" name ">"
    name: "1"
    """
    language = lower_grammar(grammar, "lark")
    for text in ("<1>", "abc", "ABC"):
        assert accepts(language, text), text
    for text in ("1", "<abc>", "aBc"):
        assert not accepts(language, text), text


REFUSED = [
    ("start: a", 1, 8, "'a' is not defined"),
    ('start: "a" B\nb: C\n', 1, 12, "'B' is not defined"),
    ('start: "a"\nb: "x" C\n', 2, 8, "'C' is not defined"),
    ('start: "a\n', 1, 8, "string does not end"),
    ("start: /a\n", 1, 8, "regular expression does not end"),
    ('start: ("a"\n', 1, 12, "end of the line"),
    ('start: "a" )\n', 1, 12, "unexpected ')'"),
    ('start: a\na: "x" a', 1, 1, "'start' can never end"),
    ('start: "a" | b\nb: b "x"', 2, 1, "'b' can never end"),
    ('start: a\na.2: "x"', 2, 1, "priorit"),
    ('start: A\nA.2: "x"', 2, 1, "priorit"),
    ("start: A\nA: B\nB: A", 3, 4, "refers to itself"),
    ("start: A\nA: start", 2, 4, "rule 'start' is used in a terminal"),
    ('start: "a"~3..2', 1, 12, "impossible"),
    ('start: "z".."a"', 1, 8, "not a range"),
    ('start: "a"\nstart: "b"', 2, 1, "defined twice"),
    ("start: A\n%declare A", 1, 8, "declared but not defined"),
    ("%import .secret.x\nstart: x", 1, 9, "not imported from files"),
    ("%import os.path\nstart: path", 1, 9, "no library 'os'"),
    ("%import common.NOTHING\nstart: NOTHING", 1, 16, "has no 'NOTHING'"),
    ('start: ""', 1, 8, "empty literal"),
    ("start: /(a)\\1/", 1, 8, "/(a)"),
    ("start: /a(/", 1, 8, "/a(/"),
    ("start: /if(?![a-z])/", 1, 8, "looks beyond"),
    ("start: /\\bif/", 1, 8, "looks beyond"),
    ("start: /a*?/", 1, 8, "no fixed text follows"),
    ("start: /'.*?'x*/", 1, 8, "no fixed text follows"),
    ("start: A\nA: /'.*?'/+", 1, 8, "no fixed text follows"),
    ("start: <|tool|>", 1, 8, "tokens"),
    ("start: %json {", 1, 15, "not JSON"),
    ('start: a{"x"}\na: "y"', 1, 8, "takes 0 arguments"),
    ('a: "x"', None, None, "no rule 'start'"),
]


@pytest.mark.parametrize(("text", "line", "column", "message"), REFUSED)
def test_refusals_name_the_place(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        lower_grammar(text, "lark")
    assert message in str(caught.value)
    assert (caught.value.line, caught.value.column) == (line, column)


BOMBS = {
    "nesting": "start: " + "(" * 5000 + '"a"' + ")" * 5000,
    "deep brackets": "start: " + "[" * 5000 + '"a"' + "]" * 5000,
    "endless template": 'start: a{"x"}\na{x}: x a{b{x}}\nb{x}: x x',
    "repeat": 'start: "a"~1..9999999999',
    "long text": "start: " + '"a" ' * 600_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused(name: str) -> None:
    with pytest.raises(GrammarTooComplex):
        lower_grammar(BOMBS[name], "lark")


def test_doubling_rules_terminals_and_templates_stay_linear() -> None:
    levels = 60
    rules = "".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(levels))
    language = lower_grammar(f'start: r0 | "x"\n{rules}r{levels}: "a"', "lark")
    assert accepts(language, "x")
    names = [f"T{chr(65 + i // 26)}{chr(65 + i % 26)}" for i in range(levels + 1)]
    terminals = "".join(f"{a}: {b} {b}\n" for a, b in itertools.pairwise(names))
    language = lower_grammar(f'start: {names[0]} | "x"\n{terminals}{names[-1]}: /[ab]/', "lark")
    assert accepts(language, "x")
    assert not accepts(language, "ab")
    templates = "".join(f"t{i}{{x}}: t{i + 1}{{d{{x, x}}}}\n" for i in range(levels))
    grammar = f'start: t0{{"a"}} | "x"\nd{{x, y}}: x y\n{templates}t{levels}{{x}}: x'
    assert accepts(lower_grammar(grammar, "lark"), "x")


def test_unterminated_literals_do_not_backtrack() -> None:
    for text in (
        'start: "' + "\\\\" * 5000,
        "start: /" + "\\\\" * 5000,
        "start: a" + "\n" * 50_000,
    ):
        with pytest.raises(ConstraintError):
            lower_grammar(text, "lark")
