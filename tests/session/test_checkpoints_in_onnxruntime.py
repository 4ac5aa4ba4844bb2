"""Training continues in onnxruntime-training 1.19.2 from checkpoints written here, and the other way round."""

from __future__ import annotations

import json
import pathlib
import subprocess

import numpy as np
import pytest
from ortrain.api import CheckpointState, Module, Optimizer
from recorded import Fixture

STEPS = 3

# Run by the other interpreter: loads a checkpoint, trains, prints losses, saves.
CONTINUE = """
import json, sys
import numpy as np
import onnxruntime
from onnxruntime.training.api import CheckpointState, Module, Optimizer

onnxruntime.set_default_logger_severity(3)
folder, checkpoint, saved, first, last = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
batches = np.load(folder + "/batches.npz")
state = CheckpointState.load_checkpoint(checkpoint)
module = Module(folder + "/training_model.onnx", state)
optimizer = Optimizer(folder + "/optimizer_model.onnx", module)
optimizer.set_learning_rate(1e-3)
losses = []
for i in range(first, last):
    losses.append(float(module(batches[f"x{i}"], batches[f"y{i}"])))
    optimizer.step()
    module.lazy_reset_grad()
state.properties["from"] = "1.19.2"
CheckpointState.save_checkpoint(state, saved, include_optimizer_state=True)
print(json.dumps({"losses": losses, "properties": {"epoch": state.properties["epoch"]} if "epoch" in state.properties else {}}))
"""


def theirs(python: str, recorded: Fixture, checkpoint: pathlib.Path, saved: pathlib.Path, first: int) -> dict:
    run = subprocess.run(
        [
            python,
            "-c",
            CONTINUE,
            str(recorded.folder),
            str(checkpoint),
            str(saved),
            str(first),
            str(first + STEPS),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1])


def ours(recorded: Fixture, checkpoint: pathlib.Path, saved: pathlib.Path, first: int) -> list[float]:
    state = CheckpointState.load_checkpoint(checkpoint)
    module = Module(recorded.path("training_model.onnx"), state)
    optimizer = Optimizer(recorded.path("optimizer_model.onnx"), module)
    optimizer.set_learning_rate(1e-3)
    losses = []
    for x, y in recorded.batches[first : first + STEPS]:
        losses.append(float(module(x, y)))
        optimizer.step()
        module.lazy_reset_grad()
    state.properties["epoch"] = 7
    CheckpointState.save_checkpoint(state, saved, include_optimizer_state=True)
    return losses


@pytest.mark.first_case
def test_a_run_begun_here_goes_on_there_and_back(
    recorded: Fixture, tmp_path: pathlib.Path, ort_training_python: str
) -> None:
    start = recorded.folder / "checkpoint"
    straight = ours(recorded, start, tmp_path / "ours", 0)
    straight += ours(recorded, tmp_path / "ours", tmp_path / "straight", STEPS)
    # The middle third there, on the checkpoint saved here.
    there = theirs(ort_training_python, recorded, tmp_path / "ours", tmp_path / "theirs", STEPS)
    assert there["properties"] == {"epoch": 7}
    np.testing.assert_allclose(there["losses"], straight[STEPS:], rtol=1e-4)
    # And back.
    state = CheckpointState.load_checkpoint(tmp_path / "theirs")
    assert state.properties["from"] == "1.19.2"
    assert len(ours(recorded, tmp_path / "theirs", tmp_path / "again", 2 * STEPS)) == STEPS
