"""JSON Schema to the intermediate representation, each keyword exactly or refused by name.

The way of a schema: ``document`` (nodes, drafts, references), ``keywords``, ``assertions`` and
``applicators`` (what one node says, as ``records``), ``intersect`` and ``negate`` (their algebra),
``normalise`` (all keywords of a node together), ``lower`` (records to IR nodes).
"""

from __future__ import annotations

from typing import Literal

from sglang_lite.constrained import ir
from sglang_lite.constrained.json_schema.document import Document
from sglang_lite.constrained.json_schema.lower import Lowering
from sglang_lite.constrained.json_schema.normalise import Normaliser
from sglang_lite.constrained.json_schema.syntax import syntax
from sglang_lite.constraint import JsonSchema
from sglang_lite.errors import GrammarTooComplex, InvalidRequest, UnsatisfiableSchema

__all__ = ["lower_json_schema"]


def lower_json_schema(
    spec: JsonSchema,
    *,
    on_unsupported: Literal["error", "warn"] = "error",
) -> ir.Language:
    """The texts that satisfy ``spec``: a subset of the schema's language, and documented spellings.

    With ``on_unsupported="warn"`` a keyword that cannot be enforced is left out and named in the
    result's ``warnings``, where notes about ignored keywords stand in any case.

    Raises :class:`~sglang_lite.errors.InvalidSchema` (malformed), its subclass
    :class:`~sglang_lite.errors.UnsatisfiableSchema` (nothing fits),
    :class:`~sglang_lite.errors.UnsupportedSchema` (a keyword that cannot be enforced exactly) and
    :class:`~sglang_lite.errors.GrammarTooComplex` (a budget, with its figure).
    """
    if on_unsupported not in ("error", "warn"):
        raise InvalidRequest("on_unsupported", on_unsupported, '"error" or "warn"')
    normaliser = Normaliser(Document(spec.schema), warn=on_unsupported == "warn")
    lowering = Lowering(
        normaliser,
        syntax(spec.max_whitespace, spec.separators),
        property_order=spec.property_order,
        additional_properties=spec.additional_properties,
        max_digits=spec.max_digits,
    )
    try:
        root, rules = lowering.language(normaliser.root())
    except RecursionError:
        raise GrammarTooComplex("JSON Schema nests too deeply") from None
    if root is ir.NEVER:
        raise UnsatisfiableSchema("", "no JSON value satisfies it")
    return ir.Language(root, rules, (*normaliser.warnings, *normaliser.document.notes))
