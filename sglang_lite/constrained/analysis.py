"""Checks of a language with rules: left recursion is refused, rules without a text are removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sglang_lite.constrained import budget, ir
from sglang_lite.errors import InvalidGrammar


def prepare(language: ir.Language) -> ir.Language:
    """``language`` without rules that derive no text; free for languages without rules.

    Raises :class:`InvalidGrammar` for a rule that can begin with itself, or a name without a rule.
    """
    if not language.rules:
        return language
    if not all(map(_begins_with_text, language.rules.values())):
        _refuse_left_recursion(language, least(language.rules, _nullable))
    productive = least(language.rules, _productive)
    if len(productive) == len(language.rules):
        return language
    dead = set(language.rules) - productive
    rules = {name: _prune(node, dead) for name, node in language.rules.items() if name not in dead}
    return ir.Language(_prune(language.root, dead), rules, language.warnings)


def children(node: ir.Node) -> list[ir.Node]:
    """The nodes that ``node`` is made of; none for a leaf."""
    if isinstance(node, (ir.Sequence, ir.Union)):
        return list(node.items)
    if isinstance(node, ir.Repeat):
        items = [kind.item for kind in node.kinds]
        return [*items, node.separator, *(item for row in node.head for item in row)]
    if isinstance(node, ir.Object):
        values = [member.value for member in node.members]
        values += [extra.value for extra in node.extras]
        return [*values, node.open, node.colon, node.comma, node.close]
    return []


def least(rules: Mapping[str, ir.Node], holds: Callable[[ir.Node, set[str]], bool]) -> set[str]:
    """The smallest set of rules that is closed under ``holds(body, set)``.

    A rule is looked at again only when one that it mentions has joined: linear in the rules.
    """
    true: set[str] = set()
    # Front ends mostly write a rule before those that it mentions, so this finds nearly all.
    for name in reversed(list(rules)):
        budget.check()
        if holds(rules[name], true):
            true.add(name)
    queue = [name for name in rules if name not in true] if true else []
    users: dict[str, list[str]] = {}
    for name in queue:
        for other in rule_names(rules[name]):
            users.setdefault(other, []).append(name)
    while queue:
        budget.check()
        name = queue.pop()
        if name not in true and holds(rules[name], true):
            true.add(name)
            queue.extend(users.get(name, ()))
    return true


def _begins_with_text(node: ir.Node) -> bool:
    """True for what is surely not nullable and begins with no rule: JSON's objects and arrays."""
    if isinstance(node, ir.Object):
        node = node.open
    if isinstance(node, ir.Sequence):
        node = node.items[0]
    return isinstance(node, ir.Literal)


def _nullable(node: ir.Node, rules: set[str]) -> bool:
    if isinstance(node, ir.Empty):
        return True
    if isinstance(node, ir.Terminal):
        return node.dfa.accepts(node.dfa.start)
    if isinstance(node, ir.Counted):
        return not node.minimum and not node.open and not node.close
    if isinstance(node, ir.Sequence):
        return all(_nullable(item, rules) for item in node.items)
    if isinstance(node, ir.Union):
        return any(_nullable(item, rules) for item in node.items)
    if isinstance(node, ir.Repeat):
        if not node.minimum and not any(kind.minimum for kind in node.kinds):
            return True
        return all(_nullable(item, rules) for item in children(node))
    if isinstance(node, ir.Ref):
        return node.name in rules
    return False


def _refuse_left_recursion(language: ir.Language, nullable: set[str]) -> None:
    first = {name: _first(node, nullable) for name, node in language.rules.items()}
    done: set[str] = set()
    for root in first:
        path: dict[str, None] = {}
        work = [(root, iter(first[root]))] if root not in done else []
        path[root] = None
        while work:
            name, following = work[-1]
            target = next(following, None)
            if target is None:
                work.pop()
                path.pop(name, None)
                done.add(name)
            elif target not in first:
                raise InvalidGrammar(f"rule {name!r} refers to {target!r}, which is not defined")
            elif target in path:
                raise InvalidGrammar(
                    f"rule {target!r} is left-recursive: it can begin with itself; write the "
                    "repetition with * or +, or put the recursion behind another symbol"
                )
            elif target not in done:
                path[target] = None
                work.append((target, iter(first[target])))


