"""Replay the recorded runs with the installed package, which may have been installed without the packages of the tests."""

from __future__ import annotations

import json
import pathlib
import sys

import numpy as np
import ortrain
from ortrain.api import CheckpointState, LinearLRScheduler, Module, Optimizer

FIXTURES = pathlib.Path(__file__).parents[1] / "data" / "fixtures"
TOLERANCE = 1e-4  # as in tests/session/test_fixtures.py


def replay(folder: pathlib.Path) -> float:
    """Return the largest relative difference of the losses from the recorded ones."""
    expected = json.loads((folder / "expected.json").read_text())
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    scheduler = None
    if expected["scheduler"]:
        s = expected["scheduler"]
        # The recorded program passed the two counts in the wrong order (tests/session/test_fixtures.py).
        scheduler = LinearLRScheduler(optimizer, s["total"], s["warmup"], s["initial_lr"])
    losses = []
    module.train()
    with np.load(folder / "batches.npz") as batches:
        for i in range(len(expected["train_losses"])):
            losses.append(float(module(batches[f"x{i}"], batches[f"y{i}"])))
            optimizer.step()
            if scheduler:
                scheduler.step()
            module.lazy_reset_grad()
    recorded = np.array(expected["train_losses"])
    return float(np.max(np.abs(np.array(losses) - recorded) / np.abs(recorded)))


def main() -> None:
    print(f"ortrain {ortrain.__version__} of {pathlib.Path(ortrain.__file__).parent}")
    failed = 0
    for folder in sorted(path for path in FIXTURES.iterdir() if path.is_dir()):
        worst = replay(folder)
        failed += not worst <= TOLERANCE
        print(
            f"{'ok' if worst <= TOLERANCE else 'FAILED'} {folder.name}: losses within {worst:.1e} of the recorded ones"
        )
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
