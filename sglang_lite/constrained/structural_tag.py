"""Structural tags to the IR: free text in which triggers start constrained tags.

Read are xgrammar's tree of formats (``{"type": "structural_tag", "format": {...}}``), a format
alone, and SGLang's older ``{"structures": [{"begin", "schema", "end"}], "triggers": [...]}``.  What
works on token ids rather than on text is refused by name.

Free text runs to the *first* occurrence of a trigger, and in a tag to the first occurrence of the
tag's end.  It may stop anywhere but behind a complete trigger.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sglang_lite.constrained import budget, ir
from sglang_lite.constrained.grammar import lower_grammar
from sglang_lite.constrained.grammar_expression import MAX_REPEAT, repeat_node
from sglang_lite.constrained.grammar_rules import Rules
from sglang_lite.constrained.tag_fields import Fields
from sglang_lite.constrained.tag_text import check_keywords, text_until
from sglang_lite.constraint import JsonSchema
from sglang_lite.errors import GrammarTooComplex, InvalidGrammar, InvalidRequest

MAX_DEPTH = 50
"""Deepest nesting of formats."""

_TOKEN_LEVEL = (
    "token",
    "exclude_token",
    "any_tokens",
    "token_triggered_tags",
    "token_dispatch",
)

Ends = tuple[str, ...]
"""What ends the tag around a format: free text stops at the first of them.  () is no tag."""

Tag = tuple[str, ir.Node]
"""What a tag begins with, and the language of its rest, end included."""


def lower_structural_tag(spec: str) -> ir.Language:
    """The language of a structural tag, given as JSON text.

    Raises InvalidGrammar with the path of what is malformed or cannot be enforced, and what the
    front ends of schemas, regexes and grammars raise for the contents of tags.
    """
    try:
        value = json.loads(spec)
    except RecursionError:
        raise GrammarTooComplex("the structural tag is nested too deeply") from None
    except ValueError as error:
        raise InvalidGrammar(f"the structural tag is not JSON: {error}") from None
    lowering = _Lowering()
    if isinstance(value, dict) and "structures" in value:
        root = lowering.structures(Fields(value, ""))
    elif isinstance(value, dict) and value.get("type") == "structural_tag":
        fields = Fields(value, "")
        fields.take("type")
        root = lowering.format(fields.take("format"), "format")
        fields.finish()
    else:
        root = lowering.format(value, "")
    return lowering.rules.language(root)


class _Lowering:
    def __init__(self) -> None:
        self.rules = Rules({})
        self._numbers = itertools.count()
        self._schemas: dict[JsonSchema, ir.Node] = {}
        self._depth = 0
        # Formats that may end in free text take the ends of the tag around them.
        self._open: dict[str, Callable[[Fields, Ends], ir.Node]] = {
            "any_text": self._any_text,
            "triggered_tags": self._triggered_tags,
            "dispatch": self._dispatch,
            "sequence": self._sequence,
            "or": self._or,
            "optional": self._optional,
        }
        self._closed: dict[str, Callable[[Fields], ir.Node]] = {
            "const_string": lambda fields: ir.literal(fields.text("value")),
            "json_schema": self._json_schema,
            "regex": self._regex,
            "grammar": self._grammar,
            "tag": lambda fields: _whole(self._tag(fields)),
            "tags_with_separator": self._tags_with_separator,
            "plus": lambda fields: ir.repeat(self._content(fields), 1),
            "star": lambda fields: ir.repeat(self._content(fields)),
            "repeat": self._repeat,
        }

    def format(self, value: Any, path: str, ends: Ends = ()) -> ir.Node:
        """The language of a format, and of one of ``ends`` after it."""
        budget.check()
        fields = Fields(value, path)
        kind = fields.text("type")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise GrammarTooComplex(f"formats are nested deeper than {MAX_DEPTH}")
        if kind in self._open:
            node = self._open[kind](fields, ends)
        elif kind in self._closed:
            node = ir.sequence(self._closed[kind](fields), _one_of(ends))
        elif kind in _TOKEN_LEVEL:
            raise fields.error(f"'{kind}' works on token ids; only text can be constrained")
        else:
            known = ", ".join((*self._open, *self._closed))
            raise fields.error(f"unknown type '{kind}', known are {known}")
        fields.finish()
        self._depth -= 1
        return node

    def structures(self, fields: Fields) -> ir.Node:
        """SGLang's older form."""
        fields.take("type", None)
        tags: list[Tag] = []
        for number, value in enumerate(fields.items("structures")):
            structure = Fields(value, f"structures[{number}]")
            schema = structure.take("schema")
            content = self._schema(JsonSchema.of(schema), structure)
            rest = ir.sequence(content, _one_of(structure.ends()))
            tags.append((structure.text("begin"), rest))
            structure.finish()
        triggers = fields.texts("triggers")
        fields.finish()
        return self._free_text(fields, _by_trigger(fields, triggers, tags), (), ())

    # --- formats without free text at their end

    def _json_schema(self, fields: Fields) -> ir.Node:
        style = fields.text("style", "json")
        if style != "json":
            raise fields.error(f"style '{style}' is not supported, only 'json'")
        options: dict[str, Any] = {}
        if fields.flag("any_order"):
            options["property_order"] = "any"
        most = fields.optional_count("max_whitespace_cnt")
        if most is not None:
            options["max_whitespace"] = most
        digits = fields.optional_count("max_digits")
        if digits is not None:
            options["max_digits"] = digits
        options["separators"] = fields.take("separators", None)
        try:
            spec = JsonSchema.of(fields.take("json_schema"), **options)
        except InvalidRequest as error:
            raise fields.error(str(error)) from None
        return self._schema(spec, fields)

    def _schema(self, spec: JsonSchema, fields: Fields) -> ir.Node:
        from sglang_lite.constrained.json_schema import lower_json_schema

        if spec not in self._schemas:
            self._schemas[spec] = self._embed(lower_json_schema(spec))
        return self._schemas[spec]

    def _regex(self, fields: Fields) -> ir.Node:
        from sglang_lite.constrained.regex import lower_regex

        return self._embed(lower_regex(fields.text("pattern")))

    def _grammar(self, fields: Fields) -> ir.Node:
        syntax = fields.text("syntax", "ebnf")
        return self._embed(lower_grammar(fields.text("grammar"), syntax))

    def _embed(self, language: ir.Language) -> ir.Node:
        return self.rules.embed(language, f"{next(self._numbers)}/")

    def _content(self, fields: Fields, ends: Ends = ()) -> ir.Node:
        return self.format(fields.take("content"), fields.at("content"), ends)

    def _repeat(self, fields: Fields) -> ir.Node:
        minimum, most = fields.count("min"), fields.count("max", least=-1)
        maximum = None if most == -1 else most
        if maximum is not None and maximum < minimum:
            raise fields.error(f"from {minimum} to {maximum} times is impossible")
        if max(minimum, most) > MAX_REPEAT:
            raise GrammarTooComplex(f"a repetition of more than {MAX_REPEAT} times")
        return repeat_node(self._content(fields), minimum, maximum)

    def _tag(self, fields: Fields) -> Tag:
        begin, ends = fields.text("begin"), fields.ends()
        if "" in ends:
            return begin, ir.sequence(self._content(fields), _one_of(ends))
        return begin, self._content(fields, ends)

    def _tags(self, fields: Fields) -> list[Tag]:
        tags = []
        for number, value in enumerate(fields.items("tags")):
            tag = Fields(value, f"{fields.at('tags')}[{number}]")
            if tag.text("type", "tag") != "tag":
                raise tag.error("expected a tag")
            tags.append(self._tag(tag))
            tag.finish()
        return tags

    def _tags_with_separator(self, fields: Fields) -> ir.Node:
        tags = self._tags(fields)
        minimum = int(fields.flag("at_least_one"))
        maximum = 1 if fields.flag("stop_after_first") else None
        separator = ir.literal(fields.text("separator"))
        return ir.repeat(ir.union(*map(_whole, tags)), minimum, maximum, separator)

    # --- formats that may end in free text

    def _sequence(self, fields: Fields, ends: Ends) -> ir.Node:
        elements = fields.items("elements")
        path = fields.at("elements")
        nodes = [self.format(e, f"{path}[{i}]") for i, e in enumerate(elements[:-1])]
        last = self.format(elements[-1], f"{path}[{len(elements) - 1}]", ends)
        return ir.sequence(*nodes, last)

    def _or(self, fields: Fields, ends: Ends) -> ir.Node:
        path = fields.at("elements")
        elements = enumerate(fields.items("elements"))
        return ir.union(*(self.format(e, f"{path}[{i}]", ends) for i, e in elements))

    def _optional(self, fields: Fields, ends: Ends) -> ir.Node:
        return ir.union(_one_of(ends), self._content(fields, ends))

    def _any_text(self, fields: Fields, ends: Ends) -> ir.Node:
        maximum = fields.optional_count("max_chars")
        return self._free_text(fields, {}, fields.texts("excludes", []), ends, maximum=maximum)

    def _triggered_tags(self, fields: Fields, ends: Ends) -> ir.Node:
        tags = self._tags(fields)
        after = _by_trigger(fields, fields.texts("triggers"), tags)
        first, once = fields.flag("at_least_one"), fields.flag("stop_after_first")
        text = self._free_text(fields, after, fields.texts("excludes", []), ends, loop=not once)
        if not first:
            return text
        return ir.sequence(ir.union(*map(_whole, tags)), _one_of(ends) if once else text)

    def _dispatch(self, fields: Fields, ends: Ends) -> ir.Node:
        after: dict[str, ir.Node] = {}
        for number, rule in enumerate(fields.items("rules")):
            path = f"{fields.at('rules')}[{number}]"
            if not isinstance(rule, list) or len(rule) != 2:
                raise fields.error(f"'{path}' is not a pair of pattern and format")
            pattern = Fields({"pattern": rule[0]}, path).text("pattern")
            node = self.format(rule[1], f"{path}[1]")
            after[pattern] = ir.union(after.get(pattern, ir.NEVER), node)
        loop = fields.flag("loop", True)
        return self._free_text(fields, after, fields.texts("excludes", []), ends, loop=loop)

    def _free_text(
        self,
        fields: Fields,
        after: Mapping[str, ir.Node],
        excludes: Sequence[str],
        ends: Ends,
        *,
        loop: bool = True,
        maximum: int | None = None,
    ) -> ir.Node:
        """Text up to a keyword of ``after``, what follows it, and (``loop``) text again.

        It closes with one of ``ends``; without any, it may stop anywhere.
        """
        keywords = tuple(sorted({*after, *ends}))
        check_keywords(fields, keywords, excludes)
        excluded = tuple(sorted(excludes))
        rule = ir.Ref(f"text {next(self._numbers)}")
        nodes = [text_until(keywords, end, excluded, maximum) for end in ends or (None,)]
        for keyword, node in after.items():
            again = rule if loop else _one_of(ends)
            text = text_until(keywords, keyword, excluded, maximum)
            nodes.append(ir.sequence(text, node, again))
        self.rules.add(rule.name, ir.union(*nodes))
        return rule


def _by_trigger(fields: Fields, triggers: list[str], tags: list[Tag]) -> dict[str, ir.Node]:
    """What may follow each trigger: the rests of the tags that begin with it."""
    found: dict[str, list[ir.Node]] = {trigger: [] for trigger in triggers}
    for begin, rest in tags:
        fitting = [trigger for trigger in triggers if begin.startswith(trigger)]
        if len(fitting) != 1:
            many = f"several triggers: {fitting}" if fitting else "none of the triggers"
            raise fields.error(f"the tag '{begin}' begins with {many}")
        found[fitting[0]].append(ir.sequence(ir.literal(begin[len(fitting[0]) :]), rest))
    for trigger, nodes in found.items():
        if not nodes:
            raise fields.error(f"no tag begins with the trigger '{trigger}'")
    return {trigger: ir.union(*nodes) for trigger, nodes in found.items()}


def _whole(tag: Tag) -> ir.Node:
    begin, rest = tag
    return ir.sequence(ir.literal(begin), rest)


def _one_of(ends: Ends) -> ir.Node:
    return ir.literals(ends) if ends else ir.EMPTY
