"""Writes the files that the Objective-C tests read: the recorded runs with their batches as raw files.

Each run has a folder with its artifacts, `<name>.bin` for every array of its batches, little-endian and row by row, and
`run.json` with the recorded numbers and type and shape of every array.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np

FIXTURES = Path(__file__).resolve().parents[1] / "data/fixtures"
CASES = ("mlp_adamw", "mlp_sgd_sched", "lenet_adamw", "resnet_frozen")
ARTIFACTS = ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint")
TYPES = {"float32": "float", "int64": "int64"}


def prepare(case: str, folder: Path) -> None:
    """Write the folder of one recorded run."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ARTIFACTS:
        shutil.copy(FIXTURES / case / name, folder / name)
    run = json.loads((FIXTURES / case / "expected.json").read_text())
    arrays = {}
    with np.load(FIXTURES / case / "batches.npz") as batches:
        for name in batches.files:
            array = np.ascontiguousarray(batches[name])
            (folder / f"{name}.bin").write_bytes(array.astype(array.dtype.newbyteorder("<")).tobytes())
            arrays[name] = {"type": TYPES[array.dtype.name], "shape": array.shape}
    (folder / "run.json").write_text(
        json.dumps(
            {
                "arrays": arrays,
                "scheduler": run["scheduler"],
                "train_losses": run["train_losses"],
                "learning_rates": run["learning_rates"],
                "eval_losses": run.get("eval_losses_after"),
                "parameters": run["parameters_after"],
            }
        )
    )


if __name__ == "__main__":
    for name in CASES:
        prepare(name, Path(sys.argv[1]) / name)
