"""A run that starts in ortrain, goes on in stock onnxruntime and ends in ortrain has the losses of one that never moved."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
from ortrain import step
from ortrain.cli import main
from recorded import Fixture

LENET = Fixture("lenet_adamw")
ROWS, STEPS = 20, 6  # of a batch and of an epoch
OPTIONS = {
    "all weights": ["--loss", "cross_entropy"],
    "a new head": ["--classes", "10"],
    "adapters": ["--loss", "cross_entropy", "--adapter", "lora", "--rank", "2"],
}


def losses_of(run: pathlib.Path) -> list[float]:
    """The losses of the steps in the log of a run."""
    entries = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return [entry["loss"] for entry in entries if entry["event"] == "step"]


@pytest.mark.parametrize("kind", OPTIONS)
def test_three_epochs_on_two_runtimes_have_the_losses_of_three_on_one(
    kind: str, tmp_path: pathlib.Path
) -> None:
    x, y = (np.concatenate(values)[: ROWS * STEPS] for values in zip(*LENET.batches, strict=True))
    np.savez(tmp_path / "train.npz", input=x, labels=y)
    folder = tmp_path / "artifacts"

    def train(out: str, *options: str) -> None:
        settings = [
            "--data",
            str(tmp_path / "train.npz"),
            "--no-shuffle",
            "--batch",
            str(ROWS),
            "--lr",
            "0.005",
        ]
        assert not main(["train", str(folder), *settings, "--out", str(tmp_path / out), *options])

    assert not main(
        ["artifacts", str(LENET.path("model.onnx")), *OPTIONS[kind], "--step", "--out", str(folder)]
    )
    train("stayed", "--from-start", "--epochs", "3")
    train("moved", "--from-start", "--epochs", "1")
    there = step.Session(folder / "step.onnx", checkpoint=tmp_path / "moved" / "1" / "epoch-1.ckpt")
    assert there.step_count == STEPS
    assert there.learning_rate == pytest.approx(0.005)
    losses = [float(there(x[i : i + ROWS], y[i : i + ROWS])[0]) for i in range(0, len(x), ROWS)]
    there.save_checkpoint(tmp_path / "moved.ckpt")
    train("moved", "--checkpoint", str(tmp_path / "moved.ckpt"), "--epochs", "1")
    found = losses_of(tmp_path / "moved" / "1") + losses + losses_of(tmp_path / "moved" / "2")
    expected = losses_of(tmp_path / "stayed" / "1")
    assert len(expected) == 3 * STEPS
    np.testing.assert_allclose(found, expected, 1e-6)
