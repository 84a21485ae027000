"""Token healing: the seam between a literal and a constrained ``gen``.

"Age: " ends in a token for the blank, but the model has learnt " 42" as one token.  So the last
token of the literal is taken back, and the generation has to begin with its text.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from sglang_lite.constraint import Choice, Constraint, Regex
from sglang_lite.errors import NotSupported
from sglang_lite.lang.transcript import Prompt

if TYPE_CHECKING:
    from sglang_lite.lang.backends.base import Backend
    from sglang_lite.lang.nodes import Gen


@dataclasses.dataclass(frozen=True)
class Healed:
    """A prompt without its last token, the text of that token, and the constraint with it."""

    prompt: Prompt
    constraint: Constraint | None
    text: str = ""


def heal(backend: Backend, node: Gen, prompt: Prompt, constraint: Constraint | None) -> Healed:
    """Take back the last token of the literal, where that is wanted and possible.

    ``gen(heal=None)`` heals a literal that ends in blanks before a regex or a choice; True heals
    after any literal, also before free text; False never.
    """
    unchanged = Healed(prompt, constraint)
    if node.heal is False or not prompt.tail or prompt.tail[-1].trusted or not prompt.input_ids:
        return unchanged
    if node.heal is None and not isinstance(constraint, (Regex, Choice)):
        return unchanged
    if prompt.input_ids[-1] in backend.control_ids():
        return unchanged
    last = backend.token_text(prompt.input_ids[-1]) if backend.heals else None
    if last is None:
        if node.heal:
            raise NotSupported(f"heal=True: backend {backend.name} cannot heal")
        return unchanged
    at_seam = prompt.tail[-1].text.endswith(last) and "\ufffd" not in last
    if not last or not at_seam or (node.heal is None and not last.isspace()):
        return unchanged
    if len(prompt.input_ids) == 1 or prompt.sealed == len(prompt.input_ids):
        return unchanged
    shorter = dataclasses.replace(prompt, input_ids=prompt.input_ids[:-1])
    return Healed(shorter, Regex(re.escape(last) + _pattern(constraint)), last)


def _pattern(constraint: Constraint | None) -> str:
    if isinstance(constraint, Regex):
        return f"(?:{constraint.pattern})"
    if isinstance(constraint, Choice):
        return f"(?:{'|'.join(map(re.escape, constraint.choices))})"
    if constraint is None:
        return r"[\s\S]*"
    raise NotSupported(f"heal=True goes with a regex or free text, not with {constraint!r}")
