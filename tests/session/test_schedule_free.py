"""The schedule-free optimizers train one set of weights and evaluate another, their average."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from ortrain import artifacts
from ortrain.api import CheckpointState
from ortrain.onnxblock import optim
from training import Training

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(3)
START = RNG.normal(size=(4, 3)).astype(np.float32)
BATCHES = [
    (RNG.normal(size=(8, 4)).astype(np.float32), RNG.normal(size=(8, 3)).astype(np.float32)) for _ in range(9)
]
RATE, MOMENTUM = 0.05, 0.9


def make(folder: pathlib.Path, optimizer: Any) -> pathlib.Path:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(START, "weight")],
    )
    artifacts.generate_artifacts(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        requires_grad=["weight"],
        loss=artifacts.LossType.MSELoss,
        optimizer=optimizer,
        artifact_directory=folder,
    )
    return folder


def start(folder: pathlib.Path, checkpoint: str | pathlib.Path = "checkpoint") -> Training:
    training = Training(folder, checkpoint=checkpoint)
    training.optimizer.set_learning_rate(RATE)
    return training


def averages() -> list[Array]:
    """Return the averages of the weights after each step: the authors' equations (1) to (3), with gradients in NumPy."""
    x = z = START.astype(np.float64)
    after = []
    for t, (inputs, wanted) in enumerate(BATCHES, 1):
        y = (1 - MOMENTUM) * z + MOMENTUM * x
        gradient = 2 / wanted.size * inputs.T.astype(np.float64) @ (inputs @ y - wanted)
        z = z - RATE * gradient
        x = (1 - 1 / t) * x + z / t
        after.append(x)
    return after


def loss(weights: Array, batch: tuple[Array, Array]) -> float:
    return float(np.mean((batch[0] @ weights - batch[1]) ** 2))


def test_eval_steps_and_exports_use_the_average(tmp_path: pathlib.Path) -> None:
    training = start(make(tmp_path, optim.ScheduleFreeSGD()))
    assert training.evaluate(*BATCHES[0]) == pytest.approx(loss(START, BATCHES[0]), 1e-5)
    for batch, average in zip(BATCHES, averages(), strict=True):
        training.step(*batch)
        assert training.evaluate(*BATCHES[0]) == pytest.approx(loss(average, BATCHES[0]), 1e-4)
    training.module.export_model_for_inferencing(tmp_path / "trained.onnx", ["y"])
    [exported] = onnx.load(tmp_path / "trained.onnx").graph.initializer
    np.testing.assert_allclose(numpy_helper.to_array(exported), averages()[-1], 1e-4, 1e-6)
    assert np.abs(training.parameters()["weight"] - averages()[-1]).max() > 1e-3


def test_a_resumed_run_evaluates_the_same_average(tmp_path: pathlib.Path) -> None:
    folder = make(tmp_path, optim.ScheduleFreeAdamW(warmup_steps=3))
    first = start(folder)
    for batch in BATCHES[:5]:
        first.step(*batch)
    CheckpointState.save_checkpoint(first.state, tmp_path / "halfway", include_optimizer_state=True)
    resumed = start(folder, "halfway")
    assert resumed.evaluate(*BATCHES[0]) == first.evaluate(*BATCHES[0])
    for batch in BATCHES[5:]:
        assert resumed.step(*batch) == first.step(*batch)
    assert resumed.evaluate(*BATCHES[0]) == first.evaluate(*BATCHES[0])
