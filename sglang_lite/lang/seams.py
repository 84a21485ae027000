"""The two seams of a ``gen``: token healing where it begins, kept token ids where it ends.

"Age: " ends in a token for the blank, but the model has learnt " 42" as one token.  So the last
token of the literal is taken back, and the generation has to begin with its text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sglang_lite.constraint import Constraint, Prefixed, Regex, StructuralTag
from sglang_lite.errors import NotSupported
from sglang_lite.lang.transcript import Prompt
from sglang_lite.sampling_params import SamplingParams

if TYPE_CHECKING:
    from sglang_lite.lang.backends.base import Backend
    from sglang_lite.lang.nodes import Gen

ANY_TEXT = Regex(r"[\s\S]*")


@dataclasses.dataclass(frozen=True)
class Healed:
    """A prompt without its last token, and parameters that demand the text of that token."""

    prompt: Prompt
    params: SamplingParams

    @property
    def text(self) -> str:
        """With what the answer begins that belongs to the prompt."""
        return self.prompt.healed


async def heal(backend: Backend, node: Gen, prompt: Prompt, params: SamplingParams) -> Healed:
    """Take back the last token of the literal, where that is wanted and possible.

    ``gen(heal=None)`` heals a literal that ends in a token of blanks before any constraint but a
    structural tag; True heals after any literal, also before free text; False never.  A token is
    not taken back where a stop text could begin in it.
    """
    unchanged = Healed(prompt, params)
    ids, constraint = prompt.input_ids, params.constraint
    if node.heal and not backend.heals:
        raise NotSupported(f"heal=True: backend {backend.name} cannot heal")
    if node.heal is False or not backend.heals or not ids:
        return unchanged
    if not prompt.tail or prompt.tail[-1].trusted:
        return unchanged
    if node.heal is None and not _heals_by_itself(constraint):
        return unchanged
    pieces = None if ids[-1] in backend.control_ids() else await backend.pieces(ids[-1:])
    if pieces is None or len(ids) == 1 or prompt.sealed == len(ids):
        return unchanged
    last = pieces[0].decode("utf-8", "replace")
    if not last or "\ufffd" in last or not prompt.tail[-1].text.endswith(last):
        return unchanged
    if node.heal is None and not last.isspace():
        return unchanged
    if params.stop_regex or any(_may_begin_in(last, stop) for stop in params.stop):
        return unchanged
    shorter = dataclasses.replace(prompt, input_ids=ids[:-1], healed=last)
    return Healed(shorter, params.replace(constraint=_prefixed(last, constraint)))


def before_healing(prompt: Prompt, params: SamplingParams) -> SamplingParams:
    """The parameters that :func:`heal` was given."""
    constraint = params.constraint
    if not prompt.healed or not isinstance(constraint, Prefixed):
        return params
    rest, inner = constraint.prefix[len(prompt.healed) :], constraint.constraint
    if rest:
        return params.replace(constraint=Prefixed(rest, inner))
    return params.replace(constraint=None if inner is ANY_TEXT else inner)


def _heals_by_itself(constraint: Constraint | None) -> bool:
    return constraint is not None and not isinstance(constraint, StructuralTag)


def _may_begin_in(text: str, stop: str) -> bool:
    """True where a stop text may begin inside ``text``, which the generation repeats."""
    return stop in text or any(stop.startswith(text[at:]) for at in range(len(text)))


def _prefixed(text: str, constraint: Constraint | None) -> Prefixed:
    if isinstance(constraint, Prefixed):
        return Prefixed(text + constraint.prefix, constraint.constraint)
    return Prefixed(text, constraint or ANY_TEXT)


async def align(
    backend: Backend, token_ids: Sequence[int], text: str
) -> tuple[tuple[int, ...], str]:
    """The longest prefix of the ids whose text begins ``text``, and the text left over.

    What is left out: the token that ended the generation, what runs past a stop text, and half a
    character.  Nothing is kept on a backend without a tokenizer.
    """
    pieces = await backend.pieces(token_ids)
    if pieces is None:
        return (), text
    control = backend.control_ids()
    whole = text.encode("utf-8", "surrogatepass")
    end = kept = kept_bytes = 0
    for number, (token, piece) in enumerate(zip(token_ids, pieces, strict=True), 1):
        if not whole.startswith(piece, end):
            break
        end += len(piece)
        inside_character = end < len(whole) and whole[end] & 0xC0 == 0x80
        if token not in control and not inside_character:
            kept, kept_bytes = number, end
    return tuple(token_ids[:kept]), whole[kept_bytes:].decode("utf-8", "surrogatepass")
