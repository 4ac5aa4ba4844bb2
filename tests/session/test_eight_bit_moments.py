"""AdamW with moments of 8 bits: the formula of its authors in NumPy, and what a checkpoint holds."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
from dynamic_map import dynamic_map
from onnx import helper, numpy_helper
from ortrain import artifacts
from ortrain.api import CheckpointState
from ortrain.onnxblock import optim
from training import Training

Array = np.ndarray[Any, Any]
ROWS, COLUMNS, BLOCK = 75, 67, 256  # the last block is not whole
RATE, BETA1, BETA2, EPSILON, DECAY = (float(np.float32(x)) for x in (0.01, 0.9, 0.99, 1e-8, 0.1))
RNG = np.random.default_rng(8)
START = RNG.normal(size=(ROWS, COLUMNS))
GRADIENTS = RNG.normal(size=(50, ROWS, COLUMNS)) * np.exp(RNG.normal(size=(50, ROWS, 1)))
GRADIENTS[:, 0] = 0


def make(folder: pathlib.Path, optimizer: Any) -> pathlib.Path:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", onnx.TensorProto.DOUBLE, ["n", ROWS])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, ["n", COLUMNS])],
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


def steps(training: Training, numbers: range) -> Array:
    training.optimizer.set_learning_rate(RATE)
    for step in numbers:
        training.state.parameters["weight"].grad = GRADIENTS[step]
        training.optimizer.step()
        training.module.lazy_reset_grad()
    return training.parameters()["weight"]


def stored(moment: Array, numbers: Array) -> Array:
    """Return what is left of a moment after it is stored: the nearest number of its block's scale."""
    padded = np.pad(moment.ravel(), (0, -moment.size % BLOCK)).reshape(-1, BLOCK)
    largest = np.abs(padded).max(1, keepdims=True)
    share = (padded / np.where(largest > 0, largest, 1)).astype(np.float32)
    middles = (numbers[:-1] + numbers[1:]) / 2
    codes = np.searchsorted(middles, share)
    restored = numbers[codes].astype(np.float64) * largest.astype(np.float32)
    return restored.ravel()[: moment.size].reshape(moment.shape)


def expected(count: int) -> Array:
    w, m, v = START.copy(), np.zeros_like(START), np.zeros_like(START)
    signed, unsigned = dynamic_map(True), dynamic_map(False)
    assert len(signed) == len(unsigned) == 256
    for t in range(1, count + 1):
        g = GRADIENTS[t - 1]
        m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g * g
        root = np.sqrt(v / (1 - BETA2**t)) + EPSILON
        w = w * (1 - RATE * DECAY) - RATE / (1 - BETA1**t) * m / root
        m, v = stored(m, signed), stored(v, unsigned)
    return w


def block() -> Any:
    return optim.AdamW8bit(betas=(0.9, 0.99), weight_decay=0.1)


def test_steps_are_those_of_the_authors_formula(tmp_path: pathlib.Path) -> None:
    training = Training(make(tmp_path, block()))
    found, wanted = steps(training, range(50)), expected(50)
    # A number in the middle of two codes may be rounded to the other one: where that happened, steps differ by as much as codes.
    same = np.isclose(found, wanted, 1e-9, 1e-9)
    assert same.mean() > 0.99
    np.testing.assert_allclose(found, wanted, atol=0.02)


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
