"""Where rows of data come from, for messages: users look for the line of a file rather than for the position of a row."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

DATA, VALIDATION = "data", "validation data"

_LINES: ContextVar[Mapping[str, tuple[str, Sequence[int]]]] = ContextVar("lines", default={})  # noqa: B039 (never changed)


class Cells(list[Any]):
    """The cells of a column of a file, with the number of the line of each, from 1.

    Parameters
    ----------
    cells : sequence
        The cells.
    lines : sequence of int
        Their lines.
    """

    def __init__(self, cells: Sequence[Any], lines: Sequence[int]) -> None:
        super().__init__(cells)
        self.lines = lines

    def place_of(self, row: int) -> str:
        """Return the place of a cell, such as ``line 7``."""
        return f"line {self.lines[row]}"


def lines_of(cells: Any) -> Sequence[int] | None:
    """Return the lines of cells; None if they do not come from lines of a file."""
    return cells.lines if isinstance(cells, Cells) else None


def place_of_cell(cells: Any, row: int) -> str:
    """Return the place of a cell: its line if the cells have lines, otherwise its row, from 0."""
    return cells.place_of(row) if isinstance(cells, Cells) else f"row {row} of the data"


def place_of_row(row: int, whose: str = DATA) -> str:
    """Return the place of a row of a run's data: its line if `known_lines` has them, otherwise its number, from 0."""
    path, lines = _LINES.get().get(whose, ("", ()))
    return f"line {lines[row]} of {path}" if row < len(lines) else f"row {row} of the {whose}"


@contextlib.contextmanager
def known_lines(lines: Sequence[int], path: str, whose: str = DATA) -> Iterator[None]:
    """Let messages name the lines of a file instead of the rows of data.

    Parameters
    ----------
    lines : sequence of int
        The line of each row.
    path : str
        The file.
    whose : str
        The data: `DATA` or `VALIDATION`.
    """
    token = _LINES.set({**_LINES.get(), whose: (path, lines)})
    try:
        yield
    finally:
        _LINES.reset(token)
