"""What the tests of the code generator share."""

from __future__ import annotations

import pathlib
import shutil
import sys
from collections.abc import Callable

import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))


class SpecCopy:
    """A copy of the spec that a test may break or extend."""

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


@pytest.fixture
def spec_copy(tmp_path: pathlib.Path) -> SpecCopy:
    shutil.copytree(ROOT / "spec", tmp_path / "spec")
    return SpecCopy(tmp_path / "spec")


@pytest.fixture
def refusal(spec_copy: SpecCopy) -> Callable[[], str]:
    """Loads the copy, which must be refused; returns what is said."""
    from codegen.check import load
    from codegen.source import SpecError

    def load_refused() -> str:
        with pytest.raises(SpecError) as caught:
            load(spec_copy.folder)
        return str(caught.value)

    return load_refused
