"""AdamW with moments of 8 bits: the formula in NumPy, and what a checkpoint holds."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import onnx
import pytest
from moment_codes import stored
from onnx import helper, numpy_helper
from ortrain import artifacts
from ortrain._files import stored_state
from ortrain._files.writing import write_file
from ortrain.api import CheckpointState
from ortrain.onnxblock import optim
from training import Training

Array = np.ndarray[Any, Any]
ROWS, COLUMNS = 75, 67  # the last block is not whole
RATE, BETA1, BETA2, EPSILON, DECAY = (float(np.float32(x)) for x in (0.01, 0.9, 0.99, 1e-8, 0.1))
RNG = np.random.default_rng(8)
START = RNG.normal(size=(ROWS, COLUMNS))
GRADIENTS = RNG.normal(size=(50, ROWS, COLUMNS)) * np.exp(RNG.normal(size=(50, ROWS, 1)))
GRADIENTS[:, 0] = 0


def make(folder: pathlib.Path, optimizer: Any, dtype: Any = np.float64) -> pathlib.Path:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", kind, ["n", ROWS])],
        [helper.make_tensor_value_info("y", kind, ["n", COLUMNS])],
        [numpy_helper.from_array(START.astype(dtype), "weight")],
    )
    artifacts.generate_artifacts(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        requires_grad=["weight"],
        loss=artifacts.LossType.MSELoss,
        optimizer=optimizer,
        artifact_directory=folder,
    )
    return folder


def steps(training: Training, numbers: range) -> Array:
    training.optimizer.set_learning_rate(RATE)
    for step in numbers:
        training.state.parameters["weight"].grad = GRADIENTS[step].astype(
            training.parameters()["weight"].dtype
        )
        training.optimizer.step()
        training.module.lazy_reset_grad()
    return training.parameters()["weight"]


def expected(count: int) -> Array:
    w, m, v = START.copy(), np.zeros_like(START), np.zeros_like(START)
    for t in range(1, count + 1):
        g = GRADIENTS[t - 1]
        m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g * g
        root = np.sqrt(v / (1 - BETA2**t)) + EPSILON
        w = w * (1 - RATE * DECAY) - RATE / (1 - BETA1**t) * m / root
        m, v = stored(m, True)[2], stored(np.sqrt(v), False)[2] ** 2
    return w


def block() -> Any:
    return optim.AdamW8bit(betas=(0.9, 0.99), weight_decay=0.1)


@pytest.mark.parametrize(("dtype", "precision"), [(np.float64, 1e-9), (np.float32, 1e-5)])
def test_steps_are_those_of_the_formula(dtype: Any, precision: float, tmp_path: pathlib.Path) -> None:
    training = Training(make(tmp_path, block(), dtype))
    found, wanted = steps(training, range(50)), expected(50)
    # A number at the edge of two codes may be rounded to the other one: where that happened, steps differ by as much as codes.
    same = np.isclose(found, wanted, precision, precision)
    assert same.mean() > (0.99 if dtype == np.float64 else 0.95)
    np.testing.assert_allclose(found, wanted, atol=0.02)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_learning_rate_of_zero_keeps_the_weights(dtype: Any, tmp_path: pathlib.Path) -> None:
    training = Training(make(tmp_path, block(), dtype))
    training.optimizer.set_learning_rate(0.0)
    for gradient in (np.zeros_like(START), GRADIENTS[0]):  # moments of zero, and moments above zero
        training.state.parameters["weight"].grad = gradient.astype(dtype)
        training.optimizer.step()
        np.testing.assert_array_equal(training.parameters()["weight"], START.astype(dtype))


def test_a_checkpoint_holds_codes_and_resumes_to_the_bit(tmp_path: pathlib.Path) -> None:
    folder = make(tmp_path, block())
    whole = steps(Training(folder), range(12))
    first = Training(folder)
    steps(first, range(5))
    CheckpointState.save_checkpoint(first.state, tmp_path / "halfway", include_optimizer_state=True)
    CheckpointState.save_checkpoint(first.state, tmp_path / "weights", include_optimizer_state=False)
    size = (tmp_path / "halfway").stat().st_size - (tmp_path / "weights").stat().st_size
    assert size < 2.2 * START.size + 2000  # two bytes for each element, and the scales
    np.testing.assert_array_equal(steps(Training(folder, checkpoint="halfway"), range(5, 12)), whole)


def test_a_checkpoint_with_the_codes_of_an_earlier_version_is_rejected(tmp_path: pathlib.Path) -> None:
    """Its first moments were codes of uint8."""
    folder = make(tmp_path, block())
    first = Training(folder)
    steps(first, range(1))
    CheckpointState.save_checkpoint(first.state, tmp_path / "new", include_optimizer_state=True)
    checkpoint = stored_state.read_file(tmp_path / "new")
    moments = next(iter(checkpoint.groups.values())).states["weight"]
    moments["momentum0"] = dataclasses.replace(moments["momentum0"], data_type=onnx.TensorProto.UINT8)
    write_file(tmp_path / "old", "checkpoint", stored_state.as_file(checkpoint))
    with pytest.raises(
        Exception, match=r'"first_moment" of parameter "weight" should be int8.*found uint8.*earlier version'
    ):
        Training(folder, checkpoint="old")
