"""Tables in files: CSV, Parquet and JSON lines, as columns by name. An error names the file and the line."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ortrain._files.reading import explained, open_file, parse_json, read_lines
from ortrain.errors import InvalidArgumentError

_DATA = "--data"
_MOST_CHARACTERS = 1000  # of a value; an array of text has as many for each of its values
_MOST_BITS = 1023  # of a number that a double can represent
_SHOWN = 60


def package(name: str, message: str) -> Any:
    """Import a package, or say how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(message) from error


def read_table(path: Path) -> dict[str, list[Any]] | None:
    """Return the columns of a table, None for a file of another kind.

    Raises
    ------
    InvalidArgumentError
        When a line is not as expected.
    FileError
        When the file cannot be read, or does not fit into memory.
    """
    kind = path.suffix.lower()
    if kind in (".csv", ".tsv"):
        return _read_csv(path, "\t" if kind == ".tsv" else ",")
    if kind == ".parquet":
        return _read_parquet(path)
    if kind in (".jsonl", ".ndjson"):
        return _read_json_lines(path)
    return None


def check_values(values: Any, name: str, path: Path) -> None:
    """Refuse texts and whole numbers of a column that are too long for an array.

    Raises
    ------
    InvalidArgumentError
        When there is one.
    """
    for row, value in enumerate(values if isinstance(values, list) else (), start=1):
        if isinstance(value, str) and len(value) > _MOST_CHARACTERS:
            raise InvalidArgumentError(
                f"{_DATA}: {path}, column {name}, row {row}: expected a number or a name of at most {_MOST_CHARACTERS} "
                f"characters, found {len(value)} characters: {value[:_SHOWN]}..."
            )
        if isinstance(value, int) and value.bit_length() > _MOST_BITS:
            raise InvalidArgumentError(
                f"{_DATA}: {path}, column {name}, row {row}: expected a number of at most 308 digits, found one of "
                f"{len(str(value))} digits"
            )


def _lines(path: Path, at: list[int]) -> Iterator[str]:
    """Yield lines as the csv module wants them, whichever characters end them; keep the number in ``at``."""
    for number, line in read_lines(path, _DATA):
        at[0] = number
        yield from io.StringIO(line, newline="") if "\r" in line else (line,)


def _read_csv(path: Path, separator: str) -> dict[str, list[Any]]:
    at = [1]
    rows: list[list[str]] = []
    try:
        reader = csv.reader(_lines(path, at), delimiter=separator)
        heading = next(reader, [])
        for row in reader:
            if row and len(row) != len(heading):
                raise InvalidArgumentError(
                    f"{_DATA}: {path} line {at[0]}: expected {len(heading)} values, found {len(row)}"
                )
            if row:
                rows.append(row)
    except csv.Error as error:
        raise InvalidArgumentError(
            f"{_DATA}: {path} line {at[0]}: expected values of a table, found: {error}"
        ) from error
    return {name: [row[i] for row in rows] for i, name in enumerate(heading)}


def _read_parquet(path: Path) -> dict[str, list[Any]]:
    parquet = package("pyarrow.parquet", "reading Parquet needs pyarrow: pip install pyarrow")
    with open_file(path, _DATA) as file, explained(path, _DATA, "a Parquet file"):
        columns: dict[str, list[Any]] = parquet.read_table(file).to_pydict()
    return columns


def _read_json_lines(path: Path) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for number, line in read_lines(path, _DATA):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            raise InvalidArgumentError(
                f"{_DATA}: {path} line {number}: expected a JSON object: {error}"
            ) from error
        if not isinstance(row, dict) or (columns and row.keys() != columns.keys()):
            raise InvalidArgumentError(
                f"{_DATA}: {path} line {number}: expected an object with {', '.join(columns) or 'names'}, "
                f"found {line.strip()[:_SHOWN]}"
            )
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return columns
