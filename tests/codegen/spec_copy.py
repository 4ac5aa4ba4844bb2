"""A copy of the spec that a test may damage or extend."""

from __future__ import annotations

import pathlib

ROOT = pathlib.Path(__file__).parents[2]


class SpecCopy:
    """The files of a copied spec."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder

    def replace(self, file: str, old: str, new: str) -> None:
        path = self.folder / file
        text = path.read_text()
        assert old in text, f"{file} has no {old!r}"
        path.write_text(text.replace(old, new, 1))

    def append(self, file: str, text: str) -> None:
        path = self.folder / file
        path.write_text(path.read_text() + text)

    def line_of(self, file: str, text: str) -> int:
        lines = (self.folder / file).read_text().splitlines()
        return next(i for i, line in enumerate(lines, 1) if text in line)
