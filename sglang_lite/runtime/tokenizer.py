"""Text to token ids and back, on the `tokenizers` library directly: loading it takes milliseconds.

Text is *plain* by default: "<|im_end|>" in a text is eleven characters, not a control token, unless
the caller says ``parse_special``.  So nobody's text can forge the end of a turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer as Backend

from sglang_lite.errors import InvalidRequest, ModelNotFound, UnsupportedModel
from sglang_lite.runtime.chat_template import ChatTemplate
from sglang_lite.token_pieces import token_reader

if TYPE_CHECKING:
    from sglang_lite.constrained import Vocabulary

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class Tokenizer:
    """A tokenizer with its chat template.

    * ``vocab_size``: width of the model's logits where known, else the number of tokens.
    * ``eos_token_ids``: every id that ends a generation.  ``special_ids``: control tokens.
    * ``chat_template``: the template's source, or None.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        named_tokens: Mapping[str, str] | None = None,
        chat_template: str | None = None,
        vocab_size: int | None = None,
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        self.backend = backend
        self._named = dict(named_tokens or {})
        added = backend.get_added_tokens_decoder()
        self._special = {token.content: id for id, token in added.items() if token.special}
        self._other_added = {token.content: id for id, token in added.items() if not token.special}
        self.special_ids = frozenset(self._special.values())
        self.vocab_size = vocab_size or backend.get_vocab_size()
        eos = self._id_of("eos_token")
        own = () if eos is None else (eos,)
        self.eos_token_ids = tuple(dict.fromkeys([*eos_token_ids, *own]))
        self.bos_token_id = self._id_of("bos_token")
        self.set_chat_template(chat_template)

    @classmethod
    def from_pretrained(cls, path: str | Path, chat_template: str | None = None) -> Tokenizer:
        """Load from a local Hugging Face folder.  Raises :class:`ModelNotFound`.

        ``chat_template`` replaces the folder's: a Jinja template, or the path of a file with one.
        """
        folder = Path(path)
        config = _read_json(folder / "tokenizer_config.json")
        file = folder / "tokenizer.json"
        backend = Backend.from_file(str(file)) if file.is_file() else _converted(folder)
        template = (
            _template_text(chat_template) if chat_template else _folder_template(folder, config)
        )
        named = {name: _content(config[name]) for name in _NAMED_TOKENS if config.get(name)}
        return cls(backend, named_tokens=named, chat_template=template)

    def set_chat_template(self, source: str | None) -> None:
        """Use another chat template.  Raises :class:`InvalidRequest` for broken Jinja."""
        self.chat_template = source
        self._template = source and ChatTemplate(source, self._special, self._other_added)
        written = self._template.written if self._template else ()
        self._control = {**self._special, **{text: self._other_added[text] for text in written}}
        self._plain = _without_control(self.backend, self._control)

    def extend(self, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        """Learn what only the model knows: the width of its logits and its end tokens."""
        self.vocab_size = vocab_size
        self.eos_token_ids = tuple(dict.fromkeys([*self.eos_token_ids, *eos_token_ids]))
        self.__dict__.pop("vocabulary", None)

    def encode(
        self, text: str, *, add_special_tokens: bool = False, parse_special: bool = False
    ) -> list[int]:
        """The ids of a text.

        ``add_special_tokens``: with the tokens that the tokenizer puts around a text, such as BOS.
        ``parse_special``: control tokens in the text become control tokens.
        """
        if parse_special:
            return self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        encoding = self._plain.encode(text, add_special_tokens=add_special_tokens)
        control = set(self._control.values())
        if control.isdisjoint(encoding.ids):
            return encoding.ids
        pairs = zip(encoding.ids, encoding.special_tokens_mask, encoding.offsets, strict=True)
        ids: list[int] = []
        for id, is_added, (start, end) in pairs:
            # A Unigram vocabulary may hold control tokens as words: spell these out.
            if id in control and not is_added:
                for character in text[start:end]:
                    ids += self._plain.encode(character, add_special_tokens=False).ids
            else:
                ids.append(id)
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of some ids; control tokens are left out unless asked for."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_text(self, id: int) -> str:
        """One token's text on its own, control tokens included."""
        return self.backend.decode([id], skip_special_tokens=False)

    def piece_bytes(self, id: int, *, skip_special_tokens: bool = True) -> bytes:
        """The bytes that a token adds to a text; b"" for a control token that is skipped."""
        if id in self.special_ids:
            return b"" if skip_special_tokens else self.token_text(id).encode()
        return b"" if id in self.eos_token_ids else self._token_bytes(id)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> list[int]:
        """The ids of a conversation; further ``variables`` are the template's.

        Ids equal those of `transformers`, except that control tokens inside a message are encoded
        as plain text.  Raises :class:`InvalidRequest` without a template, and
        :class:`jinja2.TemplateError` where the template refuses the messages.
        """
        pieces = self._render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            **variables,
        )
        return [id for text, control in pieces for id in self.encode(text, parse_special=control)]

    def render_chat_template(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
        """The text of a conversation; do not tokenise it where messages come from strangers.

        Raises like :meth:`apply_chat_template`.
        """
        pieces = self._render(messages, add_generation_prompt=add_generation_prompt, tools=None)
        return "".join(text for text, _ in pieces)

    @property
    def named_tokens(self) -> Mapping[str, str]:
        """Tokens with a role, such as ``eos_token``, as the tokenizer's files name them."""
        return self._named

    @property
    def control_tokens(self) -> Mapping[str, int]:
        """The tokens that no plain text can become: text to id."""
        return self._control

    @property
    def control_ids(self) -> frozenset[int]:
        """The ids that say something else than text: control tokens and ends of a text."""
        return frozenset({*self._control.values(), *self.special_ids, *self.eos_token_ids})

    def _render(
        self, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> list[tuple[str, bool]]:
        if not self._template:
            accepted = "no chat messages: this model has no chat template"
            raise InvalidRequest("messages", messages, accepted)
        return self._template.render(messages, **{**self._named, **options})

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The tokens' bytes, as :mod:`sglang_lite.constrained` wants them."""
        from sglang_lite.constrained import Vocabulary

        vocabulary = Vocabulary.from_tokenizer(self.backend, self.vocab_size, self.eos_token_ids)
        # Forced text is plain text too: it must not become a control token.
        vocabulary.encode = self.encode
        return vocabulary

    @cached_property
    def _token_bytes(self) -> Callable[[int], bytes]:
        """One token at a time: the first text need not wait for the vocabulary to be read."""
        return token_reader(self.backend)

    def _id_of(self, name: str) -> int | None:
        token = self._named.get(name)
        return None if token is None else self.backend.token_to_id(token)


def _without_control(backend: Backend, control: Mapping[str, int]) -> Backend:
    """A twin that reads control tokens as text; it shares the model, so it costs no memory."""
    added = sorted(backend.get_added_tokens_decoder().items())
    plain = Backend(backend.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if (value := getattr(backend, part)) is not None:
            setattr(plain, part, value)
    for _, token in added:
        if token.content in control:
            token.special = True
        plain.add_tokens([token])
    if _added_ids(plain) != _added_ids(backend):
        # The ids of added tokens have gaps, which only the file format can express.
        data = json.loads(backend.to_str())
        for entry in data["added_tokens"]:
            entry["special"] = entry["special"] or entry["content"] in control
        plain = Backend.from_str(json.dumps(data))
    plain.encode_special_tokens = True
    return plain


def _added_ids(backend: Backend) -> dict[int, str]:
    """Much faster than the whole vocabulary; the rest of it is the model's, which twins share."""
    return {id: token.content for id, token in backend.get_added_tokens_decoder().items()}


def _converted(folder: Path) -> Backend:
    """A tokenizer in an older format, through transformers."""
    if not any((folder / name).exists() for name in ("tokenizer.model", "vocab.json", "vocab.txt")):
        looked = "tokenizer.json, tokenizer.model, vocab.json, vocab.txt"
        raise ModelNotFound(f"no tokenizer at {str(folder)!r}; looked for {looked}")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(folder)).backend_tokenizer
    except (ImportError, OSError, ValueError, AttributeError) as error:
        reason = f"{str(folder)!r} has no tokenizer.json, and transformers cannot make one: {error}"
        raise UnsupportedModel(reason) from error


def _folder_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        return named.get("default")
    return template


def _template_text(given: str) -> str:
    if "{" not in given and Path(given).is_file():
        return Path(given).read_text(encoding="utf-8")
    if "{" not in given:
        raise InvalidRequest("chat_template", given, "a Jinja template, or the path of a file")
    return given


def _content(token: Any) -> str:
    return token["content"] if isinstance(token, Mapping) else str(token)


def _read_json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
