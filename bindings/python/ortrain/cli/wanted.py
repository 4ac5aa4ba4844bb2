"""The inputs of a model for which a command reads data, and the preprocessing that a user wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortrain.cli.language_options import LanguageOptions
from ortrain.text import TextRows
from ortrain.trainer.columns import Columns
from ortrain.trainer.data import split_rows


@dataclass
class Choice:
    """The preprocessing that a user wants, and the rows that are trained on.

    Parameters
    ----------
    folder : Path
        The folder of artifacts.
    standard : bool
        Whether the model is made for preprocessed rows.
    preprocess : bool, optional
        Whether the columns of a table are encoded. By default they are if the model cannot take them, or is made for that.
    normalize : str, optional
        What pictures are normalized by.
    size : tuple of int, optional
        Height and width of pictures, for a model that leaves them free.
    tokenizer : Path, optional
        The tokenizer of text.
    share : float, optional
        The share of the rows that is held out.
    seed : int
        Seed of that choice.
    language : LanguageOptions
        How text becomes rows for a language model.

    Attributes
    ----------
    text : TextRows or None
        The rows that were made of text for a language model.
    """

    folder: Path
    standard: bool = False
    preprocess: bool | None = None
    normalize: str | None = None
    size: tuple[int, int] | None = None
    tokenizer: Path | None = None
    share: float | None = None
    seed: int = 0
    language: LanguageOptions = field(default_factory=LanguageOptions)
    text: TextRows | None = None

    def training_rows(self, count: int) -> Sequence[int]:
        """Return the numbers of the rows that are trained on."""
        if self.share is None:
            return range(count)
        rows: list[int] = split_rows(count, self.share, self.seed)[0].tolist()
        return rows


class Wanted:
    """The inputs of a model that data are read for.

    Parameters
    ----------
    names : list of str
        In the order of a step; the last one is the target.
    shapes : list of list
        Their shapes; an unknown dimension is not an integer.
    has_target : bool, default True
        Whether the last input is the target.
    has_classes : bool, default False
        Whether the target is a class: a whole number, for which data may have a name.
    classes : list of str, optional
        The names of the classes in the order of their numbers. If the names are not given, `load` sets those of the data.
    columns : Columns, optional
        The names of the columns that the model was trained on, by which those of a table are found. If they are not given,
        `load` sets those of the data.
    header : bool, optional
        Whether the first line of a CSV file has the names of the columns. By default the file shows it.
    preprocessing : dict, optional
        The preprocessing of the rows that the model was trained on, as stored in a checkpoint. If it is not given,
        `load` sets it according to ``choice``.
    choice : Choice, optional
        The preprocessing of rows if none is stored. By default rows are not changed.
    folder : Path, optional
        The folder of artifacts, which has the tokenizer of text.
    weight : str, optional
        The column with the weights of the rows. By default that of the training.
    takes_weights : bool, default False
        Whether steps take weights.

    Attributes
    ----------
    remarks : list of str
        How `load` understood the data, where a user may not expect it.
    lines : sequence of int or None
        The line of each row that `load` read, if the rows come from a file of lines.
    """

    def __init__(
        self,
        names: Sequence[str],
        shapes: Sequence[Sequence[Any]],
        has_target: bool = True,
        has_classes: bool = False,
        classes: Sequence[str] | None = None,
        columns: Columns | None = None,
        header: bool | None = None,
        preprocessing: dict[str, Any] | None = None,
        choice: Choice | None = None,
        folder: Path | None = None,
        weight: str | None = None,
        takes_weights: bool = False,
    ) -> None:
        self.names, self.shapes, self.has_target = list(names), list(shapes), has_target
        self.has_classes = has_classes
        self.classes = None if classes is None else list(classes)
        self.columns, self.header = columns, header
        self.preprocessing, self.choice, self.folder = preprocessing, choice, folder
        self.takes_weights, self.must_have_weights = takes_weights, weight is not None
        self.weight = weight or (None if columns is None else columns.weight)
        self.remarks: list[str] = []
        self.lines: Sequence[int] | None = None

    @property
    def target(self) -> str | None:
        """The name of the target."""
        return self.names[-1] if self.has_target and len(self.names) > 1 else None

    @property
    def features(self) -> list[str]:
        """The names of the others."""
        return [name for name in self.names if name != self.target]

    def row_shape(self, name: str) -> list[int] | None:
        """Return the shape of one row, None if it is not known."""
        shape = self.shapes[self.names.index(name)][1:]
        return list(shape) if all(isinstance(dim, int) for dim in shape) else None

    def numbers_of(self, names: Sequence[str], path: Path) -> list[int]:
        """Return the numbers of classes that the data at a path have by name.

        Raises
        ------
        ValueError
            When one of the names is not known.
        """
        if self.classes is None:
            self.classes = sorted(set(names))
        numbers = {name: number for number, name in enumerate(self.classes)}
        unknown = sorted(set(names) - numbers.keys())
        if unknown:
            raise ValueError(
                f"--data: {path} has the class {unknown[0]}, which the model was not trained on; it knows "
                f"{', '.join(self.classes[:20])}{', ...' if len(self.classes) > 20 else ''}"
            )
        return [numbers[name] for name in names]
