"""Text as the tokens of a tokenizer file, ``tokenizer.json`` as Hugging Face writes it."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FILE = "tokenizer.json"
"""The name of the tokenizer in a folder of artifacts."""

_PARTS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
_LONGEST = 512


@dataclass(frozen=True)
class TextPreprocessing:
    """A tokenizer file, the column with the text, and the number of tokens per row."""

    column: str
    length: int
    digest: str

    def as_json(self) -> dict[str, Any]:
        """Return values that JSON can represent."""
        return {"kind": "text", "column": self.column, "length": self.length, "digest": self.digest}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> TextPreprocessing:
        """Return what `as_json` returned."""
        return cls(str(value["column"]), int(value["length"]), str(value["digest"]))


def load_tokenizer(path: Path) -> tuple[Any, str]:
    """Return the tokenizer in a file, and the digest of the file.

    Raises
    ------
    ImportError
        When tokenizers is not installed.
    ValueError
        When the file has no tokenizer.
    """
    try:
        tokenizers: Any = importlib.import_module("tokenizers")
    except ImportError as error:
        raise ImportError("text needs tokenizers: pip install 'ortrain[text]'") from error
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"--tokenizer: cannot read {path}: {error.strerror}") from error
    try:
        found = tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:  # tokenizers only raises Exception
        raise ValueError(f"--tokenizer: expected a tokenizer.json, found {path}: {error}") from error
    return found, hashlib.sha256(content).hexdigest()


class Tokenizer:
    """A tokenizer from a file, for classes and numbers of texts. It raises what `load_tokenizer` raises."""

    def __init__(self, path: Path) -> None:
        self._tokenizer, self.digest = load_tokenizer(path)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    @property
    def size(self) -> int:
        """The number of tokens that there are."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def names_of(self, tokens: Array) -> list[str]:
        """Return the text of each token of a row, without those that fill it at the end; ``?`` for an unknown number."""
        filler = self._padding()[0]
        numbers = tokens.tolist()
        while numbers and numbers[-1] == filler:
            numbers.pop()
        known = (self._tokenizer.id_to_token(number) if number >= 0 else None for number in numbers)
        return [token if token is not None else "?" for token in known]

    def length_of(self, texts: Sequence[str]) -> int:
        """Return how many tokens hold 95 of 100 texts, 512 at most."""
        lengths = [len(found.ids) for found in self._tokenizer.encode_batch(list(texts))]
        return int(min(_LONGEST, max(1, np.quantile(lengths, 0.95, method="higher"))))

    def tokens_of(self, texts: Sequence[str], length: int, names: Sequence[str]) -> dict[str, Array]:
        """Return arrays [texts, length] by the names of inputs: tokens, and the mask and types if there are such inputs.

        Longer texts are cut, shorter ones filled with the padding token.
        """
        self._tokenizer.enable_truncation(length)
        padding = self._padding()
        self._tokenizer.enable_padding(length=length, pad_id=padding[0], pad_token=padding[1])
        try:
            found = self._tokenizer.encode_batch(list(texts))
        finally:
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
        first = names[0] if "input_ids" not in names else "input_ids"
        parts = {name: _PARTS.get(name, "ids" if name == first else "") for name in names}
        unknown = [name for name, part in parts.items() if not part]
        if unknown:
            raise ValueError(
                f"--tokenizer: expected inputs named {', '.join(_PARTS)}, or one input, found also {', '.join(unknown)}"
            )
        return {
            name: np.array([getattr(row, part) for row in found], np.int64) for name, part in parts.items()
        }

    def _padding(self) -> tuple[int, str]:
        """Return index and text of the padding token."""
        return next(
            (
                (number, token)
                for token in ("[PAD]", "<pad>", "<|padding|>")
                if (number := self._tokenizer.token_to_id(token)) is not None
            ),
            (0, "[PAD]"),
        )