def _first(node: ir.Node, nullable: set[str]) -> list[str]:
    """The rules that ``node`` may begin with."""
    if isinstance(node, ir.Ref):
        return [node.name]
    if isinstance(node, ir.Sequence):
        found: list[str] = []
        for item in node.items:
            found += _first(item, nullable)
            if not _nullable(item, nullable):
                break
        return found
    if isinstance(node, ir.Object):
        return _first(node.open, nullable)
    if isinstance(node, (ir.Union, ir.Repeat)):
        return [name for item in children(node) for name in _first(item, nullable)]
    return []


def _productive(node: ir.Node, known: set[str]) -> bool:
    kind = node.__class__
    if kind is ir.Ref:
        return node.name in known  # type: ignore[attr-defined]
    if isinstance(node, (ir.Sequence, ir.Union)):
        some = all if kind is ir.Sequence else any
        return some([_productive(item, known) for item in node.items])
    if isinstance(node, (ir.Repeat, ir.Object)):
        if _surely_productive(node, known):
            return True
        # Which items or members are needed is what the constructors know: replace and see.
        dead = {name for name in rule_names(node) if name not in known}
        return not dead or not _prune(node, dead).never
    return not node.never


def _surely_productive(node: ir.Repeat | ir.Object, known: set[str]) -> bool:
    """True where what must be there has a text and nothing else matters; cheap."""
    if isinstance(node, ir.Repeat):
        return node.minimum == 0 and all(kind.minimum <= 0 for kind in node.kinds)
    required = [member.value for member in node.members if member.required]
    required += [extra.value for extra in node.extras if extra.needed]
    if node.clauses or node.minimum > len(required):
        return False
    return all(_productive(value, known) for value in required)


def rule_names(node: ir.Node) -> set[str]:
    """The rules that ``node`` mentions."""
    found: set[str] = set()
    work = [node]
    while work:
        here = work.pop()
        if isinstance(here, ir.Ref):
            found.add(here.name)
        work += children(here)
    return found


def node_count(language: ir.Language) -> int:
    """How many different nodes (by identity) ``language`` has."""
    seen: set[int] = set()
    work = [language.root, *language.rules.values()]
    while work:
        here = work.pop()
        if id(here) not in seen:
            seen.add(id(here))
            work += children(here)
    return len(seen)


def _prune(node: ir.Node, dead: set[str]) -> ir.Node:
    """``node`` with references to ``dead`` rules replaced by ``NEVER``, simplified."""

    def leaf(node: ir.Node) -> ir.Node:
        return ir.NEVER if isinstance(node, ir.Ref) and node.name in dead else node

    return rebuild(node, leaf)


def rebuild(node: ir.Node, leaf: Callable[[ir.Node], ir.Node]) -> ir.Node:
    """``node`` with every leaf (and reference) replaced by ``leaf`` of it, simplified."""
    if isinstance(node, ir.Sequence):
        return ir.sequence(*(rebuild(item, leaf) for item in node.items))
    if isinstance(node, ir.Union):
        return ir.union(*(rebuild(item, leaf) for item in node.items))
    if isinstance(node, ir.Repeat):
        kinds = [kind._replace(item=rebuild(kind.item, leaf)) for kind in node.kinds]
        head = [tuple(rebuild(item, leaf) for item in row) for row in node.head]
        separator = rebuild(node.separator, leaf)
        if separator.never:
            separator = ir.EMPTY
            return ir.repeat_kinds(kinds, node.minimum, min(node.maximum or 1, 1), separator, head)
        return ir.repeat_kinds(kinds, node.minimum, node.maximum, separator, head)
    if isinstance(node, ir.Object):
        return ir.object_(
            [member._replace(value=rebuild(member.value, leaf)) for member in node.members],
            [extra._replace(value=rebuild(extra.value, leaf)) for extra in node.extras],
            order=node.order,
            minimum=node.minimum,
            maximum=node.maximum,
            clauses=node.clauses,
            open=rebuild(node.open, leaf),
            colon=rebuild(node.colon, leaf),
            comma=rebuild(node.comma, leaf),
            close=rebuild(node.close, leaf),
            distinct=node.distinct,
        )
    return leaf(node)
