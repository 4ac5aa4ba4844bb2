"""Rows of tokens with labels, the training data of a causal language model.

A row has the tokens of an example except the last one. The label of a token is the token after it. Labels that do not count are
-100: labels in a prompt, and of padding.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain._support.counts import agreeing, counted
from ortrain.text.inputs import InputNames
from ortrain.text.lines import Example, refuse
from ortrain.text.tokenizer import Tokenizer, Tokens, check_tokenizer

Array = npt.NDArray[Any]

IGNORED = -100
"""The label of a token that does not count."""

LONGEST = 512
"""The default maximum number of tokens in a row."""

_OPEN = 64  # latest rows with room that packing tries


@dataclass(frozen=True)
class TextRows:
    """Rows for a trainer, and how the examples were used."""

    arrays: dict[str, Array]
    """Arrays by the names of the model's inputs, each ``[rows, length]``. The last one has the labels."""
    examples: int
    """Number of examples in the rows."""
    tokens: int
    """Number of tokens in the rows, without padding."""
    counted: int
    """Number of tokens whose label counts."""
    cut: int
    """Number of examples that were longer than a row and lost their end."""
    lost: int
    """Number of tokens that these examples lost."""
    left_out: int
    """Number of examples without a label that counts, because their completion begins beyond the end of a row."""
    missed: int
    """Number of answers in chats that do not count, because the template writes earlier answers in another way."""
    enough: int
    """The number of tokens of a row with which no example would be cut, or the most that the tokenizer allows."""

    @property
    def length(self) -> int:
        """Tokens of a row."""
        return int(self._labels.shape[1])

    @property
    def _labels(self) -> Array:
        return next(reversed(self.arrays.values()))

    def shown(self) -> list[str]:
        """Return how the examples were used, as sentences."""
        rows = len(self._labels)
        share = self.tokens / (rows * self.length)
        found = [
            f"{counted(self.examples, 'example')} in {counted(rows, 'row')} of {counted(self.length, 'token')}, {share:.0%} "
            f"of them filled; the labels of {self.counted} of {counted(self.tokens, 'token')} count"
        ]
        if self.cut:
            found.append(
                f"{counted(self.cut, 'example')} {agreeing(self.cut, 'is', 'are')} longer than a row of "
                f"{counted(self.length, 'token')} and {agreeing(self.cut, 'loses', 'lose')} {counted(self.lost, 'token')} at the "
                f"{agreeing(self.cut, 'end', 'ends')}"
            )
        if self.left_out:
            found.append(
                f"{counted(self.left_out, 'example')} {agreeing(self.left_out, 'is', 'are')} left out, because the completion "
                f"begins beyond {counted(self.length, 'token')}"
            )
        if self.missed:
            found.append(
                f"{counted(self.missed, 'earlier answer')} in chats {agreeing(self.missed, 'does', 'do')} not count, because "
                "the chat template formats earlier answers differently from the last answer"
            )
        return found


@dataclass(frozen=True)
class _Encoded:
    """The tokens of an example, and for each whether it counts."""

    ids: list[int]
    counts: list[bool]
    missed: int = 0


def rows_of(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    inputs: InputNames | Sequence[str] = ("input_ids", "attention_mask"),
    *,
    length: int | None = None,
    packed: bool = False,
    loss_on: str = "completions",
    labels: str = "labels",
    seed: int = 0,
    path: str | os.PathLike[str] = "data",
) -> TextRows:
    """Return examples as rows of tokens with labels.

    Parameters
    ----------
    examples : sequence of Example
        What `read_lines` returns.
    tokenizer : Tokenizer
        The tokenizer of the model.
    inputs : InputNames or sequence of str
        The names of the model's inputs. For a sequence, `InputNames.among` determines which input is which.
    length : int, optional
        Tokens of a row. By default those of the longest example, at most 512 and at most what the model takes.
    packed : bool, default False
        Whether a row has several examples, as many as fit, instead of one. Positions restart with each example. The
        tokens of an example attend to earlier examples in the row, because models take no mask that prevents it.
    loss_on : {"completions", "all"}
        Which labels count: those of completions and of the assistant's messages, or all. For plain texts, all labels
        count.
    labels : str, default "labels"
        The name of the labels.
    seed : int, default 0
        Seed of the order of the examples.
    path : str or os.PathLike, optional
        The file of the examples, for messages.

    Raises
    ------
    TypeError
        When the tokenizer is a path.
    ValueError
        When an example cannot be tokenized, a setting is wrong, or nothing remains.
    """
    check_tokenizer(tokenizer)
    if loss_on not in ("completions", "all"):
        raise ValueError(f"loss_on: expected completions or all, found {loss_on!r}")
    if not examples:
        raise ValueError("examples: expected at least one, found none")
    names = inputs if isinstance(inputs, InputNames) else InputNames.among(inputs)
    if length is not None and length < 1:
        raise ValueError(f"length: expected 1 or more tokens, found {length}")
    if length is not None and tokenizer.limit is not None and length > tokenizer.limit:
        raise ValueError(
            f"length: the model takes {counted(tokenizer.limit, 'token')} at most, found {length}"
        )
    encoded = _all_encoded(examples, tokenizer, loss_on == "all", path)
    longest = max(1, *(len(each.ids) - 1 for each in encoded))
    if length is None:
        length = min(longest, LONGEST, tokenizer.limit or LONGEST)
    kept, cut, lost = [], 0, 0
    for number in np.random.default_rng([seed, 0x7E87]).permutation(len(encoded)):
        each = encoded[number]
        if not any(each.counts[1 : length + 1]):
            continue
        surplus = len(each.ids) - 1 - length
        cut, lost = cut + (surplus > 0), lost + max(0, surplus)
        kept.append(_Encoded(each.ids[: length + 1], each.counts[: length + 1]))
    if not kept:
        raise ValueError(
            f"--data: no example of {path} has a label within {counted(length, 'token')} that counts; expected longer rows "
            "(--length) or shorter prompts"
        )
    rows = _packed(kept, length) if packed else [[each] for each in kept]
    return TextRows(
        _filled(rows, length, tokenizer.filler, names, labels),
        examples=len(kept),
        tokens=sum(len(each.ids) - 1 for each in kept),
        counted=sum(sum(each.counts[1:]) for each in kept),
        cut=cut,
        lost=lost,
        left_out=len(encoded) - len(kept),
        missed=sum(each.missed for each in encoded),
        enough=min(longest, tokenizer.limit or longest),
    )


