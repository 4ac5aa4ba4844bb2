"""Networks exported by PyTorch train on stock onnxruntime as they do in ortrain: the step as one model of ONNX."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import pytest
from ortrain import artifacts, step
from ortrain.artifacts.step import in_standard_opset, write_step
from test_models import CASES, LOSSES, Export, exports
from training import Training

STEPS = 20


def steps_of(case: Export, folder: pathlib.Path) -> tuple[list[float], list[float]]:
    """The losses of a training session, and of a step model on onnxruntime."""
    optimizer = artifacts.OptimType.SGD if case.optimizer_kind == "sgd" else artifacts.OptimType.AdamW
    report = artifacts.generate_artifacts(
        in_standard_opset(case.path),
        requires_grad=list(case.parameters),
        loss=LOSSES[case.loss],
        optimizer=optimizer,
        artifact_directory=folder,
        loss_input_names=["output", "images"] if case.loss == "reconstruction" else None,
    )
    write_step(report, folder / "step.onnx")
    model = onnx.load(folder / "step.onnx")
    assert {entry.domain for entry in model.opset_import} <= {"", "ai.onnx.ml"}
    rate = case.lr / 2  # half of what the recorded runs use, so that rounding is not amplified
    here = Training(folder)
    here.optimizer.set_learning_rate(rate)
    there = step.Session(folder / "step.onnx", learning_rate=rate)
    found: Any = [float(there(*case.inputs())) for _ in range(STEPS)]
    return [here.step(*case.inputs()) for _ in range(STEPS)], found


@pytest.mark.parametrize(("architecture", "export"), exports(random=False))
def test_twenty_steps_on_onnxruntime_are_those_of_ortrain(
    architecture: str, export: str, tmp_path: pathlib.Path
) -> None:
    case = Export(architecture, export, tmp_path)
    expected, found = steps_of(case, tmp_path)
    assert expected[-1] < expected[0]
    np.testing.assert_allclose(found, expected, 1e-5)


def test_there_are_exports_of_every_kind() -> None:
    assert len(CASES) > 10
