"""The tokenizer of a language model: tokenizer.json, and the files beside it about chats and ends of texts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortrain._files.writing import copy_file
from ortrain._support.values import StrPath
from ortrain.preprocessing.text import FILE, load_tokenizer
from ortrain.text.chat import ChatTemplate

CONFIG, TEMPLATE, GENERATION, MODEL = (
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "config.json",
)
_ENDS = ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "<|im_end|>", "[EOS]")
_FILLERS = ("[PAD]", "<pad>", "<|padding|>", "<|pad|>")
_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text, and the characters of the text that each is made of."""

    ids: list[int]
    spans: list[tuple[int, int]]


class Tokenizer:
    """A tokenizer and the files beside it. Needs tokenizers.

    Parameters
    ----------
    path : str or os.PathLike
        A ``tokenizer.json``, or the folder that has it. The files ``tokenizer_config.json``, ``chat_template.jinja``,
        ``generation_config.json`` and ``config.json`` beside it are read if there are such files.

    Attributes
    ----------
    digest : str
        The digest of ``tokenizer.json``.
    ends : tuple of int
        The tokens that end a text, first the one that training appends. Empty if none is known.
    filler : int
        The token that fills rows.
    limit : int or None
        The maximum number of tokens that the model takes, according to ``config.json``.

    Raises
    ------
    ImportError
        When tokenizers is not installed.
    ValueError
        When a file cannot be read.
    """

    def __init__(self, path: StrPath) -> None:
        given = Path(path)
        self.path = given / FILE if given.is_dir() else given
        self._tokenizer, self.digest = load_tokenizer(self.path)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._config = self._read(CONFIG)
        model, generation = self._read(MODEL), self._read(GENERATION)
        self.ends = self._ends_of(generation, model)
        self.filler = self._filler_of()
        lengths = [model[name] for name in _LENGTHS if isinstance(model.get(name), int)]
        self.limit: int | None = lengths[0] if lengths else None
        self._template: ChatTemplate | None = None

    @property
    def size(self) -> int:
        """The number of tokens that there are."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, special: bool = True) -> Tokens:
        """Return the tokens of a text, with those that the tokenizer adds at its ends if ``special``."""
        found = self._tokenizer.encode(text, add_special_tokens=special)
        return Tokens(list(found.ids), list(found.offsets))

    def decode(self, tokens: Sequence[int], special: bool = False) -> str:
        """Return the text of tokens, with special ones such as the end of the text if asked for."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=not special))

    def chat(self) -> ChatTemplate:
        """Return the template for chats.

        Raises
        ------
        ValueError
            When there is none.
        ImportError
            When jinja2 is not installed.
        """
        if self._template is None:
            source = self._template_source()
            if source is None:
                raise ValueError(
                    f"--tokenizer: expected a chat_template in {self.path.with_name(CONFIG)}, or the file {TEMPLATE} beside it, "
                    "for data with messages; found neither. Data with prompt and completion need no template"
                )
            names = ("bos_token", "eos_token", "pad_token", "unk_token")
            variables = {name: token for name in names if (token := self._named(name)) is not None}
            self._template = ChatTemplate(source, variables, str(self.path.parent))
        return self._template

    def copy_to(self, folder: Path) -> None:
        """Copy the files to a folder."""
        for name in (self.path.name, CONFIG, TEMPLATE, GENERATION, MODEL):
            source = self.path.with_name(name)
            target = folder / (FILE if name == self.path.name else name)
            if source.is_file() and source.resolve() != target.resolve():
                copy_file(source, target, "tokenizer")

    def _template_source(self) -> str | None:
        path = self.path.with_name(TEMPLATE)
        if path.is_file():
            return path.read_text("utf-8")
        found = self._config.get("chat_template")
        if isinstance(found, list):  # several templates, by name
            found = next(
                (
                    each.get("template")
                    for each in found
                    if isinstance(each, dict) and each.get("name") == "default"
                ),
                None,
            )
        return found if isinstance(found, str) else None

    def _read(self, name: str) -> Mapping[str, Any]:
        """Return the object in a JSON file beside the tokenizer; an empty object if there is no such file."""
        path = self.path.with_name(name)
        if not path.is_file():
            return {}
        try:
            found = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"--tokenizer: expected a JSON object in {path}: {error}") from error
        if not isinstance(found, dict):
            raise ValueError(f"--tokenizer: expected a JSON object in {path}, found {str(found)[:40]!r}")
        return found

    def _named(self, name: str) -> str | None:
        """Return the text of a token that tokenizer_config.json names."""
        found = self._config.get(name)
        found = found.get("content") if isinstance(found, dict) else found
        return found if isinstance(found, str) else None

    def _number_of(self, token: str | None) -> int | None:
        found = None if token is None else self._tokenizer.token_to_id(token)
        return None if found is None else int(found)

    def _ends_of(self, *configs: Mapping[str, Any]) -> tuple[int, ...]:
        found = [self._number_of(self._named("eos_token"))]
        for config in configs:
            numbers = config.get("eos_token_id")
            found += numbers if isinstance(numbers, list) else [numbers]
        known = [number for number in found if isinstance(number, int)]
        if not known:
            known = [number for token in _ENDS if (number := self._number_of(token)) is not None][:1]
        return tuple(dict.fromkeys(known))

    def _filler_of(self) -> int:
        named = [self._number_of(token) for token in (self._named("pad_token"), *_FILLERS)]
        return next((number for number in named if number is not None), self.ends[0] if self.ends else 0)


def check_tokenizer(tokenizer: object) -> None:
    """Reject the path of a tokenizer in the place of a tokenizer.

    Raises
    ------
    TypeError
        When it is one.
    """
    if isinstance(tokenizer, str | os.PathLike):
        raise TypeError(
            f"tokenizer: expected a Tokenizer, found the path {os.fspath(tokenizer)!r}; Tokenizer(path) reads it"
        )
