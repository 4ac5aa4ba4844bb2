"""Adafactor on matrices: the formula in NumPy, for gradients of zero, and for those so small that a limit applies."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from ortrain import artifacts
from ortrain.onnxblock import optim
from training import Training

Array = np.ndarray[Any, Any]
RATE, DECAY, STEPS = (float(np.float32(0.01)), float(np.float32(0.1)), 5)
RNG = np.random.default_rng(11)


def gradients(shape: tuple[int, ...], case: str) -> Array:
    found = RNG.normal(size=(STEPS, *shape))
    if case == "zeros":  # rows and columns that never have gradients, and some that have none in some steps
        found[..., 3, :] = found[..., 5] = 0
        found[2:, ..., 7, :] = found[1:, ..., 9] = 0
    if case == "tiny":  # the root of a second moment is below the precision of the type
        found *= 1e-20
    if case == "tiny row":
        found[..., 4, :] *= 1e-9
    return found


def expected(start: Array, of_steps: Array, smallest: float) -> Array:
    w: Array = start.copy()
    rows = np.zeros(start.shape[:-1])
    columns = np.zeros((*start.shape[:-2], start.shape[-1]))
    for t, g in enumerate(of_steps, 1):
        taken = t ** float(np.float32(-0.8))
        rows = (1 - taken) * rows + taken * np.mean(g * g, -1)
        columns = (1 - taken) * columns + taken * np.mean(g * g, -2)
        mean = np.maximum(rows.mean(-1), smallest)[..., None, None]
        second = rows[..., :, None] * columns[..., None, :] / mean
        normalized = g / np.sqrt(np.maximum(second, smallest**2))
        size = max(float(np.float32(1e-3)), np.sqrt(np.mean(w * w)))
        length = min(RATE, t**-0.5) * size / max(1.0, np.sqrt(np.mean(normalized**2)))
        w = w * (1 - RATE * DECAY) - length * normalized
    return w


@pytest.mark.parametrize("case", ["plain", "zeros", "tiny", "tiny row"])
@pytest.mark.parametrize("shape", [(70, 37), (3, 13, 37)])
@pytest.mark.parametrize(("dtype", "precision"), [(np.float64, 1e-12), (np.float32, 2e-6)])
def test_steps_are_those_of_the_formula(
    dtype: Any, precision: float, shape: tuple[int, ...], case: str, tmp_path: pathlib.Path
) -> None:
    start = RNG.normal(size=shape).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", kind, [*shape[:-2], "n", shape[-2]])],
        [helper.make_tensor_value_info("y", kind, [*shape[:-2], "n", shape[-1]])],
        [numpy_helper.from_array(start, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    artifacts.generate_artifacts(
        model,
        requires_grad=["weight"],
        loss=artifacts.LossType.MSELoss,
        optimizer=optim.Adafactor(weight_decay=0.1),
        artifact_directory=tmp_path,
    )
    training = Training(tmp_path)
    training.optimizer.set_learning_rate(RATE)
    of_steps = gradients(shape, case).astype(dtype)
    for gradient in of_steps:
        training.state.parameters["weight"].grad = gradient
        training.optimizer.step()
        training.module.lazy_reset_grad()
    wanted = expected(start.astype(np.float64), of_steps.astype(np.float64), float(np.finfo(dtype).eps))
    np.testing.assert_allclose(training.parameters()["weight"], wanted, precision, precision)
