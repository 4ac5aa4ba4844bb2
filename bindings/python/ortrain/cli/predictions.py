"""Files of predictions: NPY and NPZ with arrays, CSV and JSON lines with a line per row, or a folder of pictures per class."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ortrain._files.writing import copy_file, make_folder, replaced_file
from ortrain._support.counts import counted
from ortrain.cli import app

KINDS = "NPY, NPZ, CSV or JSON lines file, or for a folder of images a new folder, in which they are sorted by class"


@dataclass(frozen=True)
class Predictions:
    """What a model returned for data.

    Parameters
    ----------
    outputs : dict of str to array
        By the names of the model's outputs.
    classes : list of str, optional
        The names of the classes.
    files : list of str, optional
        The file of each row, relative to ``folder``.
    folder : Path
        The data.
    """

    outputs: dict[str, Any]
    classes: list[str] | None
    files: list[str] | None
    folder: Path

    @property
    def first(self) -> Any:
        """The first output."""
        return next(iter(self.outputs.values()))

    @property
    def predicted(self) -> list[str] | None:
        """The class with the highest score in each row, None if the classes have no names."""
        if self._names is None:
            return None
        return [self._names[number] for number in self.first.argmax(axis=1)]

    @property
    def _names(self) -> list[str] | None:
        scores, classes = self.first, self.classes
        if classes is None or scores.ndim != 2 or scores.shape[1] < len(classes):
            return None
        return [*classes, *(str(number) for number in range(len(classes), scores.shape[1]))]

    def as_json(self) -> dict[str, Any]:
        """Return all as values for JSON."""
        found: dict[str, Any] = dict(self.outputs)
        if self.files is not None:
            found["files"] = self.files
        return (
            found if self._names is None else {**found, "classes": self.classes, "predicted": self.predicted}
        )

    def text(self) -> list[str]:
        """Return a line for each row: the file, the numbers of the first output, and the class."""
        predicted, lines = self.predicted, []
        for number, row in enumerate(self.first):
            parts = [] if self.files is None else [self.files[number]]
            parts += [f"{value:.6g}" for value in np.ravel(row)]
            lines.append(" ".join([*parts, *([] if predicted is None else [predicted[number]])]))
        return lines

    def write(self, path: Path) -> None:
        """Write a file of the kind that its name implies, or a folder.

        Raises
        ------
        ValueError
            When the name implies no known kind, or that kind cannot store the predictions.
        """
        writers = {".npz": self._npz, ".npy": self._npy, ".csv": self._csv, ".jsonl": self._json_lines}
        if path.suffix in writers:
            writers[path.suffix](path)
        elif not path.suffix and self.files is not None and self._names is not None:
            self._folders(path, self.files, self._names)
        else:
            raise ValueError(f"--out: expected an {KINDS}, found {path}")

    def _only(self, path: Path) -> Any:
        if len(self.outputs) > 1:
            raise ValueError(
                f"--out: expected an NPZ or JSON lines file for {counted(len(self.outputs), 'output')}, found {path}"
            )
        return self.first

    def _npz(self, path: Path) -> None:
        with replaced_file(path, "arrays") as file:
            np.savez(file, **self.outputs)

    def _npy(self, path: Path) -> None:
        found = self._only(path)
        with replaced_file(path, "array") as file:
            np.save(file, found)

    def _csv(self, path: Path) -> None:
        rows = self._only(path).reshape(len(self.first), -1)
        predicted, name = self.predicted, next(iter(self.outputs))
        heads = [name] if rows.shape[1] == 1 else [f"{name} {number}" for number in range(rows.shape[1])]
        if self._names is not None:
            heads = [f"score {each}" for each in self._names]
        written = io.StringIO()
        table = csv.writer(written, lineterminator="\n")
        head = [] if self.files is None else ["file"]
        table.writerow([*head, *heads, *([] if predicted is None else ["predicted"])])
        for number, row in enumerate(rows):
            before = [] if self.files is None else [self.files[number]]
            after = [] if predicted is None else [predicted[number]]
            table.writerow([*before, *(f"{value:.9g}" for value in row), *after])
        with replaced_file(path, "table") as file:
            file.write(written.getvalue().encode())

    def _json_lines(self, path: Path) -> None:
        predicted = self.predicted
        with replaced_file(path, "predictions") as file:
            for number in range(len(self.first)):
                row: dict[str, Any] = {} if self.files is None else {"file": self.files[number]}
                if predicted is not None:
                    row["predicted"] = predicted[number]
                for name, values in self.outputs.items():
                    row[name] = values[number]
                if self._names is not None:
                    row[next(iter(self.outputs))] = dict(
                        zip(self._names, self.first[number].tolist(), strict=True)
                    )
                file.write(f"{json.dumps(app.plain(row), ensure_ascii=False)}\n".encode())

    def _folders(self, path: Path, files: Sequence[str], names: Sequence[str]) -> None:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ValueError(f"--out: expected a new or empty folder for the images by class, found {path}")
        for name in names:
            make_folder(path / _folder_name(name), "images")
        for file, number in zip(files, self.first.argmax(axis=1), strict=True):
            copy_file(
                self.folder / file, path / _folder_name(names[number]) / file.replace("/", "_"), "image"
            )


def _folder_name(name: str) -> str:
    """Return a name for the folder of a class."""
    found = "".join("_" if character in "/\\:\0" else character for character in name)
    return found if found.strip(". ") else f"_{found}"
