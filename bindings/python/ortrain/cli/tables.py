"""Tables in files: CSV, Parquet and JSON lines, as columns by name. An error names the file and the line."""

from __future__ import annotations

import csv
import importlib
import io
import itertools
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortrain._files.reading import explained, open_file, parse_json, read_lines
from ortrain._support.counts import counted
from ortrain._support.places import Cells, place_of_cell
from ortrain.errors import InvalidArgumentError
from ortrain.preprocessing.cells import is_missing

_DATA = "--data"
# of a value: an array of text reserves the length of its longest value for each value
_MOST_CHARACTERS = 1000
_MOST_BITS = 1023  # of an integer that a double can represent
_SHOWN = 60
_LOOKED_AT = 200  # rows of a table that decide whether its first row is a header
_NUMBERED = 8  # columns; with more, a row 0, 1, 2, ... is a header and not data
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""Separators of the cells of a CSV file other than commas."""
_DECIMAL_COMMA = re.compile(r"[-+]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?([eE][-+]?\d+)?")
"""A number with a comma before the decimals, and perhaps points between groups of digits."""


@dataclass(frozen=True)
class Table:
    """A table as columns.

    Parameters
    ----------
    columns : dict of str to list
        The values of each column, by its name; without a header the names are ``column 1`` and so on.
    has_names : bool
        Whether the names are those of the file.
    weights : list, optional
        The values of the column with the weights of the rows, which then is not among the columns.
    remark : str
        How the cells were found, if that is not by commas.
    """

    columns: dict[str, list[Any]]
    has_names: bool = True
    weights: list[Any] | None = None
    remark: str = ""


def package(name: str, message: str) -> Any:
    """Import a package, or say how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(message) from error


def read_table(path: Path, header: bool | None = None, known: Collection[str] = ()) -> Table | None:
    """Return the columns of a table, None for a file of another kind.

    Parameters
    ----------
    path : Path
        The file.
    header : bool, optional
        Whether the first line of a CSV file has the names of the columns. By default the file shows it.
    known : collection of str
        Names that the columns are expected to have.

    Raises
    ------
    InvalidArgumentError
        When a line is not as expected.
    FileError
        When the file cannot be read, or does not fit into memory.
    """
    kind = path.suffix.lower()
    if kind in (".csv", ".tsv"):
        return _read_csv(path, "\t" if kind == ".tsv" else None, header, known)
    if kind == ".parquet":
        return Table(_read_parquet(path))
    if kind in (".jsonl", ".ndjson"):
        return Table(_read_json_lines(path))
    return None


def check_values(values: Any, name: str, path: Path) -> None:
    """Refuse texts and whole numbers of a column that are too long for an array.

    Raises
    ------
    InvalidArgumentError
        When there is one.
    """
    for row, value in enumerate(values if isinstance(values, list) else ()):
        if isinstance(value, str) and len(value) > _MOST_CHARACTERS:
            raise InvalidArgumentError(
                f"{_DATA}: {path}, column {name}, {place_of_cell(values, row)}: expected a number or a name of at most "
                f"{_MOST_CHARACTERS} characters, found {counted(len(value), 'character')}: {value[:_SHOWN]}..."
            )
        if isinstance(value, int) and value.bit_length() > _MOST_BITS:
            raise InvalidArgumentError(
                f"{_DATA}: {path}, column {name}, {place_of_cell(values, row)}: expected a number of at most 308 digits, "
                f"found one of {counted(len(str(value)), 'digit')}"
            )


def _lines(path: Path, at: list[int]) -> Iterator[str]:
    """Yield lines for the csv module, whichever characters end them; keep the number of the line in ``at``."""
    at[0] = 0
    for _, line in read_lines(path, _DATA):
        for part in io.StringIO(line, newline="") if "\r" in line else (line,):
            at[0] += 1
            yield part


def _read_csv(path: Path, separator: str | None, header: bool | None, known: Collection[str]) -> Table:
    """Return the columns of a CSV file. If no separator is given, the first lines of the file decide."""
    found = separator or _separator_of(path)
    rows, lines = _rows_of_cells(path, found)
    if not rows:
        return Table({})
    rows[0][0] = rows[0][0].removeprefix("\ufeff")  # some programs write this mark before the first character
    said = f"{path} has {_SEPARATORS[found]} between its cells" if separator is None and found != "," else ""
    if found != "," and _with_decimal_points(rows):
        said = f"{said or path}{' and' if said else ' has'} commas before decimals"
    if header is None:
        header = _has_header(rows, known, path)
    if not header:
        names = [f"column {number}" for number in range(1, len(rows[0]) + 1)]
        return Table(_columns(names, rows, lines), False, remark=said)
    names = [name.strip() for name in rows[0]]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidArgumentError(
            f"{_DATA}: {path} line 1: expected a name for each column, found {twice!r} twice; --no-header reads a file that "
            "has no names"
        )
    return Table(_columns(names, rows[1:], lines[1:]), remark=said)


def _columns(
    names: Sequence[str], rows: Sequence[Sequence[str]], lines: Sequence[int]
) -> dict[str, list[Any]]:
    return {name: Cells([row[i] for row in rows], lines) for i, name in enumerate(names)}


