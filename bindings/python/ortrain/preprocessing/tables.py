"""Columns of a table as numbers: standardized numbers, categories, missing cells and dates.

The columns and the categories are read from the whole table, so that the same file always gives rows of the same length. Means
and deviations are those of the rows that a model is trained on. A category that none of these rows has is encoded like an
unknown one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain._support.counts import counted
from ortrain._support.places import place_of_cell
from ortrain.preprocessing.cells import date_of, is_missing, number_of, separator_of, text_of

Array = npt.NDArray[Any]

_MOST_CATEGORIES = 50
_MOST_CODES = 10  # different numbers that may be names of categories beside a text, such as the codes 1, 2, 3 and "other"
_MOSTLY = 0.9  # share of numbers above which a column counts as numeric, and its other cells as mistakes
_EPOCH_WEEKDAY = 3  # 1970-01-01 was a Thursday


@dataclass(frozen=True)
class Number:
    """A column of numbers: minus their mean, divided by their deviation; a missing number becomes the mean.

    If the table has missing cells, a second number says which they are.
    """

    name: str
    has_missing: bool
    mean: float = 0.0
    deviation: float = 1.0

    kind = "number"

    @property
    def width(self) -> int:
        """The numbers that the column becomes."""
        return 1 + self.has_missing

    def fitted(self, cells: Sequence[Any]) -> Number:
        """Return the column with the mean and the deviation of training cells."""
        values = np.array([number for cell in cells if (number := number_of(cell)) is not None], np.float64)
        if not len(values):
            return self
        return Number(self.name, self.has_missing, float(values.mean()), float(values.std()) or 1.0)

    def encoded(self, cells: Sequence[Any], where: str) -> Array:
        """Return a row of numbers for each cell."""
        missing = np.array([is_missing(cell) for cell in cells], bool)
        values = np.full(len(cells), self.mean)
        for row, cell in enumerate(cells):
            if missing[row]:
                continue
            number = number_of(cell)
            if number is None:
                raise ValueError(_wrong(where, self.name, "a number", cells, row))
            values[row] = number
        standard = (values - self.mean) / self.deviation
        return np.stack([standard, missing] if self.has_missing else [standard], axis=1)

    def shown(self) -> str:
        """Return the column in a few words."""
        return f"{self.name} (number{', some missing' if self.has_missing else ''})"


@dataclass(frozen=True)
class Category:
    """A column of names, one-hot: a 1 at the position of the name, zeros for an unknown name. An empty name is a missing cell."""

    name: str
    categories: tuple[str, ...]
    seen: tuple[bool, ...]

    kind = "category"

    @property
    def width(self) -> int:
        """The numbers that the column becomes."""
        return len(self.categories)

    def fitted(self, cells: Sequence[Any]) -> Category:
        """Return the column that knows which categories training cells have."""
        present = {text_of(cell) for cell in cells}
        return Category(self.name, self.categories, tuple(name in present for name in self.categories))

    def encoded(self, cells: Sequence[Any], where: str) -> Array:
        """Return a row of numbers for each cell."""
        places = {name: place for place, name in enumerate(self.categories) if self.seen[place]}
        values = np.zeros((len(cells), len(self.categories)))
        for row, cell in enumerate(cells):
            place = places.get(text_of(cell))
            if place is not None:
                values[row, place] = 1
        return values

    def shown(self) -> str:
        """Return the column in a few words."""
        names = ", ".join(name or "missing" for name in self.categories[:5])
        return f"{self.name} ({counted(len(self.categories), 'category')}: {names}{', ...' if len(self.categories) > 5 else ''})"


@dataclass(frozen=True)
class Date:
    """A column of dates: the standardized day, and the places in the year, the week and, with times, the day on a circle.

    A missing date is the mean day with zeros; if the table has any, a last number says which they are.
    """

    name: str
    has_missing: bool
    separator: str | None
    mean: float = 0.0
    deviation: float = 1.0

    kind = "date"

    @property
    def width(self) -> int:
        """The numbers that the column becomes."""
        return 5 + 2 * (self.separator is not None) + self.has_missing

    def _day(self, cell: Any) -> tuple[float, list[float]] | None:
        date = date_of(cell)
        if date is None:
            return None
        minutes = date.hour * 60 + date.minute if self.separator else 0
        days = date.toordinal() - 719163
        turns = [(date.month - 1 + (date.day - 1) / 31) / 12, (days + _EPOCH_WEEKDAY) % 7 / 7]
        if self.separator:
            turns.append(minutes / 1440)
        circles = [f(2 * math.pi * turn) for turn in turns for f in (math.sin, math.cos)]
        return days + minutes / 1440, circles

    def fitted(self, cells: Sequence[Any]) -> Date:
        """Return the column with the mean and the deviation of training cells."""
        days = np.array([found[0] for cell in cells if (found := self._day(cell)) is not None])
        if not len(days):
            return self
        return Date(self.name, self.has_missing, self.separator, float(days.mean()), float(days.std()) or 1.0)

    def encoded(self, cells: Sequence[Any], where: str) -> Array:
        """Return a row of numbers for each cell."""
        values = np.zeros((len(cells), self.width))
        for row, cell in enumerate(cells):
            if is_missing(cell):
                values[row, -1] = self.has_missing
                continue
            found = self._day(cell)
            if found is None:
                raise ValueError(_wrong(where, self.name, "a date such as 2026-03-01", cells, row))
            values[row, 0] = (found[0] - self.mean) / self.deviation
            values[row, 1 : 1 + len(found[1])] = found[1]
        return values

    def shown(self) -> str:
        """Return the column in a few words."""
        return f"{self.name} (date{' and time' if self.separator else ''}{', some missing' if self.has_missing else ''})"


Column = Number | Category | Date
_KINDS: dict[str, Any] = {"number": Number, "category": Category, "date": Date}


@dataclass(frozen=True)
class TablePreprocessing:
    """The columns of a table, in their order, and those that are left out, with the reason."""

    columns: tuple[Column, ...]
    left_out: Mapping[str, str]

    @property
    def width(self) -> int:
        """The numbers of an encoded row."""
        return sum(column.width for column in self.columns)

    @property
    def is_needed(self) -> bool:
        """Whether a model cannot take the cells as they are."""
        return bool(self.left_out) or any(
            not isinstance(column, Number) or column.has_missing for column in self.columns
        )

    @property
    def names(self) -> list[str]:
        """The names of all columns, those that are left out too."""
        return [*(column.name for column in self.columns), *self.left_out]

    def fitted(self, table: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> TablePreprocessing:
        """Return the preprocessing with the means and deviations of training rows."""
        chosen = {column.name: [table[column.name][row] for row in rows] for column in self.columns}
        return TablePreprocessing(
            tuple(column.fitted(chosen[column.name]) for column in self.columns), self.left_out
        )

    def encoded(self, table: Mapping[str, Sequence[Any]], where: str) -> Array:
        """Return the rows of a table as numbers."""
        parts = [column.encoded(table[column.name], where) for column in self.columns]
        return np.concatenate(parts, axis=1).astype(np.float32)

    def shown(self) -> str:
        """Return the columns in a few words."""
        names = [column.shown() for column in self.columns]
        return f"{'; '.join(names[:12])}{'; ...' if len(names) > 12 else ''}"

    def as_json(self) -> dict[str, Any]:
        """Return values that JSON can represent."""
        columns = [{"kind": column.kind, **asdict(column)} for column in self.columns]
        return {"kind": "table", "columns": columns, "left_out": dict(self.left_out)}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> TablePreprocessing:
        """Return what `as_json` returned."""
        columns = []
        for entry in value["columns"]:
            fields = {
                name: tuple(field) if isinstance(field, list) else field
                for name, field in entry.items()
                if name != "kind"
            }
            columns.append(_KINDS[entry["kind"]](**fields))
        return cls(tuple(columns), dict(value["left_out"]))


def look_at(table: Mapping[str, Sequence[Any]], where: str) -> TablePreprocessing:
    """Return how the columns of a table are encoded, before means and deviations are known.

    Raises
    ------
    ValueError
        When most cells of a column are numbers, but not all.
    """
    columns: list[Column] = []
    left_out: dict[str, str] = {}
    for name, cells in table.items():
        present = [cell for cell in cells if not is_missing(cell)]
        has_missing = len(present) < len(cells)
        if not present:
            left_out[name] = "all its cells are missing"
        elif all(number_of(cell) is not None for cell in present):
            columns.append(Number(name, has_missing))
        elif all(date_of(cell) is not None for cell in present):
            separator = next((found for cell in present if (found := separator_of(cell))), None)
            columns.append(Date(name, has_missing, separator))
        else:
            category = _category(name, cells, present, where)
            if isinstance(category, str):
                left_out[name] = category
            else:
                columns.append(category)
    if not columns:
        raise ValueError(
            f"{where}: expected columns of numbers, categories or dates beside the target, found none"
        )
    return TablePreprocessing(tuple(columns), left_out)


def _category(name: str, cells: Sequence[Any], present: Sequence[Any], where: str) -> Category | str:
    """Return a column of categories, or the reason why the column is something else."""
    counts = Counter(text_of(cell) for cell in cells)
    wrong = [cell for cell in present if number_of(cell) is None]
    if len(counts) > _MOST_CODES and len(wrong) < (1 - _MOSTLY) * len(present):
        raise ValueError(
            f"{where}, column {name}: expected numbers, as most of its cells are, found {str(wrong[0])!r:.60} in "
            f"{place_of_cell(cells, list(cells).index(wrong[0]))}; leave cells without a value empty"
        )
    if len(counts) > max(_MOST_CATEGORIES, len(cells) / 2):
        return f"it has {counted(len(counts), 'different text')} in {counted(len(cells), 'row')}, too many for categories"
    most = sorted(counts, key=lambda text: (-counts[text], text))[:_MOST_CATEGORIES]
    return Category(name, tuple(sorted(most)), (True,) * len(most))


def _wrong(where: str, name: str, expected: str, cells: Sequence[Any], row: int) -> str:
    place = place_of_cell(cells, row)
    return f"{where}, column {name}: expected {expected}, found {str(cells[row])!r:.60} in {place}"
