"""The recorded runs of onnxruntime-training 1.19.2, see tests/data/fixtures."""

from __future__ import annotations

import json
import pathlib

import numpy as np

DATA = pathlib.Path(__file__).parent / "data" / "fixtures"
CASES = sorted(p.name for p in DATA.iterdir() if p.is_dir())


class Fixture:
    """One recorded run: its folder, its batches, and the expected values."""

    def __init__(self, name: str):
        self.name = name
        self.folder = DATA / name
        self.expected = json.loads((self.folder / "expected.json").read_text())
        with np.load(self.folder / "batches.npz") as batches:
            count = sum(key.startswith("x") for key in batches.files)
            self.batches = [(batches[f"x{i}"], batches[f"y{i}"]) for i in range(count)]

    def path(self, name: str) -> str:
        return str(self.folder / name)
