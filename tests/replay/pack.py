"""Write the recorded runs so that a program without Python can replay them: `python -m tests.replay.pack FOLDER`.

A run becomes a text, which names what to do and what was recorded, and a file with the batches one after the other:

    scheduler WARMUP TOTAL RATE        if there is one
    input TYPE RANK DIMENSION...       two for each step; TYPE is ONNX's number
    step LOSS                          train with the next two inputs
    eval LOSS                          evaluate with the two inputs of the step of the same number
"""

from __future__ import annotations

import json
import pathlib
import sys

import numpy as np

FIXTURES = pathlib.Path(__file__).parents[1] / "data" / "fixtures"
TYPES = {"float32": 1, "int64": 7}


def pack(fixture: pathlib.Path, folder: pathlib.Path) -> None:
    expected = json.loads((fixture / "expected.json").read_text())
    lines, data = [], b""
    if expected["scheduler"]:
        scheduler = expected["scheduler"]
        # The recorded program passed the two counts in the wrong order (tests/session/test_fixtures.py).
        lines.append(f"scheduler {scheduler['total']} {scheduler['warmup']} {scheduler['initial_lr']}")
    with np.load(fixture / "batches.npz") as batches:
        for i, loss in enumerate(expected["train_losses"]):
            for array in (batches[f"x{i}"], batches[f"y{i}"]):
                lines.append(" ".join(map(str, ("input", TYPES[str(array.dtype)], array.ndim, *array.shape))))
                data += np.ascontiguousarray(array).tobytes()
            lines.append(f"step {loss!r}")
    lines += [f"eval {loss!r}" for loss in expected.get("eval_losses_after", [])]
    (folder / f"{fixture.name}.run").write_text("\n".join(lines) + "\n")
    (folder / f"{fixture.name}.data").write_bytes(data)


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for fixture in sorted(FIXTURES.iterdir()):
        if fixture.is_dir():
            pack(fixture, folder)


if __name__ == "__main__":
    main()