def _all_encoded(
    examples: Sequence[Example], tokenizer: Tokenizer, every: bool, path: str | os.PathLike[str]
) -> list[_Encoded]:
    """Return the tokens of all examples; an error names all examples without a token to learn."""
    found, wrong = [], []
    if any(example.messages for example in examples):
        tokenizer.chat()  # without a template, a single error for all lines
    for example in examples:
        try:
            found.append(_encoded(example, tokenizer, every))
        except ValueError as error:
            wrong.append(f"line {example.line}: {error}")
    refuse(path, wrong, len(examples))
    return found


def _encoded(example: Example, tokenizer: Tokenizer, every: bool) -> _Encoded:
    missed = 0
    if example.messages:
        text, spans, missed = tokenizer.chat().answers(example.messages)
        if not spans and not every:
            raise ValueError("expected a message of the assistant to learn, found none")
        found = tokenizer.encode(text, special=False)
        counts = [
            every or any(begin < end and first < last for first, last in _overlaps(begin, end, spans))
            for begin, end in found.spans
        ]
        encoded = _Encoded(found.ids, counts, missed)
    elif example.text is not None:
        found = tokenizer.encode(example.text)
        encoded = _ended(found, [True] * len(found.ids), tokenizer)
    else:
        prompt, completion = example.prompt or "", example.completion or ""
        found = tokenizer.encode(prompt + completion)
        first = next(
            (place for place, (_, end) in enumerate(found.spans) if end > len(prompt)), len(found.ids)
        )
        encoded = _ended(found, [every or place >= first for place in range(len(found.ids))], tokenizer)
    if not any(encoded.counts[1:]):
        raise ValueError("expected a token to learn after the first one, found none")
    return encoded


def _overlaps(begin: int, end: int, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(max(begin, first), min(end, last)) for first, last in spans]


def _ended(found: Tokens, counts: list[bool], tokenizer: Tokenizer) -> _Encoded:
    """Return tokens, with the token for the end of a text appended."""
    if not tokenizer.ends or (found.ids and found.ids[-1] in tokenizer.ends):
        return _Encoded(found.ids, counts)
    return _Encoded([*found.ids, tokenizer.ends[0]], [*counts, True])


def _packed(kept: Sequence[_Encoded], length: int) -> list[list[_Encoded]]:
    """Return rows of examples. Each example is put into the first of the latest rows that has room."""
    rows: list[list[_Encoded]] = []
    room: list[int] = []
    for each in kept:
        size = len(each.ids) - 1
        first = max(0, len(rows) - _OPEN)
        row = next((row for row in range(first, len(rows)) if room[row] >= size), None)
        if row is None:
            row = len(rows)
            rows.append([])
            room.append(length)
        rows[row].append(each)
        room[row] -= size
    return rows


def _filled(
    rows: Sequence[Sequence[_Encoded]], length: int, filler: int, inputs: InputNames, labels: str
) -> dict[str, Array]:
    """Return the arrays of rows."""
    shape = (len(rows), length)
    ids, targets = np.full(shape, filler, np.int64), np.full(shape, IGNORED, np.int64)
    mask, places = np.zeros(shape, np.int64), np.tile(np.arange(length), (len(rows), 1))
    for number, row in enumerate(rows):
        at = 0
        for each in row:
            size = len(each.ids) - 1
            part = slice(at, at + size)
            ids[number, part] = each.ids[:-1]
            targets[number, part] = np.where(each.counts[1:], each.ids[1:], IGNORED)
            mask[number, part] = 1
            places[number, part] = np.arange(size)
            at += size
    return {**inputs.arrays(ids, mask, places), labels: targets}
