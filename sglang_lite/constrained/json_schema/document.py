"""A schema document: its nodes, its draft, and what a reference in it points to.

A :class:`Node` is one schema (an object or a boolean) at one place.  Nodes are made when they are
first visited and are the same object for the same place, so that sets of nodes identify a merged
schema and recursion ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from sglang_lite.constrained.json_schema.drafts import (
    LIST_OF_SCHEMAS,
    MAP_OF_SCHEMAS,
    ONE_SCHEMA,
    SINCE,
    SINCE_EVER,
    Draft,
    draft_of,
    misspelling,
)
from sglang_lite.constrained.json_schema.schema_text import read
from sglang_lite.errors import InvalidSchema, UnsupportedSchema


class Node:
    """One schema of a document; identity is the place, so ``==`` is ``is``.

    ``schema`` lacks the keywords that the document's draft does not know.
    """

    __slots__ = ("index", "parent", "resource", "schema", "tokens")

    def __init__(
        self,
        schema: Any,
        parent: Node | None,
        tokens: tuple[str, ...],
        resource: Resource | None,
        index: int,
    ) -> None:
        self.schema = schema
        self.parent = parent
        self.tokens = tokens
        self.resource = resource
        self.index = index

    @property
    def pointer(self) -> str:
        """The JSON pointer of this place, as a fragment ("#/properties/a")."""
        parts: list[str] = []
        node: Node | None = self
        while node is not None:
            parts.extend(reversed(node.tokens))
            node = node.parent
        return "#" + "".join(
            "/" + part.replace("~", "~0").replace("/", "~1") for part in reversed(parts)
        )


class Resource:
    """A schema resource: a root schema or one with its own ``$id``, and its anchors."""

    __slots__ = ("anchors", "dynamic_anchors", "recursive", "root", "text", "uri")

    def __init__(self, uri: str, root: Node, text: Any) -> None:
        self.uri = uri
        self.root = root
        self.text = text
        self.recursive = isinstance(text, dict) and text.get("$recursiveAnchor") is True
        self.anchors: dict[str, Node] = {}
        self.dynamic_anchors: dict[str, Node] = {}


class Document:
    """Parses a schema's text, detects its draft and resolves references.

    ``notes`` are what the specification ignores in it, but its author may not have meant to be.
    Raises :class:`InvalidSchema` for text that is no schema.
    """

    def __init__(self, text: str) -> None:
        root = read(text)
        self._nodes: dict[int, Node] = {}
        self._resources: dict[str, Resource] = {}
        self._indexed = False
        self._count = 0
        self.draft: Draft = draft_of(root)
        self.notes: dict[str, None] = {}
        self.dynamic = '"$dynamicRef"' in text or '"$recursiveRef"' in text
        self.root = self._new(root, None, ())
        if self.root.resource is None:
            self.root.resource = self._resources[""] = Resource("", self.root, root)
        self._resources.setdefault("", self.root.resource)

    def below(self, parent: Node, schema: Any, tokens: tuple[str, ...]) -> Node:
        """The node of ``schema``, which stands ``tokens`` below ``parent``."""
        node = self._nodes.get(id(schema))
        if node is not None and isinstance(schema, dict):
            return node
        if not isinstance(schema, (dict, bool)):
            path = parent.pointer + "".join("/" + token for token in tokens)
            raise InvalidSchema(path, "a schema is an object or a boolean")
        return self._new(schema, parent, tokens)

    def synthetic(self, parent: Node, schema: dict[str, Any], *tokens: str) -> Node:
        """A schema that stands in no document but behaves as if it stood below ``parent``."""
        return self._new(schema, parent, tokens)

    def enter(self, node: Node, scope: tuple[Resource, ...]) -> tuple[Resource, ...]:
        """The dynamic scope inside ``node``; empty in a document that never asks for it."""
        if not self.dynamic or node.resource is None or node.resource in scope:
            return scope
        return (*scope, node.resource)

    def resolve(self, node: Node, keyword: str, reference: str) -> Node:
        """The node that ``reference``, the value of ``keyword`` at ``node``, points to.

        Raises :class:`UnsupportedSchema` for a schema outside this document and
        :class:`InvalidSchema` for a place that does not exist.
        """
        resource = node.resource
        assert resource is not None
        try:
            address, fragment = _split(reference)
            uri = _join(resource.uri, address) if address else resource.uri
        except ValueError as error:
            raise InvalidSchema(node.pointer, f"{keyword} {reference!r}: {error}") from None
        if address:
            self._index()
            found = self._resources.get(uri.rstrip("#"))
            if found is None:
                raise UnsupportedSchema(
                    node.pointer, keyword, f"refers to {reference!r}, which is not in the document"
                )
            resource = found
        if not fragment:
            return resource.root
        if fragment.startswith("/"):
            return self._walk(node, keyword, reference, resource.root, unquote(fragment))
        self._index()
        target = resource.anchors.get(unquote(fragment))
        if target is None:
            raise InvalidSchema(node.pointer, f"{keyword} {reference!r}: no such anchor")
        return target

    def resolve_dynamic(
        self, node: Node, keyword: str, reference: str, scope: tuple[Resource, ...]
    ) -> Node:
        """``$dynamicRef`` and ``$recursiveRef``: the outermost schema of that dynamic anchor.

        ``scope`` are the resources entered on the way to ``node``, outermost first.
        """
        target = self.resolve(node, keyword, reference)
        if keyword == "$recursiveRef":
            assert target.resource is not None
            if target.resource.recursive and target is target.resource.root:
                return next((entered.root for entered in scope if entered.recursive), target)
            return target
        self._index()
        name = unquote(urldefrag(reference)[1])
        assert target.resource is not None
        if target.resource.dynamic_anchors.get(name) is not target:
            return target
        for entered in scope:
            if name in entered.dynamic_anchors:
                return entered.dynamic_anchors[name]
        return target

    def _walk(self, source: Node, keyword: str, reference: str, start: Node, pointer: str) -> Node:
        assert start.resource is not None
        node, schema, pending = start, start.resource.text, []
        for part in pointer.split("/")[1:]:
            token = part.replace("~1", "/").replace("~0", "~")
            try:
                schema = schema[_place(token)] if isinstance(schema, list) else schema[token]
            except (KeyError, IndexError, TypeError):
                raise InvalidSchema(
                    source.pointer, f"{keyword} {reference!r} points to nothing"
                ) from None
            pending.append(token)
            # Only dicts have an identity, and a schema with $id on the way changes the base.
            if isinstance(schema, dict) and (id(schema) in self._nodes or self._own_id(schema)):
                node, pending = self.below(node, schema, tuple(pending)), []
        return self.below(node, schema, tuple(pending)) if pending else node

    def _new(self, schema: Any, parent: Node | None, tokens: tuple[str, ...]) -> Node:
        resource = parent.resource if parent is not None else None
        node = Node(self._known(schema), parent, tokens, resource, self._count)
        self._count += 1
        if isinstance(schema, dict):
            own = self._own_id(schema)
            if own is not None:
                try:
                    uri = _join(resource.uri if resource else "", own).rstrip("#")
                except ValueError as error:
                    raise InvalidSchema(node.pointer, f"the identifier {own!r}: {error}") from None
                node.resource = self._resources[uri] = Resource(uri, node, schema)
            self._nodes[id(schema)] = node
        return node

    def _known(self, schema: Any) -> Any:
        """``schema`` without the keywords that came after the document's draft; takes notes."""
        if not isinstance(schema, dict) or schema.keys() <= SINCE_EVER:
            return schema
        later = []
        for keyword in schema:
            if SINCE.get(keyword, 0) > self.draft:
                later.append(keyword)
                self.notes[f"keyword '{keyword}' means nothing in draft {self.draft}"] = None
            elif (meant := misspelling(keyword)) is not None:
                self.notes[f"unknown keyword '{keyword}' is ignored; is '{meant}' meant?"] = None
        if not later:
            return schema
        return {keyword: value for keyword, value in schema.items() if keyword not in later}

    def _own_id(self, schema: dict[str, Any]) -> str | None:
        """The ``$id`` that makes ``schema`` a resource of its own."""
        own = schema.get("id" if self.draft == 4 else "$id")
        if not isinstance(own, str) or own.startswith("#"):
            return None
        # Until draft 7 a $ref hides everything beside it.
        return None if self.draft <= 7 and "$ref" in schema else own

    def _index(self) -> None:
        """Visit every subschema once, so that all identifiers and anchors are known."""
        if self._indexed:
            return
        self._indexed = True
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            if isinstance(node.schema, dict):
                self._anchor(node)
                waiting.extend(self._subschemas(node))

    def _anchor(self, node: Node) -> None:
        resource, schema = node.resource, node.schema
        assert resource is not None
        own = schema.get("id" if self.draft == 4 else "$id")
        if isinstance(own, str) and own.startswith("#") and len(own) > 1:
            resource.anchors.setdefault(own[1:], node)
        if isinstance(schema.get("$anchor"), str):
            resource.anchors.setdefault(schema["$anchor"], node)
        if isinstance(schema.get("$dynamicAnchor"), str):
            resource.anchors.setdefault(schema["$dynamicAnchor"], node)
            resource.dynamic_anchors.setdefault(schema["$dynamicAnchor"], node)

    def _subschemas(self, node: Node) -> Iterator[Node]:
        for keyword, value in node.schema.items():
            if isinstance(value, (dict, bool)) and keyword in ONE_SCHEMA:
                yield self.below(node, value, (keyword,))
            elif isinstance(value, list) and keyword in LIST_OF_SCHEMAS:
                for place, item in enumerate(value):
                    if isinstance(item, dict):
                        yield self.below(node, item, (keyword, str(place)))
            elif isinstance(value, dict) and keyword in MAP_OF_SCHEMAS:
                for name, item in value.items():
                    if isinstance(item, dict):
                        yield self.below(node, item, (keyword, name))


def _place(token: str) -> int:
    """An index of a list; raises IndexError for anything that is none."""
    if not (token.isascii() and token.isdigit()):
        raise IndexError(token)
    return int(token)


def _split(reference: str) -> tuple[str, str]:
    """The address and the fragment."""
    if reference.startswith("#"):
        return "", reference[1:]
    return urldefrag(reference)


def _join(base: str, address: str) -> str:
    # urljoin leaves an address alone when it does not know the base's scheme, as with urn:.
    return urljoin(base, address) if base else address