def _rows_of_cells(path: Path, separator: str) -> tuple[list[list[str]], list[int]]:
    """Return the rows of a CSV file, all of one length, without empty lines, and the first line of each."""
    at = [0]
    rows: list[list[str]] = []
    lines: list[int] = []
    end = 0
    try:
        for row in csv.reader(_lines(path, at), delimiter=separator):
            if row and rows and len(row) != len(rows[0]):
                raise InvalidArgumentError(
                    f"{_DATA}: {path} line {at[0]}: expected {counted(len(rows[0]), 'value')}, found {len(row)}"
                )
            if row:
                rows.append(row)
                lines.append(end + 1 if at[0] > end else end)  # cells in quotes may have several lines
            end = at[0]
    except csv.Error as error:
        raise InvalidArgumentError(
            f"{_DATA}: {path} line {at[0]}: expected values of a table, found: {error}"
        ) from error
    return rows, lines


def _separator_of(path: Path) -> str:
    """Return the separator of the cells of a CSV file: a comma, unless its first lines show another one.

    Another separator is chosen in two cases: the first line has no comma outside of quotes; or semicolons divide all of these
    lines into equally many cells, and every comma is before the decimals of a number.
    """
    lines = list(itertools.islice(_lines(path, [1]), _LOOKED_AT))

    def split(separator: str) -> list[list[str]]:
        try:
            return [row for row in csv.reader(lines, delimiter=separator) if row]
        except csv.Error:  # the code that reads the whole file reports this
            return []

    by_comma = split(",")
    if not by_comma:
        return ","
    if len(by_comma[0]) == 1:
        counts = {separator: len((split(separator) or [[]])[0]) for separator in _SEPARATORS}
        most = max(counts, key=lambda separator: counts[separator])
        return most if counts[most] > 1 else ","
    rows = split(";")
    if len({len(row) for row in rows}) != 1 or len(rows[0]) == 1:
        return ","
    with_commas = [cell.strip() for row in rows for cell in row if "," in cell]
    return ";" if all(_DECIMAL_COMMA.fullmatch(cell) for cell in with_commas) else ","


def _with_decimal_points(rows: list[list[str]]) -> bool:
    """Replace commas before decimals by points in columns of such numbers; return whether there are any."""
    changed = False
    for place in range(len(rows[0])):
        cells = [row[place].strip() for row in rows]
        numbers = [number for number, cell in enumerate(cells) if _DECIMAL_COMMA.fullmatch(cell)]
        others = [number for number, cell in enumerate(cells) if number and not is_missing(cell)]
        if not any("," in cells[number] for number in numbers) or not set(others) <= set(numbers):
            continue  # the first row may contain names
        changed = True
        for number in numbers:
            rows[number][place] = cells[number].replace(".", "").replace(",", ".")
    return changed


def _has_header(rows: Sequence[Sequence[str]], known: Collection[str], path: Path) -> bool:
    """Whether the first row of a table contains names: yes, unless it looks like the rows below.

    Raises
    ------
    InvalidArgumentError
        When the first row may be names or data.
    """
    first = [cell.strip() for cell in rows[0]]
    if not any(_is_number(cell) for cell in first) or (known and set(known) <= set(first)):
        return True
    below = rows[1 : 1 + _LOOKED_AT]
    of_numbers = [
        i for i in range(len(first)) if all(_is_number(row[i]) or not row[i].strip() for row in below)
    ]
    as_below = [i for i in of_numbers if _is_number(first[i])]
    names = [i for i in of_numbers if first[i] and not _is_number(first[i])]
    # pandas writes such names
    numbered = all(first[i] == str(i) for i in range(len(first)) if _is_number(first[i]))
    if as_below and not names and not numbered:
        return False
    if numbered and (names or len(first) >= _NUMBERED or len(as_below) < len(first)):
        return True
    shown = ",".join(rows[0])
    raise InvalidArgumentError(
        f"{_DATA}: {path} line 1 may be the names of the columns or the first row: {shown[:_SHOWN]}; --header or "
        "--no-header says which"
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_parquet(path: Path) -> dict[str, list[Any]]:
    parquet = package("pyarrow.parquet", "reading Parquet needs pyarrow: pip install pyarrow")
    with open_file(path, _DATA) as file, explained(path, _DATA, "a Parquet file"):
        columns: dict[str, list[Any]] = parquet.read_table(file).to_pydict()
    return columns


def _read_json_lines(path: Path) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    lines: list[int] = []
    for number, line in read_lines(path, _DATA):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            why = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
            raise InvalidArgumentError(
                f"{_DATA}: {path} line {number}: expected a JSON object: {why}"
            ) from error
        if not isinstance(row, dict) or (columns and row.keys() != columns.keys()):
            raise InvalidArgumentError(
                f"{_DATA}: {path} line {number}: expected an object with {', '.join(columns) or 'names'}, "
                f"found {line.strip()[:_SHOWN]}"
            )
        lines.append(number)
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return {name: Cells(values, lines) for name, values in columns.items()}
